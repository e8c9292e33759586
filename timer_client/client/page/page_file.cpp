// SPDX-License-Identifier: MIT
#include "timer_client/client/page/page_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "timer_client/client/environment.hpp"

namespace filetimer {
namespace {

// Makes the file, with room for its header and the first slots, names and statistics.
Result<UniqueFd> make_file(const std::string& path) {
  UniqueFd fd = open_file(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!fd) {
    return system_error(fmt::format("cannot make the scope page '{}'", path));
  }
  int error = error_of_size(kPageBytes);
  if (error == 0 && ::ftruncate(fd.get(), static_cast<off_t>(kPageBytes)) != 0) {
    error = errno;
  }
  for (const std::size_t begin : {std::size_t{0}, kNamesAt, kStatisticsAt}) {
    if (error == 0) {
      error = make_room(fd.get(), begin, kMemoryPage);
    }
  }
  if (error != 0) {
    ::unlink(path.c_str());
    return system_error(fmt::format("cannot make room for the scope page '{}'", path), error);
  }
  return fd;
}

// Returns the value of the first of these variables that has one. The server reads the same ones of
// workers without a page.
std::string_view first_value(std::span<const char* const> names) {
  for (const char* const name : names) {
    if (const std::string_view value = environment_word(name); !value.empty()) {
      return value;
    }
  }
  return {};
}

void fill_in(PageHeader& header) {
  begin_page(header, page_flag::kStatistics);
  header.pid = ::getpid();
  if (const auto self = read_own_stat()) {
    header.start_time = self->start_time;
    put_text(header.comm, self->comm);
  }
  put_text(header.rank, first_value(kRankVariables));
  put_text(header.local_rank, first_value(kLocalRankVariables));
  put_text(header.job_id, first_value(kJobVariables));
}

// Returns whether the process that made the page is alive, as far as this pid namespace shows.
bool is_maker_alive(const PageClaims& claims) {
  const auto stat = read_stat(fmt::format("/proc/{}", claims.pid));
  return stat && stat->start_time == claims.start_time;
}

bool is_abandoned(const std::string& path) {
  const auto page = open_own_file(path, O_RDONLY);
  alignas(PageHeader) std::array<std::byte, sizeof(PageHeader)> header{};
  if (!page || !read_at(page->fd.get(), header.data(), header.size(), 0)) {
    return false;
  }
  const auto claims =
      read_claims(PageLayout(header.data()), static_cast<std::uint64_t>(page->status.st_size));
  if (!claims) {
    return false;  // not a page
  }
  const auto lock = lock_state(page->fd.get());
  return lock && !lock->is_held && !is_maker_alive(*claims);
}

}  // namespace

Result<PageFile> PageFile::create(const std::string& folder) {
  // A process of another pid namespace may have the same pid, but does not get here in the same
  // nanosecond.
  const std::string name = fmt::format("{}-{:016x}", ::getpid(), Instant::now().ns);
  // Until the page is complete, its name begins with a dot: the server ignores such files.
  const std::string path = fmt::format("{}/.{}", folder, name);
  auto fd = make_file(path);
  FILETIMER_TRY(fd);
  const auto remove = [](const std::string* file) { ::unlink(file->c_str()); };
  std::unique_ptr<const std::string, decltype(remove)> unfinished(&path, remove);
  auto file = MappedFile::map(std::move(*fd), MappedFile::Access::kReadWrite, kPageBytes,
                              fmt::format("'{}'", path));
  FILETIMER_TRY(file);
  // Closing the first descriptor of the file would drop a lock that was taken before.
  UniqueFd descriptor = above_standard_descriptors(file->take_descriptor());
  auto lock = FileLock::take(std::move(descriptor), path);
  FILETIMER_TRY(lock);
  PageFile page(std::move(*file), std::move(*lock), fmt::format("{}/{}", folder, name), name);
  fill_in(page.layout().header());
  if (::rename(path.c_str(), page.path_.c_str()) != 0) {
    return system_error(fmt::format("cannot name the scope page '{}'", page.path_));
  }
  (void)unfinished.release();
  return page;
}

bool PageFile::allocate_slot(std::size_t index) noexcept {
  return grow(slots_end_, kSlotsAt + (index + 1) * sizeof(Slot)) &&
         grow(names_end_, kNamesAt + (index + 1) * sizeof(SlotName));
}

bool PageFile::allocate_statistics(std::size_t index) noexcept {
  return grow(statistics_end_, kStatisticsAt + (index + 1) * sizeof(SlotStatistics));
}

bool PageFile::keep_lock() noexcept {
  if (lock_.descriptor() >= 0) {
    return lock_.keep();
  }
  try {
    auto again = FileLock::take(path_);
    if (!again || again->identity() != lock_.identity()) {
      return false;
    }
    lock_ = std::move(*again);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool PageFile::grow(std::size_t& allocated, std::size_t end) noexcept {
  while (allocated < end) {
    // A file that was cut short is not made longer: no server would read or remove it.
    struct stat st {};
    if (!keep_lock() || ::fstat(lock_.descriptor(), &st) != 0 ||
        st.st_size != static_cast<off_t>(kPageBytes) ||
        make_room(lock_.descriptor(), allocated, kMemoryPage) != 0) {
      return false;
    }
    allocated += kMemoryPage;
  }
  return true;
}

void remove_abandoned_pages(const std::string& folder) noexcept {
  try {
    const std::string own_prefix = fmt::format("{}-", ::getpid());
    Directory pages(folder);
    for (int looked_at = 0; looked_at < kMaxPagesLookedAt; ++looked_at) {
      const char* const name = pages.next();
      if (name == nullptr) {
        return;
      }
      struct stat st {};
      const std::string path = fmt::format("{}/{}", folder, name);
      if (name[0] == '.' || std::string_view(name).starts_with(own_prefix) ||
          ::lstat(fmt::format("{}/{}/{}", folder, kOwnersName, name).c_str(), &st) == 0 ||
          !is_abandoned(path)) {
        continue;
      }
      ::unlink(path.c_str());
      ::unlink(fmt::format("{}/{}/{}", folder, kStacksName, name).c_str());
    }
  } catch (const std::bad_alloc&) {
    // The next client, or a server, removes them.
  }
}

}  // namespace filetimer
