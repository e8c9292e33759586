// Writes lines to the server's pipe. The functions of lines may be called in any thread and any
// forked child. They have no state, and do not block, throw or raise SIGPIPE.
//
// The pipe is opened and closed for every line. Holding it open would be cheaper, but PyTorch's
// server blocks in readline() for as long as any writer holds its pipe, and kills no worker
// meanwhile.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <filetimer/pipe_client.hpp>
#include <string>
#include <string_view>

#include "common/wire.hpp"

namespace filetimer {

// Writes `line`, with its newline at most kMaxAtomicWrite bytes, whole or not at all.
PipeClient::Sent send_line(const std::string& path, std::string_view line) noexcept;

// Returns whether a process reads the pipe. If none does, sets `error` to the errno that says why;
// 0: the file is no pipe. Writes nothing to the pipe.
bool has_reader(const std::string& path, int& error) noexcept;

// Returns that errno as one clear line.
std::string why_no_reader(int error);

// --- the requests of a PipeClient ---

// Returns the request that acquires a timer, or renews it. `scope_id` must outlive the request.
wire::Request acquire_request(std::chrono::nanoseconds after, std::string_view scope_id,
                              const PipeTimerOptions& options);
// Returns the request that releases a timer of the process `pid`; 0: of this one.
wire::Request release_request(std::string_view scope_id, pid_t pid);
// Writes the request to the pipe. Does not block. Throws std::bad_alloc.
PipeClient::Sent send_request(const std::string& pipe, const wire::Request& request);

}  // namespace filetimer
