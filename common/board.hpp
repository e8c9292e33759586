// The status page, version 1: the file `server` of the runtime directory. The server maps it for
// writing, its clients for reading. The file keeps its inode from one server to the next, so a
// client that has mapped it once finds every later server without opening a file again.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

inline constexpr std::uint64_t kBoardMagic = 0x4452'414F'4252'4D54;  // "TMRBOARD" as bytes
inline constexpr std::uint32_t kBoardVersion = 1;
inline constexpr std::size_t kBoardBytes = 4096;

// The announcement of a drain or a shutdown. A client can wait on the word with futex(2); each
// change wakes all waiting threads.
enum class Announcement : std::uint32_t {
  kNone = 0,
  kDraining = 1,  // new scopes are not watched
  kShutdown = 2,  // likewise, and the server ends when no scope is open
};

enum class ServerState : std::uint32_t { kNone = 0, kServing = 1, kStopped = 2 };

struct alignas(64) Board {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t bytes;
  BootId boot;
  std::atomic<std::int32_t> server_pid;  // in the server's pid namespace
  std::atomic<std::uint32_t> state;      // see ServerState
  // The inode of the server's pid namespace, in which a pid on the pipe is interpreted.
  std::atomic<std::uint64_t> pid_namespace;  // 0: not known
  std::atomic<std::uint64_t> reserved[2];
  // On a cache line of its own, because every acquire of every worker reads it.
  alignas(64) std::atomic<std::int64_t> next_wake;  // see wake_protocol.hpp
  std::atomic<std::int64_t> max_timeout;            // ns, --max-timeout; max: none
  std::atomic<std::uint64_t> incarnation;           // incremented at every start of a server
  std::atomic<std::uint32_t> warn_at;               // --warn-at in parts of 2^32; 0: none
  std::atomic<std::uint32_t> announcement;          // see Announcement
  std::atomic<std::int64_t> default_timeout;        // ns, --default-timeout; 0: none
  std::atomic<std::uint64_t> scans;                 // how many began, of all servers
  std::atomic<std::uint64_t> counts_scans;          // the last incarnation that counts them
};

// Fails if the open file at `path` is neither blank nor a status page of this version, both of
// which may have been cut short. Another file is left alone: it is somebody's own, or workers and a
// server of another version may have it mapped.
inline Status check_board(int fd, const std::string& path) {
  Board found{};
  const ssize_t bytes = retry_eintr(
      [&] { return ::pread(fd, static_cast<void*>(&found), offsetof(Board, bytes), 0); });
  if (bytes < 0) {
    return system_error("cannot read '" + path + "'");
  }
  const std::size_t compared = std::min(static_cast<std::size_t>(bytes), sizeof kBoardMagic);
  if (found.magic != 0 && std::memcmp(&found.magic, &kBoardMagic, compared) != 0) {
    return failure("'" + path + "' is no status page: expected one, or nothing");
  }
  if (found.magic == kBoardMagic && found.version != kBoardVersion) {
    return failure("'" + path + "' is a status page of version " + std::to_string(found.version) +
                   ": expected version " + std::to_string(kBoardVersion) + ", or nothing");
  }
  return {};
}

// Values of next_wake besides an Instant.
inline constexpr std::int64_t kWakeAlways = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kWakeNever = std::numeric_limits<std::int64_t>::min();

static_assert(sizeof(Board) == 128);
static_assert(offsetof(Board, next_wake) == 64);

}  // namespace filetimer
