// Hooks: the shell command of --on-expiry, run once for each worker whose kill has ended.
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
#include "timer_server/event_loop.hpp"
#include "timer_server/inheritance.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"

namespace filetimer {

struct HookLimits {
  Duration time = std::chrono::seconds{30};      // then SIGTERM to its process group
  Duration grace = std::chrono::seconds{5};      // then SIGKILL
  Duration kill_wait = std::chrono::seconds{2};  // then the server stops watching it
  std::size_t running = 8;                       // at the same time; the others wait
  std::size_t waiting = 4096;                    // one more is dropped
};

// Why a hook runs.
struct HookOccasion {
  WorkerIdentity worker;
  std::string id;
  std::string incident;
  std::string scope;
  KillVerdict verdict = KillVerdict::kDead;
  std::uint64_t record_number = 0;  // of the log: the hook starts when it is on disk
};

// Starts hooks, ends those that run for too long, and records how each of them ended.
//
// A hook gets FILETIMER_* in its environment, nothing on its standard input, and the server's
// standard error as both of its outputs. Time and number of hooks are bounded. No kill waits for a
// hook. Used on the loop thread.
class Hooks {
 public:
  // Without a `command` there are no hooks. `environment` is what a hook gets besides its own
  // variables. The end of a hook wakes `loop`, which outlives the hooks.
  Hooks(sd_event* loop, std::string command, std::vector<std::string> environment,
        Inheritance inheritance, const Records& records, RecordLog& log, HookLimits limits = {});
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void add(HookOccasion occasion, Instant now);
  // Starts and ends hooks. Returns when to call it again at the latest; it is also to be called
  // when the log has news, and when a hook has ended.
  Instant advance(Instant now);
  [[nodiscard]] bool idle() const { return running_.empty() && waiting_.empty(); }
  // Kills the hooks that run, drops those that wait, and records each of them.
  void give_up();

 private:
  struct Waiting {
    HookOccasion occasion;
    Instant start_by;  // with or without its record on disk
  };
  struct Running;

  void start(HookOccasion occasion, Instant now);
  void check_time(Running& hook, Instant now);
  void end(Running& hook, Instant now);
  void did_not_run(const HookOccasion& occasion, HookResult result, std::string_view why);
  void record(const HookOccasion& occasion, HookOutcome outcome);
  [[nodiscard]] std::vector<std::string> environment_for(const HookOccasion& occasion) const;

  const std::string command_;
  const std::vector<std::string> environment_;
  const Inheritance inheritance_;
  const Records& records_;
  RecordLog& log_;
  const HookLimits limits_;
  sd_event* const loop_;
  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace filetimer
