// The metrics of the server: their text in the format of Prometheus (exposition format 0.0.4), and
// the file of --metrics.
// SPDX-License-Identifier: MIT
#pragma once

#include <future>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/status_report.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// Returns the text, which ends with a newline. Does no input or output, and reads no clock.
// `is_running`: false when the server ends.
std::string metrics_text(const ServerStatus& status, std::string_view version, bool is_running);

// Replaces a file by a new one with `text` and mode 0644: a reader sees all of the old file, or all
// of the new one. The temporary file beside it has the process id in its name and does not end with
// .prom. Fails if there is something else than a regular file at the path.
Status replace_file(const std::string& path, std::string_view text);

// Writes metrics on a side thread, because a full disk or a hung file server may take any time to
// answer. A failure costs one warning until the file is written again.
class MetricsFile {
 public:
  // How long a write may take before it is a failure. Sweeps may come faster than a disk is.
  static constexpr Duration kAnswerLimit = std::chrono::seconds{1};
  // How long write_last() waits.
  static constexpr Duration kLastLimit = std::chrono::milliseconds{500};

  // `path` is absolute; empty: no file is wanted. The side threads must outlive this object.
  MetricsFile(std::string path, SideThreads& side_threads)
      : path_(std::move(path)), side_threads_(side_threads) {}
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  [[nodiscard]] bool is_wanted() const { return !path_.empty(); }
  // Returns whether a file is wanted and can be written now. Returns false if the last one is not
  // written yet, and warns if that takes longer than kAnswerLimit.
  bool is_ready();
  // Begins to write, behind a file that is being written.
  void write(std::string text);
  // Writes the last file, and waits for it.
  void write_last(std::string text);

 private:
  void note(const Status& written);
  void note_failure(const std::string& why);

  const std::string path_;
  SideThreads& side_threads_;
  std::future<Status> written_;  // of the last write; not valid before the first
  Instant began_;                // to write it
  bool has_failed_ = false;      // and the warning is given
};

}  // namespace filetimer
