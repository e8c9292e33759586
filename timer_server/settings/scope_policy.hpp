// Applies the server's settings to scopes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/limits.hpp"
#include "common/page_reader.hpp"
#include "common/wire.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/settings/settings.hpp"

namespace filetimer {

// Computes the terms of scopes from requests and slots, with --max-timeout, --grace, --warn-at and
// the time that the server and the scope's worker have lost. Reads no clock.
class ScopePolicy {
 public:
  ScopePolicy(const Settings& settings, const LostTime& lost);

  // Returns the terms by which slots are judged.
  [[nodiscard]] const WorkerPage::Terms& page_terms() const { return page_terms_; }
  // Returns what a scan of the worker's pages needs; `now` is the time by which it judges,
  // `previous` when the last scan began.
  [[nodiscard]] WorkerPage::Scan scan_of(const Worker& worker, Instant now,
                                         Instant previous = Instant::never()) const {
    return {now, page_terms_, lost_, worker.lost, previous};
  }

  // Returns the terms that a request asks for, which was read at `now`. Without grace in the
  // request, --grace counts; without --grace, a client of this project gets kDefaultGrace, and a
  // client of PyTorch gets one signal and no SIGKILL.
  [[nodiscard]] SlotReading terms_of(const wire::Request& request, const ClockReading& now) const;

  // Returns the scope of a slot as its worker has opened it.
  [[nodiscard]] SlotReading view_of(SlotReading reading) const;
  // Returns the scope of a slot with the time that the worker was given.
  [[nodiscard]] SlotReading view_of(SlotReading reading, const Worker& worker) const;
  // Returns the open scopes of a worker, the oldest first; of more than `most` those that were
  // opened last, which say where the worker is. Sets `count` to the number of all of them.
  [[nodiscard]] std::vector<SlotReading> open_scopes_of(const Worker& worker,
                                                        std::size_t most = kMaxScopesPerWorker,
                                                        std::size_t* count = nullptr) const;

  [[nodiscard]] std::string reason_to_warn(const SlotReading& terms, bool is_signalled) const;

 private:
  const Settings& settings_;
  const LostTime& lost_;  // by the server
  // Of scopes on pages that name none.
  const Duration grace_ = settings_.grace.value_or(Settings::kDefaultGrace);
  const WorkerPage::Terms page_terms_;
};

}  // namespace filetimer
