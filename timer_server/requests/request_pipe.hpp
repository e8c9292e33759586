// The named pipe that requests come through: made, opened, and kept at its path while others remove
// or replace it. Reading never blocks. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

class RequestPipe {
 public:
  // Takes the pipe that is at `path`, or makes one with mode 0600. Refused: what is not a pipe,
  // another user's, one that others may write to; with EBUSY one that a process reads already.
  static Result<RequestPipe> open(const std::string& path);

  // Takes the pipe at `path` from whoever holds it open between servers and has passed it on: it
  // stays where it is, with what is in it. Refused: what open() refuses, and what is not at `path`,
  // unless it was removed; look() tells that then.
  static Result<RequestPipe> take(const std::string& path, UniqueFd passed);

  RequestPipe(RequestPipe&&) noexcept = default;
  RequestPipe& operator=(RequestPipe&&) noexcept = default;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  // What the pipe can hold: the most that one turn of the loop reads.
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  // What is in it now. Writes up to PIPE_BUF are never split, so it ends where a line does.
  [[nodiscard]] std::size_t waiting() const;
  // Somebody holds it open for the next server.
  [[nodiscard]] bool outlives_us() const { return outlives_us_; }

  // Bytes read into `room`, 0 when nothing is there.
  std::size_t read(std::span<char> room);

  enum class Condition {
    kInPlace,
    kGone,       // nothing at the path, or what is there can be set aside: make a new one
    kTakenOver,  // another pipe is there and somebody reads it: not ours to fight over
  };
  [[nodiscard]] Condition look() const;

  // Removes the pipe from its path if it still is this one and ends with us.
  void remove_from_path() const;

 private:
  RequestPipe(std::string path, UniqueFd fd, bool outlives_us);

  std::string path_;
  UniqueFd fd_;
  std::size_t capacity_ = 0;
  bool outlives_us_ = false;
};

// Removes a pipe from its path after the RequestPipe itself has gone.
class PipeRemover {
 public:
  explicit PipeRemover(const RequestPipe& pipe);
  // Does nothing where the path leads to another file by now, or where the pipe outlives us.
  void remove() const;

 private:
  std::string path_;  // empty: the pipe outlives us
  struct stat identity_ {};
};

// What lies at `path` and is no pipe moves out of the way, to PATH.not-a-pipe; nothing is deleted.
Status set_aside(const std::string& path);

}  // namespace filetimer
