// Writes lines to a server's pipe: wake-up messages, and timers of other processes or of a program
// that has only the pipe, such as that of PyTorch's server. The functions have no state; any thread
// and any forked child may call them. They do not block and raise no SIGPIPE.
//
// The pipe is opened and closed for every line. Holding it open would be cheaper, but PyTorch's
// server blocks in readline() for as long as any writer holds its pipe, and kills no worker
// meanwhile.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/wire.hpp"

namespace filetimer {

enum class Sent {
  kYes,       // the whole line is in the pipe
  kBusy,      // the pipe is full, or this process has no descriptor to spare: try again
  kNoServer,  // no process reads the pipe, or the pipe cannot be opened
};

// Writes `line`, with its newline at most kMaxAtomicWrite bytes, whole or not at all.
Sent send_line(const std::string& path, std::string_view line) noexcept;
Sent send_request(const std::string& path, const wire::Request& request);

// Returns whether a process reads the pipe. Writes nothing to it.
bool has_reader(const std::string& path) noexcept;
// Returns why none does, as one clear line; empty: one does.
std::string why_no_reader(const std::string& path);

// The options of a timer, besides its timeout and name.
struct PipeTimerOptions {
  // The process that the server kills; 0: this one. The server takes the pid for one of its own pid
  // namespace, so client and server must share that.
  pid_t pid = 0;
  // The first signal: 1 to 64; 0: the expiry is recorded and no process is signalled.
  int signal = 9;
  // From that signal to SIGKILL; kForever: never. Not set: the server's --grace.
  std::optional<Duration> grace{};
  // From the acquire to a warning. Not set: the server's --warn-at.
  std::optional<Duration> warn_after{};
};

// Returns the request that acquires a timer, or renews it: pid and name are its identity. `after`:
// its timeout from now on. `scope_id`, a bounded_scope_name(), must outlive the request.
wire::Request acquire_request(Duration after, std::string_view scope_id,
                              const PipeTimerOptions& options = {});
// Returns the request that releases a timer of the process `pid`; 0: of this one.
wire::Request release_request(std::string_view scope_id, pid_t pid = 0);

}  // namespace filetimer
