// SPDX-License-Identifier: MIT
#include "timer_server/kills/job_recordings.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace filetimer {
namespace {

// Returns the workers whose flight recorders can be asked, `first` first, the others by rank. Of
// workers that name the same FIFO, as a rank and its data loaders do, the one with the lowest pid.
std::vector<FlightRecording::Rank> recorders_of(const WorkerIdentity& first,
                                                const std::vector<WorkerIdentity>& others) {
  std::vector<FlightRecording::Rank> ranks;
  const auto add = [&](const WorkerIdentity& worker) {
    const std::optional<WorkerFacts>& facts = *worker.facts;
    if (facts && facts->recorder) {
      ranks.push_back({worker.process, facts->rank, facts->recorder});
    }
  };
  add(first);
  const auto begin_of_others = static_cast<std::ptrdiff_t>(ranks.size());
  std::ranges::for_each(others, add);
  std::sort(ranks.begin() + begin_of_others, ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(a.rank, a.process->pid) < std::pair(b.rank, b.process->pid);
  });
  std::set<std::string_view> pipes;
  std::erase_if(ranks, [&](const FlightRecording::Rank& rank) {
    const std::string& pipe = rank.files->pipe;
    return !pipe.empty() && !pipes.insert(pipe).second;
  });
  return ranks;
}

}  // namespace

void RecordingShare::add_to(Evidence& evidence, pid_t worker) const {
  if (!recording_) {
    return;
  }
  evidence.flight_recorder = recording_->dumps();
  evidence.flight_recorder_omitted = omitted_;
  if (!is_first_) {
    std::erase_if(evidence.flight_recorder,
                  [worker](const FlightDump& dump) { return dump.pid != worker; });
  }
}

RecordingShare JobRecordings::share_for(const WorkerIdentity& worker, const std::string& incident,
                                        Instant until) {
  const std::optional<WorkerFacts>& facts = *worker.facts;
  if (!facts) {
    return {};  // the job of the worker is not known
  }
  if (incident_ != incident) {
    recordings_.clear();
    incident_ = incident;
  }
  if (const auto known = recordings_.find(facts->job_id); known != recordings_.end()) {
    return {known->second, false, 0};
  }
  std::vector<FlightRecording::Rank> ranks = recorders_of(worker, others_of_job_(worker));
  if (ranks.empty() && !has_job(*facts)) {
    return {};  // says nothing of the workers with a rank, which have the same empty job id
  }
  const std::size_t asked = std::min(ranks.size(), FlightRecording::kMaxRanks);
  const std::size_t omitted = ranks.size() - asked;
  ranks.resize(asked);
  auto& recording = recordings_[facts->job_id];
  if (!ranks.empty()) {
    recording = FlightRecording::start(side_threads_, std::move(ranks), until);
  }
  return {recording, true, omitted};
}

}  // namespace filetimer
