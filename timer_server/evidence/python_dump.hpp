// The Python stacks of a worker that has registered faulthandler on a signal and said so on its
// page: the server sends the signal, the worker's handler writes the stacks of all threads into a
// file (docs/protocol.md), also while another thread holds the interpreter's lock for ever.
//
// A signal may wake what the worker waits in, so it is sent to nobody whose scope has not expired.
// On a side thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/process.hpp"

namespace filetimer {

// How a worker is asked for it, from its page.
struct PythonDump {
  std::uint32_t signal = 0;
  std::string path;
};

// From the signal to the end of the dump.
inline constexpr Duration kPythonDumpLimit = std::chrono::seconds{1};

// Asks and waits, at most until `until`. Adds to `evidence` what came, or why nothing did. Nothing
// is sent to a worker that would not survive it: the kernel must say that it catches the signal.
void take_python_dump(const Process& process, const PythonDump& dump, Instant until,
                      Evidence& evidence);

// From the text that faulthandler writes; the oldest thread, which is the main one, first.
std::vector<PythonThread> parse_python_dump(std::string_view text);

}  // namespace filetimer
