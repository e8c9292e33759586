// The files of PyTorch's flight recorder, as the environment of a worker names them. A thread of
// each rank reads a FIFO, and at each byte dumps its last collectives into a file
// (DumpPipe and DebugInfoWriter in PyTorch's torch/csrc/distributed/c10d).
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer {

struct RecorderFiles {
  // <TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe, or of TORCH_FR_DEBUG_INFO_PIPE_FILE
  std::string pipe;
  // Where the dump may be. The variables count first; their names and the default differ between
  // versions of PyTorch. Not empty unless `unusable` says why.
  std::vector<std::string> dumps;
  std::string unusable;  // why the rank cannot be asked; empty: it can
};

// The longest path that is used. A record has the paths of many ranks.
inline constexpr std::size_t kMaxRecorderPathBytes = 512;

// Returns the files that an environment names, or null if it names no pipe. Absolute paths alone
// are used: the server does not know in which folder the worker was when it made its FIFO.
std::shared_ptr<const RecorderFiles> recorder_files_from(std::string_view environ_block,
                                                         std::optional<int> rank);

}  // namespace filetimer
