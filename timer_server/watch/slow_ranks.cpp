// SPDX-License-Identifier: MIT
#include "timer_server/watch/slow_ranks.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/duration_text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

void SlowRanks::begin(Instant now) {
  loop_thread_.check();
  if (!factor_ || search_ || (looks_ > 0 && now < last_begin_ + kLeastPeriod)) {
    return;
  }
  last_begin_ = now;
  ++looks_;
  search_.emplace(*factor_);
  workers_.for_each([&](const Worker& worker) {
    // The job of a worker is among its facts.
    if (*worker.facts && !worker.dying && !worker.pages.empty()) {
      unread_.push_back({WorkerIdentity::of(worker), worker.pages});
    }
  });
}

Instant SlowRanks::advance(Instant now, Duration limit) {
  loop_thread_.check();
  if (!search_) {
    return Instant::never();
  }
  const Instant until = Instant::now() + limit;
  do {
    if (!unread_.empty()) {
      read(unread_.front());
      unread_.pop_front();
    } else if (!search_->compare_next()) {
      conclude();
      return Instant::never();
    }
  } while (Instant::now() < until);
  return now;
}

void SlowRanks::read(const Unread& next) {
  const WorkerFacts& facts = **next.worker.facts;
  if (!has_job(facts)) {
    return;
  }
  EndedScopesByName ended;
  for (const auto& page : next.pages) {
    page->add_ended_scopes(ended);
  }
  if (!ended.empty()) {
    search_->add(ranks_.size(), facts.job_id, ended);
    ranks_.push_back(next.worker);
  }
}

void SlowRanks::conclude() {
  for (const Straggler& straggler : search_->stragglers()) {
    note(straggler);
  }
  search_.reset();
  ranks_.clear();
  for (auto each = episodes_.begin(); each != episodes_.end();) {
    Episode& episode = each->second;
    const bool is_over =
        episode.last_look != looks_ && (!episode.is_recorded || ++episode.looks_well >= kLooks);
    each = is_over ? episodes_.erase(each) : std::next(each);
  }
}

void SlowRanks::note(const Straggler& straggler) {
  const WorkerIdentity& worker = ranks_[straggler.rank];
  const Key key{worker.process->pid, worker.process->start_time, straggler.scope};
  auto known = episodes_.find(key);
  if (known == episodes_.end()) {
    if (episodes_.size() >= kMaxEpisodes) {
      return;
    }
    known = episodes_.emplace(key, Episode{}).first;
  }
  Episode& episode = known->second;
  episode.last_look = looks_;
  episode.looks_well = 0;
  if (straggler.last_ended <= episode.last_ended) {
    return;  // the same scopes as in the last look: the job stands still
  }
  episode.last_ended = straggler.last_ended;
  if (episode.is_recorded || ++episode.looks_slow < kLooks) {
    return;
  }
  episode.is_recorded = true;
  ++recorded_;
  log_.append(records_.slow(worker, straggler));
  messages::warning("{} {} in '{}': {}, the others {}", description_of(worker),
                    straggler.kind == StragglerKind::kSlower ? "is slow" : "waits least",
                    straggler.scope, duration_for_reading(straggler.median),
                    duration_for_reading(straggler.others));
}

std::size_t SlowRanks::count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(episodes_, [](const auto& entry) { return entry.second.is_recorded; }));
}

}  // namespace filetimer
