// Lines for the request pipe: as PyTorch's client writes them, and wrong ones.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

#include "common/posix.hpp"

namespace filetimer::testing {

// Returns a line with its newline. `expiration` is in Unix seconds.
std::string version1(pid_t pid, std::string_view scope, double expiration, int signal = SIGKILL);
double unix_now();

std::string acquire(pid_t pid, std::string_view scope, std::chrono::milliseconds from_now,
                    int signal = SIGKILL);
// A deadline after the end of every test, for scopes that must not expire.
std::string acquire_far(pid_t pid, std::string_view scope, int signal = SIGKILL);
// A deadline that has passed when the server reads it: expires as soon as it is judged. It is not
// before the start of the worker.
std::string acquire_past(pid_t pid, std::string_view scope, int signal = SIGKILL);
std::string release(pid_t pid, std::string_view scope);
// Returns a line with keys that only our own client writes.
std::string with_own_keys(std::string line, std::string_view keys);

// Returns whether there is a pipe with a reader. A new pipe of a server has none until the server
// has opened it.
bool is_read_pipe(const std::string& path);
// Opens the pipe for writing without waiting. Fails the test if it has no reader.
UniqueFd open_pipe(const std::string& fifo);
// Writes all bytes, and waits for room at most kBound.
void write_all(int fd, std::string_view bytes);
// Opens the pipe, writes and closes it.
void send_raw(const std::string& fifo, std::string_view bytes);

}  // namespace filetimer::testing
