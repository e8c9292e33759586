// The shell command of --evidence-command: the output of other programs about a hang, before the
// kill.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/system/event_loop.hpp"
#include "timer_server/system/inheritance.hpp"
#include "timer_server/system/loop_thread.hpp"

namespace filetimer {

// Runs the command once for each incident, and records its output. The signals of the incident's
// kills wait for the end of the command. The command is killed with its process group at its time
// limit. The commands of several incidents may run at the same time.
//
//   command.start(worker, id, incident, scope, now);  // when the record of the verdict is queued
//   ...
//   next = command.advance(now);
//   if (!command.is_running(incident)) { /* the signals may be sent */ }
//
// The command has an empty standard input, and the environment of a hook (--on-expiry) with
// FILETIMER_VERDICT=expired. Used on the loop thread. `loop`, `records` and `log` must outlive this
// object.
class EvidenceCommand {
 public:
  // The most bytes of the output that are recorded; further bytes are read and counted.
  static constexpr std::size_t kMaxOutput = kMaxCommandOutputBytes;
  // How long the end of a killed command is waited for.
  static constexpr int kEndWaitMs = 10;
  // The most commands at the same time: incidents begin at least Verdicts::kIncidentWindow apart.
  static constexpr std::size_t kMaxRunning = 4;

  // Runs nothing if `command` is empty. `limit`: --evidence-timeout.
  EvidenceCommand(EventLoop& loop, std::string command, Duration limit,
                  std::vector<std::string> environment, Inheritance inheritance,
                  const Records& records, RecordLog& log);
  ~EvidenceCommand();
  EvidenceCommand(const EvidenceCommand&) = delete;
  EvidenceCommand& operator=(const EvidenceCommand&) = delete;

  [[nodiscard]] bool is_wanted() const { return !command_.empty(); }
  // Starts the command for an incident, whose first expiry is `id`. If kMaxRunning commands run,
  // the one of the earliest incident is killed and recorded first.
  void start(const WorkerIdentity& worker, const std::string& id, const std::string& incident,
             const std::string& scope, Instant now);
  // Ends the commands that have exited or whose time is up. Returns when it must be called again at
  // the latest; it must also be called when `loop` has called a handler.
  Instant advance(Instant now);
  // Returns whether the command of this incident runs.
  [[nodiscard]] bool is_running(const std::string& incident) const;
  // Kills the commands and records what they have written.
  void stop();

 private:
  struct Running;

  static void read_output(Running& running);
  void end(Running& running, Instant now);
  void end_by_kill(Running& running, HookResult result, std::string_view reason, Instant now);

  EventLoop& loop_;
  const std::string command_;
  const Duration limit_;
  const std::vector<std::string> environment_;
  const Inheritance inheritance_;
  const Records& records_;
  RecordLog& log_;
  std::vector<std::unique_ptr<Running>> running_;  // the earliest incident first
  LoopThread loop_thread_;
};

}  // namespace filetimer
