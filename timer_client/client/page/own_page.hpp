// This process's scope page in one runtime directory. All clients of the process in that directory
// share the page. It is never destroyed, since scopes and threads hold plain pointers to it. An
// OwnPage hands its slots to the threads that open scopes, announces the page to the server, and
// wakes the server for a deadline that is earlier than its next reading. The page is made whether a
// server runs or not: a server that starts reads all pages.
//
// A forked child drops the page of its parent, never writes to it, and makes its own with its first
// scope. If the runtime directory is removed and made again, or a file of it is cut short or
// removed, the page gets a successor (ProcessPages::look_again()); scopes that are open stay on the
// old page until they are renewed.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/posix.hpp"
#include "timer_client/client/page/page_file.hpp"
#include "timer_client/client/page/page_statistics.hpp"
#include "timer_client/client/page/thread_slots.hpp"
#include "timer_client/client/page/timeouts_file.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {

// The files to which this process writes its stacks, by the signal on which it does. A program may
// close such a file and open one of its own under the same number, so the handler of the signal
// checks the file before it writes. Written with the ProcessLock held; read in signal handlers.
// While an entry is written, a handler may see no file, and writes no stacks.
class StacksOffers {
 public:
  void set(int signal, int file) noexcept {
    const FileIdentity identity = identity_of(file);
    Entry& entry = entries_.at(static_cast<std::size_t>(signal));
    entry.file.store(-1, std::memory_order_relaxed);
    entry.device.store(identity.device, std::memory_order_relaxed);
    entry.inode.store(identity.inode, std::memory_order_relaxed);
    // Pairs with the load in is_same().
    entry.file.store(identity == FileIdentity{} ? -1 : file, std::memory_order_release);
  }
  // Returns the descriptor; -1: none was given.
  [[nodiscard]] int file_of(int signal) const noexcept {
    return entries_.at(static_cast<std::size_t>(signal)).file.load(std::memory_order_relaxed);
  }
  // Returns whether the descriptor is still that of the file. Async-signal-safe.
  [[nodiscard]] bool is_same(int signal) const noexcept {
    const Entry& entry = entries_.at(static_cast<std::size_t>(signal));
    const int file = entry.file.load(std::memory_order_acquire);
    return file >= 0 &&
           identity_of(file) == FileIdentity{entry.device.load(std::memory_order_relaxed),
                                             entry.inode.load(std::memory_order_relaxed)};
  }

 private:
  static constexpr std::size_t kSignals = 65;
  struct Entry {
    std::atomic<int> file{-1};
    std::atomic<dev_t> device{0};
    std::atomic<ino_t> inode{0};
  };
  std::array<Entry, kSignals> entries_{};
};

inline constinit StacksOffers stacks_offers;

class OwnPage {
 public:
  // `dir`: the runtime directory; `pipe`: the request pipe of its server.
  OwnPage(BoardView board, std::string dir, std::string pipe);

  // --- these must be called with the ProcessLock held ---

