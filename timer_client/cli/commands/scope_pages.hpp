// What stands in the files of the runtime directory, read without a request: the open scopes of all
// workers, and how long scopes took. Nothing is mapped, so a page that is
// cut short while it is read is a short read and no SIGBUS; nothing is trusted but what the kernel
// says of the files and of their owners.
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

namespace filetimer::cli {

// How many files of a folder are looked at; a server watches a sixteenth of that.
inline constexpr std::size_t kMaxPageFilesRead = std::size_t{16} * kMaxWorkers;
// How many of the skipped files are told by name.
inline constexpr std::size_t kMaxSkippedNamed = 3;

enum class ServedBy { kPage, kPipe };

struct ScopeOwner {
  std::optional<pid_t> pid;      // in our namespace; none: it lives in one that we can't see
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
  // From the acquire, or the last renewal, to `due`.
  [[nodiscard]] Duration granted() const;
};

// The scopes that a worker has left last, on all its pages.
struct ListedWorker {
  ScopeOwner owner;
  EndedScopesByName ended;
};

struct FolderReading {
  std::vector<ListedScope> scopes;  // by rank, pid and age, the oldest first
  StatisticsByName statistics;
  std::vector<ListedWorker> workers;       // by rank and pid
  std::size_t skipped = 0;                 // files that are no pages
  std::vector<std::string> skipped_names;  // the first of them, with the reason
  bool cut_short = false;                  // there were more files than are looked at
};

// What is read: open scopes, the sums of statistics over all workers, or of each worker the scopes
// that ended last.
enum class ReadStatistics { kNo, kYes, kOfEachWorker };

// All pages of the runtime directory `dir`; none when there is no `scopes` in it. `max_timeout` as
// look_for_server() gives it.
Result<FolderReading> read_pages(const std::string& dir, Duration max_timeout,
                                 ReadStatistics with_statistics);

// "skipped 2 files that are no scope pages: a (it is a FIFO), b (...)", empty when none was.
std::string skipped_text(const FolderReading& reading);

}  // namespace filetimer::cli
