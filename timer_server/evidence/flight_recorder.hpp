// The flight recorder of one rank: PyTorch's record of its last collectives, which the rank dumps
// into a file when a byte comes through its FIFO (recorder_files.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "timer_server/system/recorder_files.hpp"

namespace filetimer {

// Asks one rank for a dump, and looks until the dump is there:
//
//   recorder.ask();
//   while (recorder.is_waiting()) {  // after a pause, within a time limit
//     recorder.look();
//   }
//
// A dump is a file of the worker's user that has changed since before the byte, and has not changed
// between two looks. The contents of the file are never read. Both functions do not wait for the
// other end of a FIFO, but may wait for a file system. Used on side threads.
class FlightRecorder {
 public:
  // `uid`: the user of the worker, to whom FIFO and dump have to belong. `root`: the
  // root directory of the worker, such as /proc/PID/root of a worker in a container. Symlinks are
  // followed within it.
  FlightRecorder(std::shared_ptr<const RecorderFiles> files, uid_t uid, std::string root = "/");

  // Writes one byte to the FIFO, after a look at the files as they are before. If the byte cannot
  // be written, reason() says why.
  void ask();
  // Looks once whether there is a dump, and whether it is unchanged since the last look.
  void look();

  // Returns whether the byte was written and no look has found an unchanged dump yet.
  [[nodiscard]] bool is_waiting() const { return stage_ == Stage::kAsked; }
  // Returns the path of the dump as the environment names it, or an empty text.
  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns the size of the dump.
  [[nodiscard]] std::int64_t size() const { return size_; }
  // Returns why there is no dump, empty if there is one.
  [[nodiscard]] std::string reason() const;

 private:
  enum class Stage { kNew, kAsked, kRests, kFailed };
  // Differs between two states of a file.
  struct FileState {
    ino_t inode = 0;
    std::int64_t size = 0;
    std::int64_t changed_ns = 0;  // st_mtim
    friend bool operator==(const FileState&, const FileState&) = default;
  };

  // Returns nothing if there is no regular file of the worker's user.
  [[nodiscard]] std::optional<FileState> state_of(const std::string& path) const;
  // Returns why the byte was not written, or an empty text.
  [[nodiscard]] std::string write_byte() const;

  const std::shared_ptr<const RecorderFiles> files_;
  const uid_t uid_;
  const std::string root_;
  Stage stage_ = Stage::kNew;
  std::string failure_;
  std::vector<std::optional<FileState>> before_;  // of each of files_->dumps
  std::vector<std::optional<FileState>> last_;    // likewise, at the last look
  std::string path_;
  std::int64_t size_ = 0;
};

}  // namespace filetimer