  // Makes the page file if this process has none yet, and announces it. Fails without a status
  // page.
  Status make(bool allow_tracing);
  // Returns a slot in which this thread can open a scope. The slot is bound to `key`. Null: the
  // threads have all slots and this one has none free (see has_all_slots()), the disk is full, or
  // the page cannot be made. May throw std::bad_alloc.
  SlotHandle* claim(ScopeKey key);
  struct IdleTimeout {
    Duration timeout;
    const void* client;  // that has begun it
  };
  // Begins an idle timeout: this process expires when it has been in no scope for so long since its
  // last one. Returns false if there is no slot for it, or no page yet: then it begins with the
  // page. A forked child has no idle timeout.
  bool watch_idleness(const IdleTimeout& idle);
  // Ends the idle timeout that `client` has begun, if there is one.
  void end_idle_timeout_of(const void* client) noexcept;
  // Begins the idle timeouts anew, as a scope with this timeout was opened that is not watched.
  void note_unwatched(Duration timeout) noexcept;
  // Begin and end a paused region of a thread, which the caller suspends. May throw std::bad_alloc.
  void begin_region(pid_t tid) { ++regions_[tid]; }
  // Returns whether it was the last one that the thread was in: then the caller ends that.
  bool end_region(pid_t tid) noexcept;
  // Stops the time of the scopes that the thread has open or opens on this page, or lets it go on.
  // Returns whether wake() must be called.
  [[nodiscard]] bool suspend_thread(pid_t tid, bool is_suspended) noexcept;
  // Drops the page of the parent, in a forked child.
  void become_child() noexcept;
  // Checks the files of the page, if the last check was a second ago. Returns whether a server does
  // not use these files: the page has no status page, another status page is at its path, or a file
  // was cut short or removed.
  bool begin_look() noexcept;
  // Makes `next` the successor of this page, and moves the idle timeouts and the offer of stacks
  // there.
  void continue_on(OwnPage& next) noexcept;
  // Returns whether a thread is in a paused region, whose scopes must stay on one page.
  [[nodiscard]] bool is_any_thread_suspended() const { return current_ && !regions_.empty(); }
  [[nodiscard]] bool allows_tracing() const { return allows_tracing_; }
  // Returns whether the page has as many slots as it may have.
  [[nodiscard]] bool has_all_slots() const {
    return current_ && current_->handles.size() >= kMaxScopesPerWorker;
  }
  // Returns whether this process has a page file now.
  [[nodiscard]] bool is_made() const { return current_ != nullptr; }
  // Removes the page file at the end of the process, if no server runs and none has registered it.
  void remove_if_unregistered() const noexcept;
  // See TimerClient. Return an empty path, and false, if this process has no page.
  [[nodiscard]] std::string stacks_file() const;
  bool offer_stacks(int signal, int file) noexcept;

  // --- any thread, without the lock ---

  // Returns the status page of the server.
  [[nodiscard]] const Board& board() const { return view_.board(); }
  // Returns whether a release must be noted in its slot, for an idle timeout.
  [[nodiscard]] bool notes_releases() const {
    return notes_releases_.load(std::memory_order_relaxed);
  }
  // Returns the timeouts of a file that replace those in the code; null: there is no file. Acquire:
  // pairs with the release in replace_timeouts().
  [[nodiscard]] const ReplacedTimeouts* replaced_timeouts() const {
    return replaced_timeouts_.load(std::memory_order_acquire);
  }
  // Applies `timeouts` to names that a thread uses for the first time. They must never be
  // destroyed.
  void replace_timeouts(const ReplacedTimeouts& timeouts) {
    replaced_timeouts_.store(&timeouts, std::memory_order_release);
  }
  // Returns whether ProcessPages::look_again() is due.
  [[nodiscard]] bool is_look_due(std::int64_t now) const {
    return now >= next_look_.load(std::memory_order_relaxed);
  }
  // Wakes the server. Must be called, with or without the ProcessLock, after a scope was opened or
  // renewed with a deadline for which must_wake() returns true.
  void wake() noexcept;
  // Returns the page that took the place of this one; null: none did. Acquire: pairs with the
  // release in continue_on().
  [[nodiscard]] OwnPage* successor() const { return successor_.load(std::memory_order_acquire); }
  // Returns the page that continues this one now.
  [[nodiscard]] OwnPage& latest() {
    OwnPage* const next = successor();
    return next == nullptr ? *this : next->latest();
  }
  // Returns whether a server holds the lock of the status page. Takes some microseconds.
  [[nodiscard]] bool has_server() const { return look_for_server(dir_).is_there; }
  // Takes back the slots of a thread that ends, and destroys `slots`.
  void thread_ended(ThreadSlots& slots) noexcept;
  // Returns the entry in which this thread counts the scope of `handle`, which is a slot of another
  // thread; null: the scope is not counted. Must be called without the ProcessLock.
  SlotStatistics* own_statistics(const SlotHandle& handle) noexcept;

