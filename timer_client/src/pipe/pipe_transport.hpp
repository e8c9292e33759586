// Version-1 lines on a named pipe: what PyTorch's FileTimerServer reads, and ours.
// No member blocks, throws or raises SIGPIPE; there is no state (see pipe_line.hpp), so any thread
// and any forked child may call.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/transport.hpp>
#include <string>

#include "common/result.hpp"

namespace filetimer {

class PipeTransport final : public Transport {
 public:
  // Sends nothing, as where no server is, to a server whose board in `run_folder` says that it
  // lives in another pid namespace. Empty: no board tells.
  explicit PipeTransport(std::string path, std::string run_folder = {})
      : path_(std::move(path)), run_folder_(std::move(run_folder)) {}

  Sent send(const TimerRequest& request) noexcept override;
  bool server_is_there(std::string& why) noexcept override;
  [[nodiscard]] std::string target() const override { return path_; }

 private:
  std::string path_;
  std::string run_folder_;
};

// The line that says `request`, with its newline.
std::string version_1_line(const TimerRequest& request);

}  // namespace filetimer
