// One line to the server's pipe, from any thread and any forked child: nothing here blocks, throws
// or raises SIGPIPE, and there is no state.
// The pipe is opened and closed for every line. Holding it open would be cheaper, but PyTorch's
// server sits in readline() for as long as any writer holds its pipe, and kills nobody meanwhile.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace filetimer {

enum class LineSent {
  kYes,
  kBusy,      // the pipe is full, or the process has no descriptor to spare: try again
  kNoReader,  // no server is behind the pipe, or there is no pipe that this process may write to
};

// `line` with its newline, at most kMaxAtomicWrite bytes: it is written whole or not at all.
LineSent send_line(const std::string& path, std::string_view line) noexcept;

// Whether a server reads the pipe; else the errno that says why not, 0 when what is there is no
// pipe. Writes nothing.
bool has_reader(const std::string& path, int& error) noexcept;

// That errno as one clear line.
std::string why_no_reader(int error);

}  // namespace filetimer
