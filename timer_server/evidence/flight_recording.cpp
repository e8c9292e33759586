// SPDX-License-Identifier: MIT
#include "timer_server/evidence/flight_recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace filetimer {

FlightRecording::FlightRecording(std::vector<Rank> ranks, Instant until)
    : ranks_(std::move(ranks)), until_(until) {
  const MutexLock lock(mutex_);
  for (const Rank& rank : ranks_) {
    dumps_.push_back({rank.process->pid, rank.rank, {}, 0, "it was not asked: time was up"});
  }
}

std::shared_ptr<FlightRecording> FlightRecording::start(SideThreads& side_threads,
                                                        std::vector<Rank> ranks, Instant until) {
  std::shared_ptr<FlightRecording> recording(new FlightRecording(std::move(ranks), until));
  side_threads.run(
      [recording]() -> SideThreads::Delivery {
        recording->run();
        return [recording] { recording->is_done_ = true; };
      },
      SideThreads::Lane::kRecorders);
  return recording;
}

void FlightRecording::run() {
  std::vector<FlightRecorder> recorders;
  recorders.reserve(ranks_.size());
  bool waits = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Process& process = *ranks_[i].process;
    recorders.emplace_back(ranks_[i].files, process.uid, fmt::format("/proc/{}/root", process.pid));
    // /proc/PID was that of the process if the process is alive afterwards. The FIFO of any other
    // process has to pass the same checks.
    if (process.is_alive() && Instant::now() < until_) {
      recorders[i].ask();
      waits = waits || recorders[i].is_waiting();
    }
    publish(i, recorders[i]);
  }
  while (waits && until_ - Instant::now() >= kLookPeriod) {
    std::this_thread::sleep_for(kLookPeriod);
    waits = false;
    for (std::size_t i = 0; i < recorders.size(); ++i) {
      if (recorders[i].is_waiting() && ranks_[i].process->is_alive()) {
        recorders[i].look();
        waits = waits || recorders[i].is_waiting();
      }
      publish(i, recorders[i]);
    }
  }
}

void FlightRecording::publish(std::size_t index, const FlightRecorder& recorder) {
  std::string reason = recorder.reason();
  const bool has_ended = !reason.empty() && !ranks_[index].process->is_alive();
  const MutexLock lock(mutex_);
  FlightDump& dump = dumps_[index];
  dump.missing = has_ended ? "the process had ended" : std::move(reason);
  dump.path = dump.missing.empty() ? recorder.path() : std::string{};
  dump.size = dump.missing.empty() ? recorder.size() : 0;
}

std::vector<FlightDump> FlightRecording::dumps() const {
  const MutexLock lock(mutex_);
  return dumps_;
}

}  // namespace filetimer
