// Bytes for the pipe, as PyTorch's client makes them and as nobody should.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

#include "common/posix.hpp"

namespace filetimer::testing {

// One line with its newline. `expiration` is Unix seconds.
std::string version1(pid_t pid, std::string_view scope, double expiration, int signal = SIGKILL);
// The same with the number as it is to stand on the wire.
std::string version1_text(pid_t pid, std::string_view scope, std::string_view expiration,
                          std::string_view signal = "9");

std::string acquire(pid_t pid, std::string_view scope, std::chrono::milliseconds from_now,
                    int signal = SIGKILL);
// A deadline far behind every test, for scopes that must not expire.
std::string acquire_far(pid_t pid, std::string_view scope, int signal = SIGKILL);
// A deadline long past: expires as soon as it is judged.
std::string acquire_past(pid_t pid, std::string_view scope, int signal = SIGKILL);
std::string release(pid_t pid, std::string_view scope);

// Whether there is a pipe that somebody reads. A server makes its pipe and then opens it; in
// between nobody can write to it.
bool is_read_pipe(const std::string& path);
// Opens the pipe for writing without waiting for a reader; fails the test when there is none.
UniqueFd open_pipe(const std::string& fifo);
// Writes all of it, waiting for room within kBound.
void write_all(int fd, std::string_view bytes);
// Open, write, close.
void send_raw(const std::string& fifo, std::string_view bytes);

}  // namespace filetimer::testing
