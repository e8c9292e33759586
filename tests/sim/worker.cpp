// SPDX-License-Identifier: MIT
#include "tests/sim/worker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/page_writer.hpp"
#include "common/posix.hpp"
#include "common/scope_name.hpp"
#include "common/wake_protocol.hpp"
#include "common/wire.hpp"

namespace filetimer::sim {
namespace {

constexpr int kSlots = 16;
constexpr std::size_t kSlotsBytes = kMemoryPage;  // header and the first slots
constexpr auto kRelaxed = std::memory_order_relaxed;

std::int64_t in_slot(Nanos timeout) {
  return timeout == kNever ? std::numeric_limits<std::int64_t>::max() : timeout;
}

}  // namespace

struct Worker::Page {
  Page(std::string the_name, UniqueFd the_file)
      : name(std::move(the_name)),
        file(std::move(the_file)),
        memory(::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0)),
        layout(memory) {
    struct stat st {};
    ::fstat(file.get(), &st);
    inode = st.st_ino;
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() { ::munmap(memory, kPageBytes); }

  std::string name;
  UniqueFd file;
  void* memory;
  PageLayout layout;
  ino_t inode = 0;
};

Worker::Worker(MadeProcess& the_process, std::string dir)
    : process(the_process), dir_(std::move(dir)) {}

Worker::~Worker() {
  if (board_ != nullptr) {
    ::munmap(board_, kBoardBytes);
  }
}

bool Worker::make_page() {
  const std::string path = dir_ + "/server";
  UniqueFd board(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st {};
  if (!board || ::fstat(board.get(), &st) != 0 || st.st_size < off_t{kBoardBytes}) {
    return false;
  }
  if (board_ != nullptr) {
    ::munmap(board_, kBoardBytes);
  }
  board_ = static_cast<Board*>(::mmap(nullptr, kBoardBytes, PROT_READ, MAP_SHARED, board.get(), 0));
  board_inode_ = st.st_ino;
  dead_incarnation_ = ~std::uint64_t{0};
  static int last = 0;
  std::string name = fmt::format("{}-{:016x}", process.pid, ++last);
  const std::string hidden = fmt::format("{}/scopes/.{}", dir_, name);
  const UniqueFd made(::open(hidden.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made) {
    return false;
  }
  (void)::ftruncate(made.get(), kPageBytes);
  (void)::posix_fallocate(made.get(), 0, kSlotsBytes);
  (void)::posix_fallocate(made.get(), kNamesAt, kMemoryPage);
  pages_.push_back(
      std::make_unique<Page>(name, UniqueFd(::fcntl(made.get(), F_DUPFD_CLOEXEC, kFirstOfWorld))));
  PageHeader& header = pages_.back()->layout.header();
  begin_page(header, 0);
  header.pid = process.pid;
  header.start_time = process.start;
  put_text(header.comm, process.comm);
  ::rename(hidden.c_str(), fmt::format("{}/scopes/{}", dir_, name).c_str());
  write_line(wire::format_page_hint(name));
  return true;
}

// The client looks once a second whether the directory was made again.
void Worker::look_for_another_directory() {
  if (pages_.empty() || kernel->now < next_look_) {
    return;
  }
  next_look_ = kernel->now + kSecond;
  struct stat st {};
  if (::stat((dir_ + "/server").c_str(), &st) == 0 && st.st_ino != board_inode_) {
    (void)make_page();
  }
}

Slot* Worker::slot_of(int number) const {
  const auto page = static_cast<std::size_t>(number / kSlots);
  return number >= 0 && page < pages_.size()
             ? &pages_[page]->layout.slot(static_cast<std::size_t>(number % kSlots))
             : nullptr;
}

int Worker::free_slot() {
  const int base = static_cast<int>(pages_.size() - 1) * kSlots;
  for (int i = 0; i < kSlots; ++i) {
    if (slot_of(base + i)->deadline.load() == slot_word::kFree) {
      auto& used = pages_.back()->layout.header().slots;
      used.store(std::max(used.load(), static_cast<std::uint32_t>(i + 1)));
      return base + i;
    }
  }
  return -1;
}

bool Worker::is_page_whole() const {
  return std::ranges::all_of(pages_, [](const auto& page) {
    struct stat st {};
    return ::fstat(page->file.get(), &st) == 0 && st.st_size == off_t{kPageBytes};
  });
}

Nanos Worker::max_timeout() const {
  const Nanos longest = board_ == nullptr ? 0 : board_->max_timeout.load(kRelaxed);
  return longest > 0 ? longest : kNever;
}

Nanos Worker::word_for(Nanos timeout) const {
  const Nanos granted = std::min(timeout, max_timeout());
  return kernel->now + (granted > kMaxTimeout.count() ? slot_word::kNoDeadline : granted);
}

int Worker::open(std::string_view name, const Terms& terms) {
  look_for_another_directory();
  if (!is_page_whole() || (pages_.empty() && !make_page())) {
    return -1;
  }
  const int number = free_slot();
  if (number < 0) {
    return -1;
  }
  Slot& slot = *slot_of(number);
  begin_writing_slot();
  write_name(pages_.back()->layout.name(static_cast<std::size_t>(number % kSlots)), name);
  slot.acquired.store(kernel->now, kRelaxed);
  slot.started.store(kernel->now, kRelaxed);
  slot.timeout.store(in_slot(terms.timeout), kRelaxed);
  slot.grace_ms.store(terms.grace_ms, kRelaxed);
  slot.soft_ms.store(0, kRelaxed);
  slot.tid.store(process.pid, kRelaxed);
  slot.signal.store(static_cast<std::uint16_t>(terms.signal), kRelaxed);
  slot.flags.store(terms.spare_if_left ? slot_flag::kSpareIfLeft : std::uint16_t{0}, kRelaxed);
  const Nanos word = word_for(terms.timeout);
  set_deadline(slot, word);
  if (must_wake(*board_, slot, word)) {
    wake();
  }
  return number;
}

bool Worker::renew(int number, Nanos timeout) {
  Slot* const slot = is_page_whole() ? slot_of(number) : nullptr;
  if (slot == nullptr) {
    return false;
  }
  const Nanos old = slot->deadline.load();
  if (!slot_word::is_open(old)) {
    release_late(*slot);
    return false;
  }
  const Nanos word = word_for(timeout);
  if (slot_word::is_paused(old)) {
    slot->left.store(timeout == kNever ? kNever : word - kernel->now, kRelaxed);
    slot->started.store(kernel->now, kRelaxed);
    slot->timeout.store(in_slot(timeout), kRelaxed);
    return try_renew(*slot, old, slot_word::kPaused + kernel->now);
  }
  slot->flags.fetch_and(static_cast<std::uint16_t>(~slot_flag::kResumed), kRelaxed);
  slot->started.store(kernel->now, kRelaxed);
  slot->timeout.store(in_slot(timeout), kRelaxed);
  if (!try_renew(*slot, old, word)) {
    release_late(*slot);
    return false;
  }
  if (must_wake(*board_, *slot, word)) {
    wake();
  }
  return true;
}

bool Worker::pause(int number) {
  Slot* const slot = is_page_whole() ? slot_of(number) : nullptr;
  const Nanos word = slot != nullptr ? slot->deadline.load() : 0;
  if (!slot_word::is_open(word) || slot_word::is_paused(word)) {
    return false;
  }
  slot->left.store(word >= slot_word::kNoDeadline ? kNever : std::max<Nanos>(word - kernel->now, 1),
                   kRelaxed);
  slot->flags.fetch_or(slot_flag::kPausedByCaller, kRelaxed);
  if (!try_renew(*slot, word, slot_word::kPaused + kernel->now)) {
    return false;
  }
  const Nanos longest = max_timeout();
  if (longest != kNever && kernel->now + longest < board_->next_wake.load()) {
    wake();
  }
  return true;
}

bool Worker::resume(int number) {
  Slot* const slot = is_page_whole() ? slot_of(number) : nullptr;
  const Nanos word = slot != nullptr ? slot->deadline.load() : 0;
  if (!slot_word::is_paused(word)) {
    return false;
  }
  const Nanos left = slot->left.load(kRelaxed);
  const Nanos next =
      left > kMaxTimeout.count() ? slot_word::kNoDeadline + kernel->now : kernel->now + left;
  slot->flags.fetch_and(static_cast<std::uint16_t>(~slot_flag::kPausedByCaller), kRelaxed);
  slot->started.fetch_add(kernel->now - (word - slot_word::kPaused), kRelaxed);
  slot->flags.fetch_or(slot_flag::kResumed, kRelaxed);
  if (!try_renew(*slot, word, next)) {
    return false;
  }
  if (must_wake(*board_, *slot, next)) {
    wake();
  }
  return true;
}

bool Worker::release(int number) {
  Slot* const slot = is_page_whole() ? slot_of(number) : nullptr;
  if (slot == nullptr) {
    return false;
  }
  if (has_idle_timeout_) {
    slot->left.store(kernel->now, kRelaxed);
  }
  if (try_release(*slot, slot->deadline.load())) {
    return true;
  }
  release_late(*slot);
  return false;
}

void Worker::begin_idle_timeout(Nanos timeout) {
  look_for_another_directory();
  if (has_idle_timeout_ || !is_page_whole() || (pages_.empty() && !make_page())) {
    return;
  }
  const int number = free_slot();
  if (number < 0) {
    return;
  }
  has_idle_timeout_ = true;
  const int base = static_cast<int>(pages_.size() - 1) * kSlots;
  for (int i = 0; i < kSlots; ++i) {
    if (slot_of(base + i)->deadline.load() == slot_word::kFree) {
      slot_of(base + i)->left.store(0, kRelaxed);
    }
  }
  Slot& slot = *slot_of(number);
  begin_writing_slot();
  write_name(pages_.back()->layout.name(static_cast<std::size_t>(number % kSlots)), kIdleScopeName);
  slot.acquired.store(kernel->now, kRelaxed);
  slot.started.store(kernel->now, kRelaxed);
  slot.timeout.store(timeout, kRelaxed);
  slot.grace_ms.store(kServersGrace, kRelaxed);
  slot.soft_ms.store(0, kRelaxed);
  slot.tid.store(0, kRelaxed);
  slot.signal.store(SIGKILL, kRelaxed);
  slot.flags.store(slot_flag::kIdle, kRelaxed);
  begin_idle_watch(slot);
  if (must_wake_at(*board_, kernel->now + timeout)) {
    wake();
  }
}

void Worker::wake() {
  const std::uint64_t incarnation = board_->incarnation.load();
  if (dead_incarnation_ != incarnation &&
      !write_line(wire::format_page_hint(pages_.back()->name))) {
    dead_incarnation_ = incarnation;
  }
}

bool Worker::write_line(const std::string& line) const {
  const UniqueFd pipe(::open((dir_ + "/requests").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  return pipe && ::write(pipe.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

bool Worker::acquire_by_line(std::string_view name, const Terms& terms) {
  wire::Request request;
  request.pid = process.pid;
  request.scope_id = name;
  request.signal = terms.signal;
  request.expiration_time =
      terms.timeout == kNever
          ? std::numeric_limits<double>::infinity()
          : static_cast<double>(kernel->wall() + terms.timeout) / static_cast<double>(kSecond);
  if (!terms.is_torch) {
    request.x_timeout_s = terms.timeout == kNever
                              ? std::numeric_limits<double>::infinity()
                              : static_cast<double>(terms.timeout) / static_cast<double>(kSecond);
    if (terms.grace_ms != kServersGrace) {
      request.x_grace_s = terms.grace_ms == kNoSigkill ? -1 : terms.grace_ms / 1e3;
    }
    request.x_spare_if_left = terms.spare_if_left;
  }
  return write_line(wire::format(request));
}

bool Worker::release_by_line(std::string_view name) {
  wire::Request request;
  request.pid = process.pid;
  request.scope_id = name;
  return write_line(wire::format(request));
}

bool Worker::holds_lock_of(ino_t page) const {
  return process.is_alive &&
         std::ranges::any_of(pages_, [page](const auto& each) { return each->inode == page; });
}

bool Worker::is_page_gone() const {
  return !pages_.empty() && ::access(page_path().c_str(), F_OK) != 0;
}

std::string Worker::page_path() const {
  return pages_.empty() ? std::string() : fmt::format("{}/scopes/{}", dir_, pages_.back()->name);
}

}  // namespace filetimer::sim
