// What the parts of the server share, and what it counts for status, metrics and the record of its
// stop.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.hpp"
#include "common/due.hpp"
#include "common/limits.hpp"
#include "timer_server/evidence/evidence_desk.hpp"
#include "timer_server/records/kill_files.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/runtime_directory.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/settings/scope_policy.hpp"
#include "timer_server/settings/settings.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// The most scope names that have series of their own. All further names share one label value: a
// worker that makes up names must not fill the memory of the server or of Prometheus.
inline constexpr std::size_t kMaxMetricScopes = 64;
inline constexpr const char* kOtherScopes = "(other)";

// Counts by scope name, of at most kMaxMetricScopes names and kOtherScopes. A name keeps its label
// value for good, so that no counter decreases.
class CountsByScope {
 public:
  using Values = std::map<std::string, std::uint64_t>;

  // Returns the count of a name, which is valid UTF-8. The first names get label values of their
  // own.
  std::uint64_t& operator[](const std::string& name) {
    std::string label = name;
    // Prometheus reads no NUL.
    for (std::size_t at = label.find('\0'); at != label.npos; at = label.find('\0', at)) {
      label.replace(at, 1, "\uFFFD");
    }
    if (!values_.contains(label) &&
        values_.size() - values_.count(kOtherScopes) >= kMaxMetricScopes) {
      label = kOtherScopes;
    }
    return values_[label];
  }

  [[nodiscard]] const Values& values() const { return values_; }
  [[nodiscard]] std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const auto& [label, count] : values_) {
      sum += count;
    }
    return sum;
  }

 private:
  Values values_;
};

// Counts of the times from a deadline to its verdict, by upper bound.
struct LatenessCounts {
  static constexpr std::array<int, 13> kBoundsMs{1,   2,   5,    10,   20,   50,   100,
                                                 200, 500, 1000, 2000, 5000, 10000};
  // By bound: the times up to it, and above the bound before. The last has all that are longer.
  std::array<std::uint64_t, kBoundsMs.size() + 1> counts{};
  double total_s = 0;
  Duration longest{};

  void add(Duration late) {
    const auto* const bound = std::ranges::lower_bound(
        kBoundsMs, late, {}, [](int ms) { return Duration{std::chrono::milliseconds{ms}}; });
    ++counts[static_cast<std::size_t>(bound - kBoundsMs.begin())];
    total_s += in_seconds(late);
    longest = std::max(longest, late);
  }
};

struct Counters {
  std::uint64_t requests = 0;  // from the pipe, rejected ones included
  CountsByScope expired;
  LatenessCounts lateness;
  // Kills that have ended with the verdict `dead`, and with `unkillable`, by the scope of the first
  // expiry.
  CountsByScope killed;
  CountsByScope unkillable;
  CountsByScope warned;            // `warned` records
  CountsByScope deferred;          // halts in which a deadline was deferred, by its scope
  std::uint64_t deferred_all = 0;  // deferrals of all scopes, for time that the server missed
  CountsByScope released_late;     // `released_late` records
};

// Collects rejected requests for one record a second, so that a broken client can neither fill the
// log nor slow the loop.
class Rejections {
 public:
  static constexpr Duration kInterval = std::chrono::seconds{1};

  void add(std::string_view reason, std::string_view line, pid_t pid) {
    ++total_;
    waiting_ = {waiting_.count + 1, std::string(reason),
                std::string(line.substr(0, kMaxRejectedBytesShown)), pid};
  }
  // Returns the report on the rejections since the last one. Returns nothing if there were none, or
  // if the last report is less than kInterval old and `force` is not set.
  std::optional<RejectionReport> take(Instant now, bool force = false) {
    if (waiting_.count == 0 || (now < not_before_ && !force)) {
      return std::nullopt;
    }
    not_before_ = now + kInterval;
    return std::exchange(waiting_, {});
  }
  // Returns when take() will return a report; never() if no rejection waits.
  [[nodiscard]] Instant next_report() const {
    return waiting_.count == 0 ? Instant::never() : not_before_;
  }
  [[nodiscard]] std::uint64_t total() const { return total_; }

 private:
  RejectionReport waiting_;
  Instant not_before_;
  std::uint64_t total_ = 0;
};

// Services only: each part has its own state, keeps a reference to the core, and gets what it alone
// needs as further arguments. The core outlives the parts. It and they are used on the loop thread.
//
//   Core core{settings, directory};   // `directory` outlives the core
struct Core {
  const Settings settings;
  RuntimeDirectory& directory;
  const std::shared_ptr<RecordLog> log = directory.log();
  Records records{directory.path()};
  KillFiles kill_files{directory.path(), records.boot_id()};
  SideThreads side_threads{settings.realtime};
  EvidenceDesk desk{side_threads};
  EventLoop loop{};
  Rejections rejections{};
  LostTime lost{};  // time in which the server could not run
  const ScopePolicy policy{settings, lost};
  Workers workers{};
  Counters counters{};
  bool wants_scan = false;  // at once: deadlines may have changed since the last scan

  // Returns what a worker's page says of its Python stacks. There is one interpreter in a process,
  // so the first page that has a dump signal counts.
  [[nodiscard]] std::optional<PythonDump> python_dump_of(const Worker& worker) const {
    for (const auto& page : worker.pages) {
      if (const std::uint32_t signal = page->dump_signal(); signal != 0) {
        return PythonDump{signal, directory.pages().stacks_path(page->name()), page->program()};
      }
    }
    return std::nullopt;
  }
};

}  // namespace filetimer
