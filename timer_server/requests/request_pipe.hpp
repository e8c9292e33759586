// The request pipe: the named pipe from which the server reads requests.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// Opens the pipe, reads it without blocking, and notices when the pipe is removed or replaced. Used
// on the loop thread.
class RequestPipe {
 public:
  // Opens the pipe at `path`, or makes one with mode 0600. Fails if the path is not a pipe, belongs
  // to another user, or may be written by others. Fails with EBUSY if a process reads the pipe.
  static Result<RequestPipe> open(const std::string& path);

  // Opens the pipe that the service manager holds open and has passed to the server. The pipe keeps
  // its path and its content. Fails as open() does, and if the pipe is at another path. A pipe that
  // was removed from `path` is taken; condition() reports it as kGone.
  static Result<RequestPipe> take(const std::string& path, UniqueFd passed);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns the bytes that the pipe can hold. An iteration of the loop reads no more than that.
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  // Returns the bytes that are in the pipe now. Writes of up to PIPE_BUF bytes are never split, so
  // these bytes end at the end of a line.
  [[nodiscard]] std::size_t waiting() const;
  // Returns whether the service manager keeps the pipe and its content for the next server.
  [[nodiscard]] bool outlives_server() const { return outlives_server_; }

  // Returns the number of bytes, 0 if the pipe is empty.
  std::size_t read(std::span<char> room) {
    const ssize_t got = retry_eintr([&] { return ::read(fd_.get(), room.data(), room.size()); });
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }

  enum class Condition {
    kInPlace,
    kGone,       // the path has no pipe that is read: a new one can be made there
    kTakenOver,  // the path has another pipe, which another process reads
  };
  [[nodiscard]] Condition condition() const;

  // Removes the pipe from its path, unless another file is there or the pipe outlives the server.
  void remove_from_path() const {
    if (fd_ && !outlives_server_ && identity_of(path_) == identity_of(fd_.get())) {
      ::unlink(path_.c_str());
    }
  }
  // Ends the reading of a pipe that was removed from its path: writers that still have it open get
  // EPIPE.
  void close() { fd_.reset(); }

 private:
  RequestPipe(std::string path, UniqueFd fd, bool outlives_server);

  std::string path_;
  UniqueFd fd_;
  std::size_t capacity_ = 0;
  bool outlives_server_ = false;
};

}  // namespace filetimer
