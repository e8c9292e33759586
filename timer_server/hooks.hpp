// --on-expiry: one shell command for each worker whose kill has ended, however it ended. It gets
// the records on its standard input and FILETIMER_* in its environment; what became of it is a
// `hook` record. Time, number and output are bounded, and nothing waits for it: advance() takes
// each hook as far as it can go now. Loop thread only.
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
#include "timer_server/inheritance.hpp"
#include "timer_server/record_log.hpp"
#include "timer_server/records.hpp"

namespace filetimer {

struct HookLimits {
  Duration time = std::chrono::seconds{30};          // then SIGTERM to its process group
  Duration grace = std::chrono::seconds{5};          // then SIGKILL
  Duration kill_wait = std::chrono::seconds{2};      // then it is left to itself
  std::size_t running = 8;                           // at the same time; others wait
  std::size_t waiting_bytes = std::size_t{8} << 20;  // of what waits; one more is dropped
  std::size_t output_shown = 1024;                   // of its output, in the record
  // Read and counted; past this its output is closed.
  std::size_t output_read = std::size_t{1} << 20;
};

// Why a hook runs.
struct HookOccasion {
  WorkerIdentity worker;
  std::string id;
  std::string incident;
  std::string scope;
  KillVerdict verdict = KillVerdict::kDead;
  std::string input;                // lines for its standard input
  std::uint64_t record_number = 0;  // of the log: the hook starts when it is on disk
};

class Hooks {
 public:
  // No `command`: no hooks. `environment` is what they get besides their own variables.
  Hooks(std::string command, std::vector<std::string> environment, Inheritance inheritance,
        const Records& records, RecordLog& log, HookLimits limits = {});
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void add(HookOccasion occasion, Instant now);
  // Gives the time at which to call again at the latest. Also to be called when the log has news
  // and when event_fd() is readable.
  Instant advance(Instant now);
  [[nodiscard]] int event_fd() const { return events_.get(); }
  [[nodiscard]] bool idle() const { return running_.empty() && waiting_.empty(); }
  // The server stops: what runs is killed, what waits is dropped, and each is recorded.
  void give_up();

 private:
  struct Waiting {
    HookOccasion occasion;
    Instant start_by;  // with or without its record on disk
  };
  struct Running;

  void start(HookOccasion occasion, Instant now);
  void take_events();
  void feed(Running& hook) const;
  void close(UniqueFd& fd) const;
  void read_output(Running& hook);
  void look_at_time(Running& hook, Instant now);
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
  UniqueFd events_;  // an epoll of the pidfds and pipes of what runs
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace filetimer
