// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/scope_pages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "common/wake_protocol.hpp"

namespace filetimer::cli {
namespace {

// How often a slot that changes while it is read is read again.
constexpr int kRereads = 4;

// Returns the worker that the page's scopes belong to; nothing if it has ended. What a native page
// says of its owner is used only if the kernel does not know the owner: the lock was lost, or its
// holder is not visible in this pid namespace.
std::optional<ScopeOwner> owner_of(const LockState& lock, const PageClaims& claims,
                                   ServedBy transport) {
  ScopeOwner owner;
  owner.transport = transport;
  owner.comm = claims.comm;
  owner.rank = claims.rank;
  owner.local_rank = claims.local_rank;
  owner.job_id = claims.job_id;
  const pid_t pid = lock.holder > 0 ? lock.holder : std::max(claims.pid, 0);
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  const bool is_alive = pid > 0 && stat && stat->state != 'Z' && stat->state != 'X';
  const std::uint64_t start_time = is_alive ? stat->start_time : 0;
  const bool is_named =
      lock.holder > 0 || (start_time != 0 && start_time == claims.start_time && claims.pid > 0);
  if (!is_named) {
    return lock.is_held ? std::optional(owner) : std::nullopt;
  }
  owner.pid = pid;
  owner.start_time = start_time;
  if (stat && !stat->comm.empty()) {
    owner.comm = stat->comm;
  }
  return owner;
}

class FolderReader {
 public:
  FolderReader(const std::string& dir, ReadStatistics with_statistics)
      : with_statistics_(with_statistics), reading_{.server = look_for_server(dir)} {}

  Status read(const std::string& path, ServedBy transport) {
    Directory folder(path);
    if (!folder) {
      return errno == ENOENT ? Status{}
                             : system_error(fmt::format("cannot open the folder '{}'", path));
    }
    struct stat of_folder {};
    const bool is_root = ::geteuid() == 0 && ::stat(path.c_str(), &of_folder) == 0;
    owner_ = is_root ? of_folder.st_uid : ::geteuid();  // root reads the pages of every user
    std::size_t seen = 0;
    while (const char* const entry = folder.next()) {
      const std::string_view name = entry;
      if (name.starts_with('.') || (transport == ServedBy::kPage && name == kServerPagesName)) {
        continue;  // pages that are being made, and the server's own
      }
      if (++seen > kMaxPageFilesRead) {
        skip("all others", fmt::format("'{}' has more than {}", path, kMaxPageFilesRead));
        break;
      }
      if (const Status read = read_file(path, entry, transport); !read) {
        skip(transport == ServedBy::kPipe ? fmt::format("{}/{}", kServerPagesName, name) : entry,
             read.error().message);
      }
    }
    return {};
  }

  void skip(std::string_view name, std::string_view why) {
    reading_.skipped.push_back(fmt::format("{} ({})", name, why));
  }

  FolderReading finish() && {
    std::ranges::stable_sort(reading_.scopes, {}, [](const ListedScope& scope) {
      return std::pair(place_of(*scope.owner), scope.slot.acquired);
    });
    for (auto& [pid, worker] : workers_) {
      reading_.workers.push_back(std::move(worker));
    }
    std::ranges::stable_sort(reading_.workers, {},
                             [](const ListedWorker& worker) { return place_of(worker.owner); });
    return std::move(reading_);
  }

 private:
  // The rank as a number, for those that are none the last one; the rank; the pid.
  using PlaceInOrder = std::tuple<std::uint64_t, std::string, pid_t>;

  static PlaceInOrder place_of(const ScopeOwner& owner) {
    constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
    return {number_from<std::uint64_t>(owner.rank).value_or(kLast), owner.rank,
            owner.pid.value_or(0)};
  }

