// Everything a server needs before it can serve: its folder, checked and locked, its pipe, its log.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "common/result.hpp"
#include "timer_server/server.hpp"
#include "timer_server/server_lock.hpp"
#include "timer_server/settings.hpp"

namespace filetimer {

// A start that did not work: what main() says and returns.
struct StartFailure {
  int status = 0;  // kFailed, kAnotherServer, or kUsage
  std::string message;
};

// The folder that is held for as long as this object lives.
class Household {
 public:
  // Names, makes, checks and locks the folder. With a COMMAND and no folder named, a fresh one
  // inside the default folder, which remove() deletes.
  static tl::expected<Household, StartFailure> take(const Settings& settings);

  // Opens log and pipe, or takes the `passed` one. Starts the log's thread: no fork afterwards.
  // What it gives refers to this object, which must not move from then on.
  tl::expected<Premises, StartFailure> furnish(const Settings& settings, UniqueFd passed);

  // Warns where calls that the loop makes in the folder may hang. Call it after messages::start().
  void warn_about_file_system() const;

  // At the end: takes away what clients would take for a server, and a fresh folder whole.
  void leave();

 private:
  Result<std::optional<Premises::Restored>> restore();
  Status point_to_log() const;
  explicit Household(ServerLock lock) : lock_(std::move(lock)) {}

  std::string dir_;
  std::string pipe_;
  std::string log_;
  BoardFile::Terms terms_;
  bool is_fresh_ = false;
  bool has_passed_pipe_ = false;  // and leaves the way to it in place
  ServerLock lock_;
};

}  // namespace filetimer
