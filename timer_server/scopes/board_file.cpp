// SPDX-License-Identifier: MIT
#include "timer_server/scopes/board_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

#include "common/wake_protocol.hpp"

namespace filetimer {

Result<BoardFile> BoardFile::open(const std::string& path, const Terms& terms) {
  auto file = MappedFile::map(path, MappedFile::Access::kReadWrite, kBoardBytes);
  FILETIMER_TRY(file);
  // By the mapping's descriptor, because closing another one of this file would drop the lock.
  if (const int error = ::posix_fallocate(file->descriptor(), 0, kBoardBytes); error != 0) {
    return system_error(fmt::format("'{}': cannot make room for the status page", path), error);
  }
  BoardFile opened(std::move(*file));
  Board& board = opened.board();
  board.warn_at.store(terms.warn_at, std::memory_order_relaxed);  // before: see wake_protocol.hpp
  board.next_wake.store(kWakeAlways, std::memory_order_seq_cst);
  board.announcement.store(0, std::memory_order_relaxed);
  board.max_timeout.store(terms.max_timeout.count(), std::memory_order_relaxed);
  board.default_timeout.store(terms.default_timeout.count(), std::memory_order_relaxed);
  board.pid_namespace.store(this_pid_namespace(), std::memory_order_relaxed);
  board.server_pid.store(::getpid(), std::memory_order_relaxed);
  board.boot = this_boot();
  board.bytes = kBoardBytes;
  board.version = kBoardVersion;
  board.magic = kBoardMagic;
  return opened;
}

bool BoardFile::is_whole() const {
  struct stat st {};
  return !was_cut() && ::fstat(file_.descriptor(), &st) == 0 &&
         static_cast<std::size_t>(st.st_size) >= kBoardBytes;
}

void BoardFile::serve() {
  board().incarnation.fetch_add(1, std::memory_order_seq_cst);
  board().state.store(static_cast<std::uint32_t>(ServerState::kServing), std::memory_order_release);
}

void BoardFile::want_all_wakes() {
  announce_scan(board());
}

void BoardFile::want_wakes_before(Instant when) {
  announce_next_scan(board(), when.ns);
}

void BoardFile::announce(Announcement announcement) {
  const bool is_stopped = board().state.load(std::memory_order_relaxed) ==
                          static_cast<std::uint32_t>(ServerState::kStopped);
  const auto now = static_cast<std::uint32_t>(is_stopped ? Announcement::kNone : announcement);
  std::atomic<std::uint32_t>& word = board().announcement;
  if (word.exchange(now, std::memory_order_release) != now) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
  }
}

void BoardFile::stop() {
  board().state.store(static_cast<std::uint32_t>(ServerState::kStopped), std::memory_order_release);
  board().next_wake.store(kWakeNever, std::memory_order_seq_cst);
  // After `state`, because a waiting client looks at both. Clients may open scopes again, for the
  // next server.
  announce(Announcement::kNone);
}

}  // namespace filetimer
