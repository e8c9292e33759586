// Hooks: the shell commands of --on-expiry, run once for each worker whose kill has ended, and of
// --on-warning, run once when the soft deadlines of a worker have passed.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/inheritance.hpp"
#include "timer_server/system/loop_thread.hpp"

namespace filetimer {

struct HookLimits {
  Duration time = std::chrono::seconds{30};      // until SIGTERM to the hook's process group
  Duration grace = std::chrono::seconds{5};      // from SIGTERM to SIGKILL
  Duration kill_wait = std::chrono::seconds{2};  // from SIGKILL until the server abandons the hook
  std::size_t running = 8;                       // hooks at the same time; the others wait
  std::size_t waiting = 4096;                    // further hooks are dropped
};

// Shell commands; empty: no hook runs then.
struct HookCommands {
  std::string on_expiry{};
  std::string on_warning{};
};

// Why a hook runs.
struct HookOccasion {
  WorkerIdentity worker;
  std::string id;
  std::string incident;  // empty: a warning
  std::string scope;
  std::string_view verdict;  // $FILETIMER_VERDICT
  // Of the `killed` or `warned` record, which is synced before the hook starts.
  std::uint64_t record_number = 0;

  [[nodiscard]] bool is_warning() const { return incident.empty(); }
};

// Returns `environment` with the variables FILETIMER_* of the occasion.
std::vector<std::string> hook_environment(std::vector<std::string> environment,
                                          const HookOccasion& occasion, const Records& records,
                                          const RecordLog& log);

// Starts hooks, kills those that run for too long, and records how each of them ended.
//
// A hook gets the variables FILETIMER_*, an empty standard input, and the server's standard error
// for both of its outputs. HookLimits bounds the time and the number of hooks. No kill waits for a
// hook. Used on the loop thread.
class Hooks {
 public:
  // A hook gets `environment` and its own variables. The end
  // of a hook wakes `loop`. `loop`, `records` and `log` must outlive the hooks.
  Hooks(EventLoop& loop, HookCommands commands, std::vector<std::string> environment,
        Inheritance inheritance, const Records& records, RecordLog& log, HookLimits limits = {});
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  // Queues the hook of the occasion, if there is a command for it. Drops and records it if too many
  // hooks wait.
  void add(HookOccasion occasion, Instant now);
  // Starts and ends hooks. Returns when it must be called again at the latest; it must also be
  // called when the log has synced records, and when a hook has ended.
  Instant advance(Instant now);
  [[nodiscard]] bool idle() const { return running_.empty() && waiting_.empty(); }
  // Kills the running hooks, drops the waiting ones, and records each of them. Waits at most 100 ms
  // for the end of each killed hook.
  void stop();

 private:
  struct Waiting {
    HookOccasion occasion;
    Instant start_by;  // even if its record is not synced by then
  };
  struct Running;

  void start(HookOccasion occasion, Instant now);
  void check_time(Running& hook, Instant now);
  void end(Running& hook, Instant now);
  void record_not_run(const HookOccasion& occasion, HookResult result, std::string_view why);
  void record(const HookOccasion& occasion, HookOutcome outcome);

  [[nodiscard]] const std::string& command_for(const HookOccasion& occasion) const {
    return occasion.is_warning() ? commands_.on_warning : commands_.on_expiry;
  }

  const HookCommands commands_;
  const std::vector<std::string> environment_;
  const Inheritance inheritance_;
  const Records& records_;
  RecordLog& log_;
  const HookLimits limits_;
  EventLoop& loop_;
  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
  LoopThread loop_thread_;
};

}  // namespace filetimer
