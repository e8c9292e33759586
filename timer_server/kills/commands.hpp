// The commands that the server runs about expiries. Hooks: --on-expiry, once for each worker whose
// kill has ended, and --on-warning, once when the soft deadlines of a worker have passed. Evidence
// commands: drop-ins and --evidence-command, which show before a kill what other programs know.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/core.hpp"
#include "timer_server/system/own_children.hpp"

namespace filetimer {

// Starts commands, kills those that run for longer than kHookTime or --evidence-timeout, and
// records how each of them ended. A hook waits until its record is synced, or RecordLog::kStalled
// has passed, and fewer than kMaxHooks run.
//
// A command gets the variables FILETIMER_* and an empty standard input; signals go to its process
// group. A hook has the server's standard error for both of its outputs, and no kill waits for it.
// The outputs of evidence commands are recorded, and the signals of their incident's kills wait for
// their ends.
//
// Used on the loop thread.
class Commands {
 public:
  // Of hooks.
  static constexpr Duration kHookTime = std::chrono::seconds{30};
  static constexpr std::size_t kMaxHooks = 8;            // at the same time; the others wait
  static constexpr std::size_t kMaxHooksWaiting = 4096;  // of each kind; others are dropped
  // The most evidence commands that run at the same time; further ones are dropped.
  static constexpr std::size_t kMaxEvidenceCommands = 32;

  // The end of a command wakes the loop.
  explicit Commands(Core& core);
  ~Commands();

  // Queues the hook of the occasion, if there is a command for it. Drops and records it if too many
  // hooks wait.
  void add_hook(CommandOccasion occasion, Instant now);
  // Returns whether no hook runs or waits.
  [[nodiscard]] bool have_hooks_ended() const { return count_running(true) == commands_.size(); }

  // Starts the evidence commands for a recorded expiry of the last incident, side by side: the
  // drop-ins with the first expiry of each job in the incident, where the workers without a job
  // count as one; --evidence-command with the first expiry of all. Records the commands that are
  // dropped.
  void start_evidence(const CommandOccasion& occasion, Instant now);
  // Returns whether an evidence command of this incident runs.
  [[nodiscard]] bool is_gathering(const std::string& incident) const;

  // Records the commands that have ended, and ends those whose time is up. Must also be called when
  // the loop has called a handler.
  void end_commands(Instant now);
  // Starts a hook, which delays the signals that follow. Returns when both functions must be called
  // again at the latest; this one must also be called when the log has synced records.
  Instant start_hooks(Instant now);
  // Kills the running commands, drops the waiting hooks, and records each of them. Waits at most
  // 100 ms for the end of each killed command.
  void stop();

 private:
  struct Command;

  [[nodiscard]] std::size_t count_running(bool is_evidence) const;
  [[nodiscard]] const std::string& hook_for(const CommandOccasion& occasion) const {
    return occasion.incident.empty() ? core_.settings.on_warning : core_.settings.on_expiry;
  }
  [[nodiscard]] std::vector<std::string> environment_for(const CommandOccasion& occasion) const;
  void start_evidence_command(const CommandOccasion& occasion, std::string_view drop_in,
                              ChildStart start, Instant now);
  // Returns whether the command runs. Records it if it does not.
  bool run(Command& command, Instant now);
  std::string start(Command& command);
  // Each returns whether the command is over and recorded.
  bool step(Command& command, Instant now);
  bool end_by_kill(Command& command, HookResult result, std::string_view reason, Duration wait,
                   Instant now);
  bool end(Command& command, Instant now);
  void record(const Command& command);
  void drop(Command& command, std::string_view why);

  Core& core_;
  const std::vector<std::string> environment_;  // without a command's own variables
  // The earliest first, but the waiting hooks of kills before those of warnings. A list stays whole
  // if a step throws.
  std::list<std::unique_ptr<Command>> commands_;
  std::string incident_;                       // the last one with evidence commands
  std::set<std::optional<std::string>> jobs_;  // its jobs for which they were started
};

}  // namespace filetimer
