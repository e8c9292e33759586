// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/scope_pages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "common/directory.hpp"
#include "common/mapped_file.hpp"
#include "common/numbers.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/page_copy.hpp"

namespace filetimer::cli {
namespace {

// Opens a file without blocking on a FIFO or a device, and without following a symlink.
UniqueFd open_to_look(int folder, const char* name, int flags = 0) {
  return UniqueFd(retry_eintr([&] {
    return ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
  }));
}

// --- the folder ---

// Returns the worker that the page's scopes belong to; nothing if it has ended. What a native page
// says of its owner is used only if the kernel does not know the owner: the lock was lost, or its
// holder is not visible in this pid namespace.
std::optional<ScopeOwner> owner_of(int file, const PageClaims& claims, ServedBy transport) {
  const LockState lock =
      transport == ServedBy::kPage ? lock_state(file).value_or(LockState{}) : LockState{};
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
  FolderReader(const ServerSeen& server, ReadStatistics with_statistics)
      : server_(server), with_statistics_(with_statistics) {}

  Status read(const std::string& path, ServedBy transport) {
    UniqueFd fd = open_to_look(AT_FDCWD, path.c_str(), O_DIRECTORY);
    if (!fd) {
      return errno == ENOENT ? Status{}
                             : system_error(fmt::format("cannot open the folder '{}'", path));
    }
    Directory folder(std::move(fd));
    if (!folder) {
      return system_error(fmt::format("cannot read the folder '{}'", path));
    }
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
      if (const Status read = read_file(folder.descriptor(), entry, transport); !read) {
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

  // Returns the entry of the worker, which may have several pages. One without a pid has an entry
  // for each.
  ListedWorker& worker_of(const ScopeOwner& owner) {
    const pid_t unknown = -static_cast<pid_t>(workers_.size()) - 1;
    ListedWorker& worker = workers_[owner.pid.value_or(unknown)];
    worker.owner = owner;
    return worker;
  }

  Status read_file(int folder, const char* name, ServedBy transport) {
    if (!is_page_name(name)) {
      return failure("its name is not that of a page");
    }
    const UniqueFd file = open_to_look(folder, name);
    if (!file) {
      if (errno == ENOENT) {
        return {};  // removed meanwhile
      }
      return errno == ELOOP ? failure("it is a symlink") : system_error("cannot open it");
    }
    const auto claims = copy_.read_header(file.get());
    FILETIMER_TRY(claims);
    // In a container, the writer of the page or this process may see another boot id. A page is
    // also of this boot if its worker holds its lock, or if a running server keeps it.
    const bool is_kept = transport == ServedBy::kPipe
                             ? server_.is_there
                             : lock_state(file.get()).value_or(LockState{}).is_held;
    if (claims->boot != boot_ && !is_kept) {
      return {};
    }
    if (with_statistics_ == ReadStatistics::kYes) {
      return copy_.read_statistics(file.get(), reading_.statistics);
    }
    const auto owner = owner_of(file.get(), *claims, transport);
    if (!owner) {
      return {};
    }
    if (with_statistics_ == ReadStatistics::kOfEachWorker) {
      return copy_.read_ended_scopes(file.get(), worker_of(*owner).ended);
    }
    auto slots = copy_.read_slots(file.get());
    FILETIMER_TRY(slots);
    const auto shared_owner = std::make_shared<const ScopeOwner>(*owner);
    for (SlotReading& slot : *slots) {
      const Instant due = due_time(slot, server_.max_timeout);
      reading_.scopes.push_back({shared_owner, std::move(slot), due});
    }
    return {};
  }

  const ServerSeen& server_;
  ReadStatistics with_statistics_;
  BootId boot_ = this_boot();
  PageCopy copy_;
  FolderReading reading_;
  std::map<pid_t, ListedWorker> workers_;
};

}  // namespace

Duration ListedScope::granted() const {
  return due.is_never() ? kForever : std::max(due - slot.started, Duration::zero());
}

Result<FolderReading> read_pages(const std::string& dir, const ServerSeen& server,
                                 ReadStatistics with_statistics) {
  FolderReader reader(server, with_statistics);
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
