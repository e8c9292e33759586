// SPDX-License-Identifier: MIT
#include "timer_client/client/page/own_page.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "common/page_reader.hpp"
#include "common/run_folder.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "common/wire.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/page/page_scope.hpp"
#include "timer_client/client/process_lock.hpp"

namespace filetimer {
namespace {

using std::chrono::seconds;

// The time between two checks that the files are still those that a server uses.
constexpr Duration kLookPeriod = seconds{1};
// The time between two attempts to make a page, so that not every scope tries.
constexpr Duration kCreationPause = seconds{1};

constexpr pthread_key_t kNoKey = ~pthread_key_t{0};

// Runs at the end of each thread that has slots.
void end_of_thread(void*) {
  ThreadSlots* next = std::exchange(t_slots, nullptr);
  while (next != nullptr) {
    ThreadSlots& slots = *std::exchange(next, next->next_of_thread);
    if (slots.fork_count == fork_watch::count()) {
      slots.page.thread_ended(slots);
    }
  }
}

// Made when the library is loaded, see ProcessLock; and by the first call if a static object opens
// scopes before.
pthread_key_t key_of_thread_end() {
  static const pthread_key_t key = [] {
    pthread_key_t made = kNoKey;
    ::pthread_key_create(&made, end_of_thread);
    return made;
  }();
  return key;
}
[[maybe_unused]] const pthread_key_t key_at_load = key_of_thread_end();

// Returns the handler of the signal. Only compared.
auto handler_of(int signal) {
  struct sigaction action {};
  (void)::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

void call_at_end_of_thread() {
  // Any value but null.
  const pthread_key_t key = key_of_thread_end();
  if (key == kNoKey || ::pthread_setspecific(key, &t_slots) != 0) {
    throw std::bad_alloc();
  }
}

}  // namespace

OwnPage::OwnPage(BoardView board, std::string dir, std::string pipe)
    : view_(std::move(board)),
      dir_(std::move(dir)),
      board_path_(fmt::format("{}/{}", dir_, kBoardName)),
      pages_folder_(fmt::format("{}/{}", dir_, kPagesName)),
      pipe_(std::move(pipe)) {}

Status OwnPage::make(bool allow_tracing) {
  allows_tracing_ |= allow_tracing;
  let_server_trace();
  if (current_) {
    return {};
  }
  if (!has_board()) {
    return failure(fmt::format("there is no status page in '{}'", dir_));
  }
  auto file = PageFile::create(pages_folder_);
  if (!file && file.error().errno_value == ENOENT) {
    FILETIMER_TRY(make_folders());
    file = PageFile::create(pages_folder_);
  }
  FILETIMER_TRY(file);
  auto page = std::make_unique<Page>();
  page->hint = wire::format_page_hint(file->name());
  page->free.reserve(kMaxScopesPerWorker);
  page->orphans.reserve(kMaxScopesPerWorker);
  page->file.emplace(std::move(*file));
  current_ = std::move(page);
  announce();
  for (const IdleTimeout& each : idle_timeouts_) {
    begin_idle_timeout(each);
  }
  return {};
}

// Lets the server and its helper read the stacks of this process where Yama restricts tracing to
// descendants (the default of Ubuntu). Without Yama the call fails, and tracing is not restricted.
// A forked child does not inherit the permission. A server of another pid namespace has no pid
// here.
void OwnPage::let_server_trace() noexcept {
  const std::uint64_t incarnation = board().incarnation.load(std::memory_order_relaxed);
  if (!allows_tracing_ || tracing_incarnation_ == incarnation) {
    return;
  }
  try {
    const ServerSeen seen = look_for_server(dir_);
    if (seen.pid > 0) {
      ::prctl(PR_SET_PTRACER, seen.pid);
    }
    if (seen.is_there) {
      tracing_incarnation_ = incarnation;
    }
  } catch (const std::bad_alloc&) {
    // The next look tries again, as without a server or a descriptor.
  }
}

// Makes them only in the directory of this status page. A directory that was removed, as a server
// removes that of its COMMAND, is not made again.
Status OwnPage::make_folders() const {
  if (identity_of(board_path_) != identity()) {
    return failure(fmt::format("'{}' was removed, or made again", dir_));
  }
  for (const std::string& path :
       {pages_folder_, fmt::format("{}/{}", pages_folder_, kStacksName)}) {
    FILETIMER_TRY(create_run_folder(path));
  }
  return {};
}

void OwnPage::become_child() noexcept {
  next_look_.store(0, std::memory_order_relaxed);
  next_creation_ = {};
  tracing_incarnation_ = kNoIncarnation;
  regions_.clear();
  idle_timeouts_.clear();
  if (current_) {
    // Closes and unmaps in this process only. The lock was not inherited.
    current_->file.reset();
    current_->inherited = std::move(inherited_);
    inherited_ = std::move(current_);
  }
}

std::string OwnPage::stacks_file() const {
  return current_ ? fmt::format("{}/{}/{}", pages_folder_, kStacksName, current_->file->name())
                  : std::string();
}

bool OwnPage::offer_stacks(int signal, int file) noexcept {
  if (!current_) {
    return false;
  }
  current_->dump_signal = signal;
  if (signal != 0) {
    current_->dump_handler = handler_of(signal);
    stacks_offers.set(signal, file);
  }
  // Relaxed: the worker has registered its handler with the kernel before, and the server asks the
  // kernel whether it has.
  layout().header().dump_signal.store(static_cast<std::uint32_t>(signal),
                                      std::memory_order_relaxed);
  return true;
}

void OwnPage::move_offer_of_stacks(OwnPage& next) const noexcept {
  const int signal = current_->dump_signal;
  if (signal == 0 || !stacks_offers.is_same(signal)) {
    return;
  }
  try {
    const std::string path = next.stacks_file();
    const UniqueFd fresh =
        open_file(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    const int file = stacks_offers.file_of(signal);
    if (fresh && ::dup3(fresh.get(), file, O_CLOEXEC) == file) {
      next.offer_stacks(signal, file);
    }
  } catch (const std::bad_alloc&) {
    // The new page offers no stacks.
  }
}

// --- slots ---

SlotHandle* OwnPage::claim(ScopeKey key) {
  if (!current_) {
    if (Instant::now() < next_creation_) {
      return nullptr;
    }
    if (const Status made = make(allows_tracing_); !made) {
      if (next_creation_ == Instant{}) {  // once, not each second
        const std::string text = "no scope page, scopes are not watched: " + made.error().message;
        // For a process that has failed to make a page in connect(), that has written a notice. A
        // directory that is gone gives no errno, and has no server.
        const bool is_lack = inherited_ && made.error().errno_value != 0;
        is_lack ? client_messages::notice("{}", text) : client_messages::warning("{}", text);
      }
      next_creation_ = Instant::now() + kCreationPause;
      return nullptr;
    }
    if (!has_server()) {
      remove_abandoned_pages(pages_folder_);
    }
  }
  ThreadSlots& slots = slots_of_this_thread();
  SlotHandle* handle = slots.find_bound(key);
  if (handle == nullptr) {
    const std::string shown = shown_name(key);
    SlotStatistics* const entry = statistics_for(slots, shown);
    handle = slot_for(slots);
    if (handle == nullptr) {
      return nullptr;
    }
    slots.bind(*handle, key, shown, entry);
    slots.make_shortcut(key, *handle);
  }
  return handle;
}

ThreadSlots& OwnPage::slots_of_this_thread() {
  if (ThreadSlots* const known = ThreadSlots::of_this_thread(*this)) {
    return *known;
  }
  call_at_end_of_thread();
  auto& made =
      *current_->threads.emplace_back(std::make_unique<ThreadSlots>(*this, fork_watch::count()));
  made.is_suspended.store(latest().regions_.contains(made.tid), std::memory_order_relaxed);
  if (t_slots != nullptr && t_slots->fork_count == made.fork_count) {
    made.next_of_thread = t_slots;
  }
  t_slots = &made;
  return made;
}

SlotHandle* OwnPage::slot_for(ThreadSlots& slots) {
  SlotHandle* const handle = slots.has_enough_idle() ? nullptr : unused_slot();
  if (handle == nullptr) {
    return slots.next_idle();
  }
  slots.handles.push_back(handle);
  handle->owner.store(&slots, std::memory_order_relaxed);
  return handle;
}

SlotHandle* OwnPage::unused_slot() {
  auto& free = current_->free;
  if (free.empty()) {
    std::erase_if(current_->orphans, [&](SlotHandle* orphan) {
      const bool is_free = orphan->is_free();
      if (is_free) {
        free.push_back(orphan);
      }
      return is_free;
    });
  }
  if (free.empty()) {
    return new_slot();
  }
  SlotHandle* const handle = free.back();
  free.pop_back();
  return handle;
}

SlotHandle* OwnPage::new_slot() {
  const std::size_t index = current_->handles.size();
  if (index >= kMaxScopesPerWorker || !current_->file->allocate_slot(index)) {
    return nullptr;
  }
  SlotHandle& handle = current_->handles.emplace_back();
  handle.slot = &layout().slot(index);
  handle.page = this;
  handle.index = static_cast<std::uint32_t>(index);
  // Stored before any deadline of the slot, and also sequentially consistent: see
  // common/wake_protocol.hpp.
  layout().header().slots.store(handle.index + 1, std::memory_order_seq_cst);
  return &handle;
}

bool OwnPage::watch_idleness(const IdleTimeout& idle) {
  idle_timeouts_.push_back(idle);
  return current_ && begin_idle_timeout(idle);
}

bool OwnPage::begin_idle_timeout(const IdleTimeout& idle) {
  SlotHandle* const handle = unused_slot();
  if (handle == nullptr) {
    return false;
  }
  if (!notes_releases_.exchange(true, std::memory_order_relaxed)) {
    for (const SlotHandle& each : current_->handles) {
      // Without the lock, a thread that is suspended opens scopes in its slots and writes `left`.
      const ThreadSlots* const owner = each.owner.load(kRelaxed);
      if ((owner == nullptr || !owner->is_suspended.load(kRelaxed)) && each.is_free()) {
        each.slot->left.store(0, kRelaxed);  // a pause may have left a value
      }
    }
  }
  Slot& slot = *handle->slot;
  const Instant now = Instant::now();
  handle->idle_client = idle.client;
  handle->statistics = nullptr;
  begin_writing_slot();
  write_name(layout().name(handle->index), kIdleScopeName);
  slot.acquired.store(now.ns, kRelaxed);
  slot.started.store(now.ns, kRelaxed);
  slot.timeout.store(idle.timeout.count(), kRelaxed);
  slot.grace_ms.store(kServersGrace, kRelaxed);
  slot.soft_ms.store(0, kRelaxed);
  slot.tid.store(0, kRelaxed);
  slot.signal.store(SIGKILL, kRelaxed);
  slot.flags.store(slot_flag::kIdle, kRelaxed);
  slot.code_timeout_ms.store(0, kRelaxed);
  begin_idle_watch(slot);
  if (must_wake_at(board(), (now + idle.timeout).ns)) {
    wake();
  }
  return true;
}

void OwnPage::end_idle_timeout_of(const void* client) noexcept {
  std::erase_if(idle_timeouts_, [&](const IdleTimeout& each) { return each.client == client; });
  if (!current_) {
    return;
  }
  for (SlotHandle& handle : current_->handles) {
    if (handle.idle_client == client) {
      handle.idle_client = nullptr;
      release_late(*handle.slot);
      current_->orphans.push_back(&handle);  // after a verdict the server frees it
    }
  }
}

// The end of that scope is not noted. So no release counts until its deadline: another thread may
// leave a scope that is watched meanwhile.
void OwnPage::note_unwatched(Duration timeout) noexcept {
  if (!current_ || !notes_releases()) {
    return;
  }
  const std::int64_t now = monotonic_ns();
  const std::int64_t until = timeout == kNoDeadline ? now : now + timeout.count();
  for (const SlotHandle& handle : current_->handles) {
    std::atomic<std::int64_t>& started = handle.slot->started;
    if (is_idle_watch(*handle.slot)) {
      started.store(std::max(started.load(kRelaxed), until), kRelaxed);
    }
  }
}

// --- paused regions ---

bool OwnPage::end_region(pid_t tid) noexcept {
  const auto found = regions_.find(tid);
  if (found == regions_.end() || --found->second != 0) {
    return false;  // without an entry the thread has ended
  }
  regions_.erase(found);
  return true;
}

bool OwnPage::suspend_thread(pid_t tid, bool is_suspended) noexcept {
  if (!current_) {
    return false;
  }
  bool must_wake = false;
  const auto change = is_suspended ? pause_scope : resume_scope;
  for (const auto& slots : current_->threads) {
    if (slots->tid == tid) {
      slots->is_suspended.store(is_suspended, std::memory_order_relaxed);
      for (SlotHandle* const handle : slots->handles) {
        change(*handle, slot_flag::kSuspended, must_wake);
      }
    }
  }
  return must_wake;
}

void OwnPage::thread_ended(ThreadSlots& slots) noexcept {
  auto held = ProcessLock::instance().lock();
  latest().regions_.erase(slots.tid);
  bool must_wake = false;
  for (SlotHandle* const handle : slots.handles) {
    handle->owner.store(nullptr, std::memory_order_relaxed);
    if (handle->is_free()) {
      current_->free.push_back(handle);
      continue;
    }
    // The scope stays enforced, since it may have been moved to another thread. It is no longer in
    // a paused region.
    resume_scope(*handle, slot_flag::kSuspended, must_wake);
    handle->slot->flags.fetch_or(slot_flag::kThreadEnded, std::memory_order_relaxed);
    current_->orphans.push_back(handle);
  }
  try {
    current_->statistics.give_back(slots.statistics);
  } catch (const std::bad_alloc&) {
    // The entries stay on the page, and no thread continues them.
  }
  std::erase_if(current_->threads, [&](const auto& each) { return each.get() == &slots; });
  held.unlock();
  if (must_wake) {
    wake();
  }
}

// --- statistics ---

SlotStatistics* OwnPage::statistics_for(ThreadSlots& slots, const std::string& shown) {
  const auto place = slots.statistics.try_emplace(shown).first;
  SlotStatistics* entry = place->second;
  if (entry == nullptr) {
    entry = place->second = current_->statistics.take(*current_->file, shown);
  }
  if (entry == nullptr) {
    slots.statistics.erase(place);
  }
  return entry;
}

SlotStatistics* OwnPage::own_statistics(const SlotHandle& handle) noexcept {
  try {
    if (const ThreadSlots* const slots = ThreadSlots::of_this_thread(*this);
        slots != nullptr && handle.owner.load(std::memory_order_relaxed) == slots) {
      return handle.statistics;
    }
    const auto held = ProcessLock::instance().lock();
    return statistics_for(slots_of_this_thread(), read_name(layout().name(handle.index)));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// --- the server ---

// If no server runs, only the first wake-up opens the pipe. The incarnation on the status page then
// shows later scopes, without a system call, that no server has started since. No deadline is
// missed: a new server opens its pipe, then increments the incarnation, then reads all pages, in
// this order and sequentially consistent. This worker stores its deadline before it loads the
// incarnation. If it loads the one under which the pipe had no reader, the new server increments it
// later and reads the deadline later still. If it loads a new one, the pipe was opened before: it
// can be written to, or that server is gone as well. The same holds for a blank status page, which
// a client has made: its incarnation is 0 and its next wake-up is before every deadline, so a scope
// writes nothing until the first server has requested to be woken for every deadline. A line for
// which a full pipe has no room is not needed either: a server that finds its pipe so full looks
// for pages and reads all of them.
void OwnPage::wake() noexcept {
  const std::uint64_t incarnation = board().incarnation.load(std::memory_order_seq_cst);
  if (dead_incarnation_.load(std::memory_order_relaxed) == incarnation) {
    return;
  }
  // A server of an earlier version leaves the number of the last one that counted. Relaxed: an old
  // value causes a message.
  const bool are_counted = board().counts_scans.load(std::memory_order_relaxed) == incarnation;
  const std::uint64_t scan = are_counted ? board().scans.load(std::memory_order_seq_cst) : 0;
  // Acquire: pairs with the release below, by a thread whose message is in the pipe.
  if (scan != 0 && woken_in_.load(std::memory_order_acquire) == scan) {
    return;
  }
  const Sent sent = send_wake_up();
  log_reader_change(sent);
  if (sent == Sent::kYes) {
    layout().header().wakes.fetch_add(1, std::memory_order_relaxed);
    woken_in_.store(scan, std::memory_order_release);
  }
}

// Without a reader no announcement is needed: a server that starts reads all pages first.
void OwnPage::announce() noexcept {
  woken_in_.store(0, std::memory_order_relaxed);  // a message of the parent names another page
  const Sent sent = send_wake_up();
  has_logged_no_reader_.store(sent == Sent::kNoServer,
                              std::memory_order_relaxed);  // by connect()
}

Sent OwnPage::send_wake_up() noexcept {
  const std::uint64_t incarnation = board().incarnation.load(std::memory_order_seq_cst);
  const Sent sent = send_line(pipe_, current_->hint);
  // With EACCES this process may not open the pipe for now, as while it is another user.
  if (sent == Sent::kNoServer && errno != EACCES) {
    dead_incarnation_.store(incarnation, std::memory_order_relaxed);
  }
  return sent;
}

void OwnPage::log_reader_change(Sent sent) noexcept {
  if (sent == Sent::kNoServer && !has_logged_no_reader_.exchange(true, kRelaxed)) {
    client_messages::warning(
        "no process reads '{}': scopes are not watched until a timer server is back", pipe_);
  } else if (sent == Sent::kYes && has_logged_no_reader_.load(kRelaxed) &&
             has_logged_no_reader_.exchange(false, kRelaxed)) {
    client_messages::info("a timer server reads '{}' again", pipe_);
  }
}

// --- the files ---

bool OwnPage::begin_look() noexcept {
  const Instant now = Instant::now();
  if (!is_look_due(now.ns)) {
    return false;  // another thread has checked
  }
  next_look_.store((now + kLookPeriod).ns, std::memory_order_relaxed);
  if (is_off()) {
    return false;
  }
  keep_descriptors();
  if (!has_board()) {
    return true;
  }
  let_server_trace();
  // A directory that was removed, and not made again, has no server and needs no new page.
  if (is_broken()) {
    return identity_of(dir_) != FileIdentity{};
  }
  const FileIdentity found = identity_of(board_path_);
  return found != FileIdentity{} && found != identity();
}

// Notices that the program has closed descriptors of the page: takes the lock again, and withdraws
// the offer of stacks that would be written to another file. Withdraws it, too, if the program has
// installed another handler of its signal.
void OwnPage::keep_descriptors() noexcept {
  if (!current_) {
    return;
  }
  current_->file->keep_lock();
  const int signal = current_->dump_signal;
  const bool is_other_file = stacks_offers.file_of(signal) >= 0 && !stacks_offers.is_same(signal);
  if (signal != 0 && (is_other_file || handler_of(signal) != current_->dump_handler)) {
    offer_stacks(0, -1);
  }
}

void OwnPage::continue_on(OwnPage& next) noexcept {
  const ReplacedTimeouts* const timeouts = replaced_timeouts();
  if (timeouts != nullptr && next.replaced_timeouts() == nullptr) {
    next.replace_timeouts(*timeouts);
  }
  if (current_) {
    for (SlotHandle& handle : current_->handles) {
      if (end_idle_watch(*handle.slot)) {
        handle.idle_client = nullptr;
        current_->free.push_back(&handle);
      }
    }
    move_offer_of_stacks(next);
  }
  for (const IdleTimeout& each : std::exchange(idle_timeouts_, {})) {
    next.watch_idleness(each);
  }
  next.regions_.merge(regions_);
  for (const auto& [tid, regions] : regions_) {  // of threads that are in some of `next`
    next.regions_[tid] += regions;
  }
  regions_.clear();
  next_look_.store(0, std::memory_order_relaxed);  // threads that still use this page find `next`
  successor_.store(&next, std::memory_order_release);
}

void OwnPage::remove_if_unregistered() const noexcept {
  try {
    if (!current_ || has_server()) {
      return;
    }
    const std::string& name = current_->file->name();
    struct stat st {};
    if (::lstat(fmt::format("{}/{}/{}", pages_folder_, kOwnersName, name).c_str(), &st) != 0) {
      ::unlink(fmt::format("{}/{}", pages_folder_, name).c_str());
      ::unlink(stacks_file().c_str());
    }
  } catch (const std::bad_alloc&) {
    // The file stays until a server starts.
  }
}

}  // namespace filetimer
