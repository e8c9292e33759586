// The dumps of PyTorch's flight recorders in the evidence of the kills of a job.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/flight_recording.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// What one kill has of the recording of its job.
class RecordingShare {
 public:
  RecordingShare() = default;  // of a kill without one
  RecordingShare(std::shared_ptr<FlightRecording> recording, bool is_first, std::size_t omitted)
      : recording_(std::move(recording)), is_first_(is_first), omitted_(omitted) {}

  [[nodiscard]] bool is_done() const { return !recording_ || recording_->is_done(); }
  // Writes the dumps that are known now into the evidence of a worker: those of all ranks for the
  // kill that started the recording, its own for another worker.
  void add_to(Evidence& evidence, pid_t worker) const;

 private:
  std::shared_ptr<FlightRecording> recording_;  // null: no rank has a recorder
  bool is_first_ = false;
  std::size_t omitted_ = 0;  // ranks beyond FlightRecording::kMaxRanks
};

// Asks the flight recorders of a job once for each incident: when a rank is killed, the other ranks
// end their collectives, and a later dump would show their ends. So each kill of the job waits for
// all dumps. Used on the loop thread. `side_threads` must outlive this object.
class JobRecordings {
 public:
  using OthersOfJob = std::function<std::vector<WorkerIdentity>(const WorkerIdentity&)>;

  // `others_of_job` returns the other workers of the job on this host.
  JobRecordings(SideThreads& side_threads, OthersOfJob others_of_job)
      : side_threads_(side_threads), others_of_job_(std::move(others_of_job)) {}

  // Returns the recording of the worker's job in this incident. Starts it if there is none yet,
  // with time until `until`.
  RecordingShare share_for(const WorkerIdentity& worker, const std::string& incident,
                           Instant until);

 private:
  SideThreads& side_threads_;
  const OthersOfJob others_of_job_;
  std::string incident_;  // the last one
  // Of the jobs of this incident; null: no rank has a recorder.
  std::map<std::string, std::shared_ptr<FlightRecording>> recordings_;
};

}  // namespace filetimer
