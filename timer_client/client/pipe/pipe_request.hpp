// The two requests of a PipeClient, and their way onto the pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <filetimer/pipe_client.hpp>
#include <string>
#include <string_view>

#include "common/wire.hpp"

namespace filetimer {

// Returns the request that acquires a timer, or renews it. `scope_id` must outlive the request.
wire::Request acquire_request(std::chrono::nanoseconds after, std::string_view scope_id,
                              const PipeTimerOptions& options);
// Returns the request that releases a timer of the process `pid`; 0: of this one.
wire::Request release_request(std::string_view scope_id, pid_t pid);
// Writes the request to the pipe. Does not block. Throws std::bad_alloc.
PipeClient::Sent send_request(const std::string& pipe, const wire::Request& request);

}  // namespace filetimer
