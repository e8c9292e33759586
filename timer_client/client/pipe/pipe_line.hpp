// Writes one line to the server's pipe. The functions may be called in any thread and any forked
// child. They have no state, and do not block, throw or raise SIGPIPE.
//
// The pipe is opened and closed for every line. Holding it open would be cheaper, but PyTorch's
// server blocks in readline() for as long as any writer holds its pipe, and kills no worker
// meanwhile.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace filetimer {

enum class LineSent {
  kYes,
  kBusy,      // the pipe is full, or the process has no descriptor to spare
  kNoReader,  // no process reads the pipe, or this process can open no pipe at the path
};

// Writes `line`, with its newline at most kMaxAtomicWrite bytes, whole or not at all.
LineSent send_line(const std::string& path, std::string_view line) noexcept;

// Returns whether a process reads the pipe. If none does, sets `error` to the errno that says why;
// 0: the file is no pipe. Writes nothing to the pipe.
bool has_reader(const std::string& path, int& error) noexcept;

// Returns that errno as one clear line.
std::string why_no_reader(int error);

}  // namespace filetimer
