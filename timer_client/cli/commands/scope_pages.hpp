// Reads the files of the runtime directory without a request: the open scopes of all workers, and
// how long scopes took. Only what the kernel says of the files and their owners is trusted.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "common/result.hpp"
#include "common/scope_statistics.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {

// How many files of a folder are read; a server watches a sixteenth of that.
inline constexpr std::size_t kMaxPageFilesRead = std::size_t{16} * kMaxWorkers;
// How many of the skipped files a message names.
inline constexpr std::size_t kMaxSkippedNamed = 3;

enum class ServedBy { kPage, kPipe };

struct ScopeOwner {
  std::optional<pid_t> pid;      // in this pid namespace; none: it is not visible here
  std::uint64_t start_time = 0;  // 0: not known
  std::string comm;              // empty, as the others: not known
  std::string rank;
  std::string local_rank;
  std::string job_id;
  ServedBy transport = ServedBy::kPage;
};

struct ListedScope {
  std::shared_ptr<const ScopeOwner> owner;
  SlotReading slot;
  Instant due;  // the deadline as the server grants it; never(): none

  [[nodiscard]] bool is_expired() const { return !slot_word::is_open(slot.word); }
  [[nodiscard]] bool is_overdue(Instant now) const { return due < now; }
  // Returns the time from the acquire, the last renewal or the pause to `due`.
  [[nodiscard]] Duration granted() const;
};

// The scopes that a worker released last, on all its pages.
struct ListedWorker {
  ScopeOwner owner;
  EndedScopesByName ended;
};

struct FolderReading {
  ServerSeen server;
  std::vector<ListedScope> scopes{};  // by rank, pid and age, the oldest first
  StatisticsByName statistics{};
  std::vector<ListedWorker> workers{};  // by rank and pid
  std::vector<std::string> skipped{};   // files that are no pages, with the reason
};

// Whether read_pages() reads the sums of statistics over all workers, too, or the scopes of each
// worker that ended last.
enum class ReadStatistics { kNo, kYes, kOfEachWorker };

// Looks for the server of the runtime directory `dir`, then reads all pages; none if it has no
// `scopes`.
Result<FolderReading> read_pages(const std::string& dir, ReadStatistics with_statistics);

// Returns "skipped a (it is a FIFO), b (...) and 2 more"; empty: no file was.
std::string skipped_text(const FolderReading& reading);

}  // namespace filetimer::cli
