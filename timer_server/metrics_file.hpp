// The file of --metrics.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/metrics.hpp"
#include "timer_server/system/loop_thread.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// Replaces a file by a new one with `text` and mode 0644: a reader sees all of the old file, or all
// of the new one. The temporary file beside it has the process id in its name and does not end with
// .prom. Fails if there is something else than a regular file at the path.
Status replace_file(const std::string& path, std::string_view text);

// Identifies the file that was written last.
struct FileVersion {
  std::uint64_t inode = 0;
  std::int64_t modified_s = 0;
  std::int64_t modified_ns = 0;
  bool operator==(const FileVersion&) const = default;
};

// Writes metrics on a side thread, because a full disk or a hung file server may take any time to
// answer. A failure costs one warning until the file is written again, and another program that
// writes the same file costs one. Used on the loop thread.
class MetricsFile {
 public:
  // How long a write may take before it is a failure. Sweeps may come faster than a disk is.
  static constexpr Duration kAnswerLimit = std::chrono::seconds{1};

  // `path` is absolute; empty: write() does nothing. The side threads must outlive this object.
  MetricsFile(std::string path, SideThreads& side_threads)
      : path_(std::move(path)), side_threads_(side_threads) {}
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  [[nodiscard]] bool is_wanted() const { return !path_.empty(); }
  // Returns whether a file can be written now. Returns false if the last one is not written yet,
  // and warns if that takes longer than kAnswerLimit.
  bool is_ready();
  // Begins to write.
  void write(Metrics metrics);
  // Writes the last file, behind one that is being written. Waits at most `limit`.
  void write_last(Metrics metrics, Duration limit);

 private:
  void note(const Status& written);
  void note_failure(const std::string& why);
  void note_other_writer();

  const std::string path_;
  SideThreads& side_threads_;
  std::shared_future<Status> written_;  // of the last write; not valid before the first
  Instant began_;                       // to write it
  bool has_failed_ = false;             // and the warning is given
  bool has_noted_other_ = false;
  // Used by the side thread. A write begins when the one before has set written_.
  std::shared_ptr<std::optional<FileVersion>> last_version_ =
      std::make_shared<std::optional<FileVersion>>();
  LoopThread loop_thread_;
};

}  // namespace filetimer
