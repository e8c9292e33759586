// The Python stacks of a worker whose page names the signal and the file of its faulthandler
// (docs/protocol.md). The server sends the signal, and the worker's signal handler writes the
// stacks of all threads to the file. That works even if a thread never releases the interpreter's
// lock.
//
// The signal may end a system call that the worker waits in, so it is sent only after a verdict.
// Used on side threads.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {

// What the worker's page says of its faulthandler. The page may say anything: both are checked.
struct PythonDump {
  std::uint32_t signal = 0;
  std::string path;
  std::uint64_t program = 0;  // see WorkerPage::program()
};

// How long a dump may take, from the signal to its end.
inline constexpr Duration kPythonDumpLimit = std::chrono::seconds{1};

// Sends the signal and waits for the dump, at most until `until` and for kPythonDumpLimit. Adds the
// stacks to `evidence`, or the reason why there are none. Sends no signal unless the kernel says
// that the worker catches it, since the default action of a signal would end the worker, and none
// to another program than that of the page, for which the signal may mean anything.
void take_python_dump(const Process& process, const PythonDump& dump, Instant until,
                      Evidence& evidence);

// Parses the text that faulthandler writes. Returns the oldest thread, which is the main one,
// first.
std::vector<PythonThread> parse_python_dump(std::string_view text);

}  // namespace filetimer
