// SPDX-License-Identifier: MIT
#include "timer_server/scopes/board_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

#include "common/wake_protocol.hpp"

namespace filetimer {
namespace {

Status make_room(const MappedFile& file) {
  // By the mapping's descriptor, because closing another one of this file would drop the lock.
  const int error = ::posix_fallocate(file.descriptor(), 0, kBoardBytes);
  return error == 0 ? Status{}
                    : Status{system_error("cannot make room for the status page", error)};
}

}  // namespace

Result<BoardFile> BoardFile::open(const std::string& path, const Terms& terms) {
  auto file = MappedFile::map(path, MappedFile::Access::kReadWrite, kBoardBytes);
  FILETIMER_TRY(file);
  if (Status made = make_room(*file); !made) {
    return failure(fmt::format("'{}': {}", path, made.error().message));
  }
  BoardFile opened(std::move(*file), terms);
  opened.incarnation_ = opened.board().incarnation.load(std::memory_order_relaxed);
  opened.write_terms();
  return opened;
}

void BoardFile::write_terms() const {
  Board& board = this->board();
  board.warn_at.store(terms_.warn_at, std::memory_order_relaxed);  // before: see wake_protocol.hpp
  board.next_wake.store(kWakeAlways, std::memory_order_seq_cst);
  board.announcement.store(0, std::memory_order_relaxed);
  board.max_timeout.store(terms_.max_timeout.count(), std::memory_order_relaxed);
  board.default_timeout.store(terms_.default_timeout.count(), std::memory_order_relaxed);
  board.pid_namespace.store(this_pid_namespace(), std::memory_order_relaxed);
  board.server_pid.store(::getpid(), std::memory_order_relaxed);
  board.boot = this_boot();
  board.bytes = kBoardBytes;
  board.version = kBoardVersion;
  board.magic = kBoardMagic;
}

bool BoardFile::is_whole() const {
  struct stat st {};
  return !was_cut() && ::fstat(file_.descriptor(), &st) == 0 &&
         static_cast<std::size_t>(st.st_size) >= kBoardBytes;
}

Status BoardFile::restore() {
  FILETIMER_TRY(make_room(file_));
  // The guard may have put other memory in its place.
  if (::mmap(file_.data(), kBoardBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             file_.descriptor(), 0) == MAP_FAILED) {
    return system_error("cannot map the status page again");
  }
  guard_.reset();
  guard_ = std::make_unique<BusGuard>(file_.data(), kBoardBytes);
  write_terms();
  board().incarnation.store(incarnation_, std::memory_order_seq_cst);
  return {};
}

void BoardFile::serve() {
  ++incarnation_;
  board().incarnation.store(incarnation_, std::memory_order_seq_cst);
  board().state.store(static_cast<std::uint32_t>(ServerState::kServing), std::memory_order_release);
}

void BoardFile::want_all_wakes() {
  announce_scan(board());
}

void BoardFile::want_wakes_before(Instant when) {
  announce_next_scan(board(), when.ns);
}

void BoardFile::announce(Announcement announcement) {
  const auto now = static_cast<std::uint32_t>(announcement);
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
