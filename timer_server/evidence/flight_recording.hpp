// The dumps of the flight recorders of all ranks of a job on this host, asked for at one moment.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "common/clock.hpp"
#include "common/mutex.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/flight_recorder.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// Asks each rank once, then looks every kLookPeriod until no dump changes any more or the time is
// up. Does not wait for a rank that has ended.
//
//   auto recording = FlightRecording::start(side_threads, ranks, until);
//   ...
//   if (recording->is_done() || now >= until) { use(recording->dumps()); }
//
// The public members are called on the loop thread. The files are used on a side thread, which
// shares the ownership of the recording.
class FlightRecording {
 public:
  // The most ranks that the caller may pass.
  static constexpr std::size_t kMaxRanks = 64;
  // The time between two looks, in which a dump must not change.
  static constexpr std::chrono::milliseconds kLookPeriod{40};

  struct Rank {
    std::shared_ptr<const Process> process;
    std::optional<int> rank;
    std::shared_ptr<const RecorderFiles> files;
  };

  // `side_threads` wakes the loop when the recording is done.
  static std::shared_ptr<FlightRecording> start(SideThreads& side_threads, std::vector<Rank> ranks,
                                                Instant until);

  // Returns whether every rank has dumped, cannot dump, or has had its time.
  [[nodiscard]] bool is_done() const { return is_done_; }
  // Returns what is known now, in the order of the ranks.
  [[nodiscard]] std::vector<FlightDump> dumps() const;

 private:
  FlightRecording(std::vector<Rank> ranks, Instant until);
  // On a side thread.
  void run();
  void publish(std::size_t index, const FlightRecorder& recorder);

  const std::vector<Rank> ranks_;
  const Instant until_;
  bool is_done_ = false;  // of the loop thread

  mutable Mutex mutex_;
  std::vector<FlightDump> dumps_ FILETIMER_GUARDED_BY(mutex_);
};

}  // namespace filetimer
