// --slow-factor: records the ranks that stay slower than the others of their job.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/clock.hpp"
#include "common/stragglers.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/system/loop_thread.hpp"

namespace filetimer {

// Looks for stragglers now and then (common/stragglers.hpp) and records a rank that is one in
// kLooks successive looks. The record begins an episode of this rank and this scope name. The
// episode ends, without a record, when the rank was none in kLooks successive looks. Sends no
// signal.
//
// A look reads the pages of all workers, and takes a short time in each iteration of the loop, so
// that no deadline waits for thousands of pages. Only pages with statistics count. Used on the loop
// thread. The references that the constructor takes must outlive this object.
//
//   slow.begin(now);                  // at each sweep
//   Instant next = slow.advance(now);  // in each iteration
class SlowRanks {
 public:
  // The least time between the begins of two looks. A longer --max-interval makes it longer.
  static constexpr Duration kLeastPeriod = std::chrono::seconds{2};
  // The successive looks in which a rank must be a straggler before it is recorded, and must be
  // none before its episode ends.
  static constexpr int kLooks = 3;
  // How long advance() works. It reads at least one worker, or compares at least one name.
  static constexpr Duration kWorkLimit = std::chrono::microseconds{500};
  // The pairs of rank and scope name that are remembered. Further ones are not recorded.
  static constexpr std::size_t kMaxEpisodes = 1024;

  // `factor` as StragglerSearch takes it; without it no look begins.
  SlowRanks(std::optional<double> factor, Workers& workers, const Records& records, RecordLog& log)
      : factor_(factor), workers_(workers), records_(records), log_(log) {}

  // Begins a look, unless one is under way or has begun less than kLeastPeriod ago.
  void begin(Instant now);
  // Works for `limit`. Returns `now` while a look is under way, else never().
  Instant advance(Instant now, Duration limit = kWorkLimit);

  // Returns the number of episodes now.
  [[nodiscard]] std::size_t count() const;
  // Returns the number of episodes that were recorded.
  [[nodiscard]] std::uint64_t recorded() const { return recorded_; }

 private:
  struct Unread {
    WorkerIdentity worker;
    std::vector<std::shared_ptr<WorkerPage>> pages;
  };
  struct Episode {
    int looks_slow = 0;  // successive ones, in which a scope had ended since the one before
    int looks_well = 0;  // successive ones since
    Instant last_ended;
    std::uint64_t last_look = 0;
    bool is_recorded = false;
  };
  using Key = std::tuple<pid_t, std::uint64_t, std::string>;  // pid, start time, scope

  void read(const Unread& next);
  void conclude();
  void note(const Straggler& straggler);

  const std::optional<double> factor_;
  Workers& workers_;
  const Records& records_;
  RecordLog& log_;

  std::uint64_t looks_ = 0;
  Instant last_begin_;
  // Of the look that is under way.
  std::optional<StragglerSearch> search_;
  std::deque<Unread> unread_;
  std::vector<WorkerIdentity> ranks_;  // as search_ numbers them

  std::map<Key, Episode> episodes_;
  std::uint64_t recorded_ = 0;
  LoopThread loop_thread_;
};

}  // namespace filetimer
