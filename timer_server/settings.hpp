// What a server is told to do: the command line and --config, read and checked.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/kill_ladder.hpp"
#include "timer_server/messages.hpp"

namespace filetimer {

struct Settings {
  std::string dir;   // empty: the environment or the default says
  std::string fifo;  // empty: `requests` in the run folder
  std::string log;   // empty: by the run folder
  std::uint64_t log_max_bytes = std::uint64_t{64} << 20;
  bool detach = false;
  std::optional<Duration> default_timeout;
  std::optional<Duration> max_timeout;
  std::optional<double> warn_at;              // over 0, below 1
  Duration max_wait = std::chrono::hours{1};  // what a question may take
  Duration max_interval = std::chrono::seconds{10};
  // What --grace said, if it did: no value inside means "off".
  std::optional<std::optional<Duration>> grace;
  KillPolicy kill{.evidence = most_evidence_allowed()};
  // What to do with a worker that is stopped, frozen or traced at its deadline.
  enum class Stopped { kDefer, kKill };
  Stopped stopped = Stopped::kDefer;
  // How many workers should have shown up, and by when after the start; 0: nobody is expected.
  std::size_t expect_workers = 0;
  std::optional<Duration> join_timeout;
  enum class Missing { kReport, kStop };
  Missing missing = Missing::kReport;
  std::string on_expiry;  // a shell command; empty: none
  bool realtime = false;
  messages::Level log_level = messages::Level::kInfo;
  std::vector<std::string> command;  // empty: serve until told to stop

  static constexpr Duration kLeastInterval = std::chrono::milliseconds{1};

  // From the signal to SIGKILL, for who did not say: 10 s for our own clients, and for requests of
  // others one signal and no more, as the reference server does.
  static constexpr Duration kDefaultGrace = std::chrono::seconds{10};
};

// How reading the command line ended when there is nothing to serve.
struct EarlyExit {
  int status = 0;
};

// Prints help, version or one clear error line itself.
std::variant<Settings, EarlyExit> read_settings(int argc, char** argv);

// The exit table of --help; also what main() returns.
namespace exit_status {
inline constexpr int kStopped = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kAnotherServer = 3;
inline constexpr int kUnkillable = 8;
// With COMMAND, as GNU timeout and env.
inline constexpr int kServerFailed = 125;
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;
}  // namespace exit_status

}  // namespace filetimer