  [[nodiscard]] bool is_off() const { return view_.is_off(); }
  [[nodiscard]] bool has_board() const { return identity() != FileIdentity{}; }
  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] const std::string& pipe() const { return pipe_; }
  [[nodiscard]] const std::string& pages_folder() const { return pages_folder_; }
  [[nodiscard]] FileIdentity identity() const { return view_.identity(); }
  // With the ProcessLock.
  [[nodiscard]] bool is_broken() const {
    return view_.is_broken() || (current_ && current_->file->is_broken());
  }
  // Must be called by threads that have a slot of the page, as the next member.
  [[nodiscard]] PageLayout layout() const { return current_->file->layout(); }
  // Returns how many slots were ever used. Relaxed: only chooses how many slots a thread keeps.
  [[nodiscard]] std::size_t slots() const {
    return layout().header().slots.load(std::memory_order_relaxed);
  }
  // Returns false if no further name can get statistics.
  [[nodiscard]] bool may_have_statistics() const { return current_->statistics.may_have_more(); }

 private:
  // All data of one page file. A forked child never destroys the Page that it inherited, except for
  // the file: another thread of the parent may have been changing any part of it at the fork.
  struct Page {
    std::optional<PageFile> file;
    std::string hint;  // the wake-up message that names it
    std::deque<SlotHandle> handles;
    std::vector<SlotHandle*> free;     // that no thread has
    std::vector<SlotHandle*> orphans;  // of threads that ended inside a scope
    std::vector<std::unique_ptr<ThreadSlots>> threads;
    PageStatistics statistics;
    int dump_signal = 0;  // on which this process writes its stacks, see stacks_offers; 0: none
    void (*dump_handler)(int) = nullptr;  // of that signal when it was offered
    std::unique_ptr<Page> inherited;
  };

  ThreadSlots& slots_of_this_thread();
  SlotStatistics* statistics_for(ThreadSlots& slots, const std::string& shown);
  SlotHandle* slot_for(ThreadSlots& slots);
  SlotHandle* unused_slot();  // of no thread: one that was given back, or a new one
  SlotHandle* new_slot();
  bool begin_idle_timeout(const IdleTimeout& idle);
  void announce() noexcept;
  Sent send_wake_up() noexcept;
  void log_reader_change(Sent sent) noexcept;

  Status make_folders() const;
  void let_server_trace() noexcept;
  void keep_descriptors() noexcept;
  void move_offer_of_stacks(OwnPage& next) const noexcept;

  const BoardView view_;
  std::atomic<bool> notes_releases_{false};
  std::atomic<const ReplacedTimeouts*> replaced_timeouts_{nullptr};
  std::atomic<std::int64_t> next_look_{0};  // CLOCK_MONOTONIC. Relaxed: orders no other data
  const std::string dir_;
  const std::string board_path_;
  const std::string pages_folder_;
  const std::string pipe_;
  std::unique_ptr<Page> current_;
  std::unique_ptr<Page> inherited_;
  bool allows_tracing_ = false;
  static constexpr std::uint64_t kNoIncarnation = ~std::uint64_t{0};
  std::uint64_t tracing_incarnation_ = kNoIncarnation;  // of the server that may trace this process
  Instant next_creation_;

  // The server's incarnation under which the pipe had no reader; see wake().
  std::atomic<std::uint64_t> dead_incarnation_{kNoIncarnation};
  // The server's scan during or after which this process has written its last message; see
  // wake_protocol.hpp. 0: none.
  std::atomic<std::uint64_t> woken_in_{0};
  std::atomic<OwnPage*> successor_{nullptr};
  std::atomic<bool> has_logged_no_reader_{false};  // for messages only
  std::map<pid_t, unsigned> regions_;              // how many paused ones a thread is in
  std::vector<IdleTimeout> idle_timeouts_;         // of all clients of the page
};

}  // namespace filetimer
