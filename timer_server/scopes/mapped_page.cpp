// SPDX-License-Identifier: MIT
#include "timer_server/scopes/mapped_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "common/own_file.hpp"

namespace filetimer {

MappedPage::MappedPage(std::string name, UniqueFd fd, MappedFile file)
    : WorkerPage(std::move(name)), fd_(std::move(fd)), file_(std::move(file)) {}

Result<std::shared_ptr<MappedPage>> MappedPage::open(const std::string& path, std::string name) {
  auto opened = open_own_file(path, O_RDWR, "it");
  FILETIMER_TRY(opened);
  if (const auto bytes = static_cast<std::uint64_t>(opened->status.st_size); bytes != kPageBytes) {
    return failure(fmt::format("it has {} bytes: expected {}", bytes, kPageBytes));
  }
  // By way of the descriptor, so that the file that was checked is mapped.
  auto file = MappedFile::map(fmt::format("/proc/self/fd/{}", opened->fd.get()),
                              MappedFile::Access::kReadWrite, kPageBytes);
  FILETIMER_TRY(file);
  file->close_descriptor();  // the page keeps the checked descriptor instead
  std::shared_ptr<MappedPage> page(
      new MappedPage(std::move(name), std::move(opened->fd), std::move(*file)));
  if (!page->guard_.is_armed()) {
    return failure("too many pages are mapped", EAGAIN);
  }
  auto claims = read_claims(page->layout_, kPageBytes);
  if (!page->is_whole()) {
    return failure("it was truncated while it was read");
  }
  FILETIMER_TRY(claims);
  page->claims_ = std::move(*claims);
  return page;
}

Result<pid_t> MappedPage::owner() const {
  const auto lock = lock_state(fd_.get());
  FILETIMER_TRY(lock);
  if (!lock->is_held) {
    return failure("no process holds its lock", ESRCH);
  }
  if (lock->holder == 0) {
    return failure("the holder of its lock is outside the server's pid namespace");
  }
  return lock->holder;
}

bool MappedPage::has_lost_lock() const {
  if (!fd_) {
    return false;
  }
  const auto lock = lock_state(fd_.get());
  return lock && !lock->is_held;
}

std::string MappedPage::id_of(std::size_t slot) {
  return read_name(layout_.name(slot));
}

void MappedPage::unmap_names() {
  ::madvise(layout_.base() + kNamesAt, kStatisticsAt - kNamesAt, MADV_DONTNEED);
}

std::uint32_t MappedPage::dump_signal() {
  return layout_.header().dump_signal.load(std::memory_order_relaxed);
}

void MappedPage::add_statistics(StatisticsByName& sums) {
  filetimer::add_statistics(layout_, sums);
}

void MappedPage::add_ended_scopes(EndedScopesByName& ended) {
  filetimer::add_ended_scopes(layout_, ended);
}

}  // namespace filetimer