  Status read_file(const std::string& folder, const std::string& name, ServedBy transport) {
    if (!is_page_name(name)) {
      return failure("its name is not that of a page");
    }
    auto opened = open_own_file(fmt::format("{}/{}", folder, name), O_RDONLY, "it", owner_);
    if (!opened) {
      const bool is_removed = opened.error().errno_value == ENOENT;
      return is_removed ? Status{} : tl::unexpected<Error>(opened.error());
    }
    // What it maps of a shorter file is not read.
    auto file = MappedFile::map(std::move(opened->fd), MappedFile::Access::kRead, kPageBytes, "it");
    FILETIMER_TRY(file);
    const PageLayout page(file->data());
    const auto claims = read_claims(page, static_cast<std::uint64_t>(opened->status.st_size));
    FILETIMER_TRY(claims);
    read_page(page, *claims, *file, transport);
    return file->is_broken() ? failure("it was cut short") : Status{};
  }

  void read_page(const PageLayout& page, const PageClaims& claims, const MappedFile& file,
                 ServedBy transport) {
    // A server keeps a page of its own while the worker lives, which may have no pid here.
    const LockState lock = transport == ServedBy::kPage
                               ? lock_state(file.descriptor()).value_or(LockState{})
                               : LockState{.is_held = reading_.server.is_there &&
                                                      reading_.server.is_in_other_namespace};
    // In a container, the writer of the page or this process may see another boot id. A page is
    // also of this boot if its worker holds its lock, or if a running server keeps it.
    const bool is_kept = transport == ServedBy::kPipe ? reading_.server.is_there : lock.is_held;
    if (claims.boot != boot_ && !is_kept) {
      return;
    }
    if (with_statistics_ == ReadStatistics::kYes) {
      add_statistics(page, reading_.statistics);
      return;
    }
    const auto owner = owner_of(lock, claims, transport);
    if (!owner) {
      return;
    }
    if (with_statistics_ == ReadStatistics::kOfEachWorker) {
      // A worker may have several pages. One without a pid has an entry for each.
      const pid_t unknown = -static_cast<pid_t>(workers_.size());  // of no process
      ListedWorker& worker = workers_[owner->pid.value_or(unknown)];
      worker.owner = *owner;
      add_ended_scopes(page, worker.ended);
      return;
    }
    const auto shared_owner = std::make_shared<const ScopeOwner>(*owner);
    for (std::size_t i = 0; i < slots_in_use(page); ++i) {
      for (int rereads = 0; rereads <= kRereads; ++rereads) {
        const std::int64_t word = page.slot(i).deadline.load(std::memory_order_acquire);
        if (word == slot_word::kFree || word == slot_word::kReleasedLate ||
            is_idle_watch(page.slot(i))) {
          break;
        }
        if (auto reading = read_slot(page, i, word)) {
          const Instant due = due_time(*reading, reading_.server.max_timeout);
          reading_.scopes.push_back({shared_owner, std::move(*reading), due});
          break;
        }
      }
    }
  }

  ReadStatistics with_statistics_;
  uid_t owner_ = 0;  // of the folder that is read, and of its pages
  BootId boot_ = this_boot();
  FolderReading reading_;
  std::map<pid_t, ListedWorker> workers_;
};

}  // namespace

Duration ListedScope::granted() const {
  const bool is_paused = slot_word::is_paused(slot.word);
  const Instant since = is_paused ? Instant{slot.word - slot_word::kPaused} : slot.started;
  return due.is_never() ? kForever : std::max(due - since, Duration::zero());
}

Result<FolderReading> read_pages(const std::string& dir, ReadStatistics with_statistics) {
  FolderReader reader(dir, with_statistics);
  const std::string pages = fmt::format("{}/{}", dir, kPagesName);
  FILETIMER_TRY(reader.read(pages, ServedBy::kPage));
  // A worker may have replaced the folder.
  const std::string servers = fmt::format("{}/{}", pages, kServerPagesName);
  if (const Status read = reader.read(servers, ServedBy::kPipe); !read) {
    reader.skip(kServerPagesName, read.error().message);
  }
  return std::move(reader).finish();
}

std::string skipped_text(const FolderReading& reading) {
  return reading.skipped.empty() ? "" : "skipped " + listed(reading.skipped, kMaxSkippedNamed);
}

}  // namespace filetimer::cli
