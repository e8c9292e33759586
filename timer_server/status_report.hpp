// What the server reports about itself: in the answer to a status request, in the records of its
// start and stop, and in its metrics: their text in the format of Prometheus (exposition format
// 0.0.4), and the file of --metrics.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/board.hpp"
#include "common/clock.hpp"
#include "common/json_writer.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/core.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// The state of a server at one moment.
struct ServerStatus {
  const Counters& counters;
  std::string dir{};
  ClockReading started{};
  ClockReading now{};
  pid_t command_pid = 0;                // 0: there is no COMMAND
  std::optional<int> command_status{};  // after its end: as the shell has it, 128+N for a signal
  Announcement announcement = Announcement::kNone;
  std::size_t workers = 0;
  std::size_t open_scopes = 0;
  std::uint64_t rejected = 0;
  std::size_t kills_under_way = 0;
  std::size_t unkillable = 0;  // workers that are alive after SIGKILL
  std::size_t waiting_clients = 0;
  std::string log_trouble{};  // empty: it can be written
  RecordLog::Backlog backlog{};
};

// What the system lets the server do to its workers.
struct KillPath {
  bool signal = false;         // whether a signal can be sent through a pidfd
  bool ptrace = false;         // whether processes of the server's user can be traced
  bool kernel_stacks = false;  // whether /proc/PID/stack can be read
};

// Tries it on the server itself, when it starts, so that a missing permission is reported then and
// not at the first hang. Warns if no signal can be sent.
KillPath check_kill_path();

// Adds the fields of the answer to a status request.
void write_status(JsonWriter& json, const Core& core, const ServerStatus& status,
                  const KillPath& kill_path);

std::string start_record(const Core& core, const KillPath& kill_path, std::size_t adopted_scopes,
                         std::size_t ended_scopes);
std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason);

// Returns the text, which ends with a newline. Does no input or output, and reads no clock.
// `is_running`: false when the server ends.
std::string metrics_text(const ServerStatus& status, std::string_view version, bool is_running);

// Replaces a file by a new one with `text` and mode 0644: a reader sees all of the old file, or all
// of the new one. The temporary file beside it has the process id in its name and does not end with
// .prom. Fails if there is something else than a regular file at the path.
Status replace_file(const std::string& path, std::string_view text);

// Writes metrics on a side thread, because a full disk or a hung file server may take any time to
// answer. A failure costs one warning until the file is written again.
class MetricsFile : NotCopied {
 public:
  // How long a write may take before it is a failure. Sweeps may come faster than a disk is.
  static constexpr Duration kAnswerLimit = std::chrono::seconds{1};
  static constexpr Duration kLastLimit = std::chrono::milliseconds{500};

  // `path` is absolute; empty: no file is wanted. The side threads must outlive this object.
  MetricsFile(std::string path, SideThreads& side_threads)
      : path_(std::move(path)), side_threads_(side_threads) {}

  [[nodiscard]] bool is_wanted() const { return !path_.empty(); }
  // Returns whether a file is wanted and can be written now: the last one is written, or has
  // failed. Warns if it has, or takes longer than kAnswerLimit.
  bool is_ready();
  // Begins to write, behind a file that is being written.
  void write(std::string text);
  // Waits for it, at most kLastLimit.
  void write_last(std::string text);

 private:
  void note(const Status& written);

  const std::string path_;
  SideThreads& side_threads_;
  std::future<Status> written_;  // of a write that is not noted
  Instant began_;                // to write it
  bool has_failed_ = false;      // and the warning is given
};

}  // namespace filetimer
