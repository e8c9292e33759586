// The options of the server, from the command line and --config, read and checked.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/evidence/drop_ins.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

// What a kill signals: the worker and its descendants, or the worker alone.
enum class KillMode { kTree, kProcess };

// How workers are killed.
struct KillPolicy {
  KillMode mode = KillMode::kTree;
  // Of an expiry, also in a dry run; of its peers, and of a warning.
  EvidenceLevel evidence = EvidenceLevel::kProc;
  bool dry_run = false;
  Duration evidence_timeout = std::chrono::seconds{2};
  Duration kill_wait = std::chrono::seconds{30};
};

struct Settings {
  std::string dir;      // empty: by the environment, or the default
  std::string fifo;     // empty: `requests` in the runtime directory
  std::string log;      // empty: by the runtime directory
  std::string metrics;  // empty: none
  std::uint64_t log_max_bytes = std::uint64_t{64} << 20;
  bool detach = false;
  std::optional<Duration> default_timeout;
  std::optional<Duration> max_timeout;
  std::optional<double> warn_at;              // over 0, below 1
  Duration max_wait = std::chrono::hours{1};  // of a control request
  Duration max_interval = std::chrono::seconds{10};
  std::optional<Duration> grace;  // kForever: "off", no SIGKILL follows
  KillPolicy kill{.evidence = most_evidence_allowed()};
  // The treatment of a worker that is stopped, frozen or traced at its deadline.
  enum class Stopped { kDefer, kKill };
  Stopped stopped = Stopped::kDefer;
  std::string on_expiry;         // a shell command; empty: none
  std::string on_warning;        // likewise
  std::string evidence_command;  // likewise
  std::string evidence_dir;      // of drop-ins; empty: see drop_in_folders()
  std::vector<DropIn> drop_ins;  // what the server has found there
  bool realtime = false;
  messages::Level log_level = messages::Level::kInfo;
  std::vector<std::string> command;  // empty: none

  static constexpr Duration kLeastInterval = std::chrono::milliseconds{1};

  // The grace period of our own clients, if neither the scope nor --grace sets one. Requests of
  // other clients then have none, as with PyTorch's server.
  static constexpr Duration kDefaultGrace = std::chrono::seconds{10};
};

// Returns the settings. Otherwise prints help, version or one error line, and returns the exit
// status of main().
tl::expected<Settings, int> read_settings(int argc, char** argv);

// The exit status of main(), as --help lists it.
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
