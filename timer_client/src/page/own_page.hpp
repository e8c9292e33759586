// This process's scope page in one run folder: shared by all of its clients there, and never
// destroyed, since scopes and threads hold plain pointers to it. Hands its slots to the threads
// that open scopes, tells the server of itself, and wakes it where a deadline needs it. A forked
// child drops the page of its parent, never writes to it, and makes its own with its first scope.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_client/src/page/page_file.hpp"
#include "timer_client/src/page/page_statistics.hpp"
#include "timer_client/src/page/slot_handle.hpp"
#include "timer_client/src/page/thread_slots.hpp"
#include "timer_client/src/pipe/pipe_line.hpp"
#include "timer_client/src/server/board_view.hpp"

namespace filetimer {

class OwnPage {
 public:
  enum class Refusal {
    kLimit,   // kMaxScopesPerWorker are open
    kNoRoom,  // the disk is full, or the page can't be made
  };

  // `dir`: the run folder; `pipe`: where its server listens.
  OwnPage(BoardView board, const std::string& dir, std::string pipe);
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  // --- with the Keeper's lock ---

  // For a client that connects: makes the page, if there is none yet, and announces it.
  Status make(bool with_statistics);
  // A slot for this thread to open a scope in: bound to `key`, and safe from being taken away until
  // the thread no longer is_entering. Null: see `why`. May throw std::bad_alloc.
  SlotHandle* claim(ScopeKey key, Refusal& why);
  // Ends all scopes that `client` opened and has to release, and its idle timeout.
  void release_those_of(std::uint64_t client) noexcept;
  // From now on this process expires when it has been in no scope for `timeout` since its last one.
  // False: see `why`. `wake`: wake() is to be called, without the lock; likewise for these that
  // follow. A child has none.
  bool watch_idleness(Duration timeout, std::uint64_t client, Refusal& why, bool& wake);
  // A scope was opened that nobody watches: an idle timeout begins anew.
  void note_unwatched() noexcept;
  // Time stands still for the scopes that this thread has open or opens, until as many calls of
  // end_suspension(). Null: there is no page. May throw std::bad_alloc.
  ThreadSlots* slots_to_suspend();
  static void suspend_thread(ThreadSlots& slots, bool& wake) noexcept;
  void end_suspension(const ThreadSlots* slots, pid_t tid, bool& wake) noexcept;
  void become_child() noexcept;
  // See TimerClient. Empty, and false: there is no page.
  [[nodiscard]] std::string stacks_file() const;
  bool offer_stacks(int signal) noexcept;

  // A wake line that could not be written waits for the Keeper's thread.
  [[nodiscard]] bool has_pending() const { return is_pending_.load(std::memory_order_relaxed); }
  [[nodiscard]] Instant next_try() const { return next_try_; }
  void try_again() noexcept;

  // --- any thread, without the lock ---

  // After a scope was opened or renewed under a deadline that must_wake() tells of.
  void wake() noexcept;
  // The thread that these belong to ends. Destroys them.
  void thread_ended(ThreadSlots& slots) noexcept;
  // What this thread counts an open scope of `handle` in, which is another thread's. Null: nothing.
  SlotStatistics* own_statistics(const SlotHandle& handle, bool has_lock) noexcept;

  [[nodiscard]] const Board& board() const { return board_.board(); }
  // Whether somebody wants to know when scopes are released.
  [[nodiscard]] bool notes_releases() const {
    return notes_releases_.load(std::memory_order_relaxed);
  }
  // A pid that this process writes in a line would name another process there.
  [[nodiscard]] bool server_has_other_pids() const;
  [[nodiscard]] BoardView::Identity identity() const { return board_.identity(); }
  [[nodiscard]] bool is_watched() const noexcept;
  // These two for threads that have a slot of the page.
  [[nodiscard]] PageLayout layout() const { return current_->file->layout(); }
  [[nodiscard]] bool may_have_statistics() const { return current_->statistics.may_have_more(); }

 private:
  // All that belongs to one page file. A child keeps what it inherited, without the file, for as
  // long as it lives: another thread may have been at work on any of it at the fork.
  struct Page {
    std::optional<PageFile> file;
    std::string hint;  // the line that names it
    std::deque<SlotHandle> handles;
    std::vector<SlotHandle*> free;     // with no thread
    std::vector<SlotHandle*> orphans;  // of threads that ended inside a scope
    std::vector<std::unique_ptr<ThreadSlots>> threads;
    PageStatistics statistics;
    std::unique_ptr<Page> inherited;
  };

  ThreadSlots& slots_of_this_thread();
  SlotStatistics* statistics_for(ThreadSlots& slots, const std::string& shown);
  SlotHandle* slot_for(ThreadSlots& slots, Refusal& why);
  SlotHandle* slot_from_pool();
  SlotHandle* new_slot(Refusal& why);
  bool take_idle_of_other_threads(const ThreadSlots& taker);
  void announce() noexcept;
  LineSent tell_server() noexcept;
  void put_off(LineSent why) noexcept;
  [[nodiscard]] bool has_anything_watched() const noexcept;
  void tell_whether_gone(LineSent sent) noexcept;

  const BoardView board_;
  const std::string pages_folder_;
  const std::string pipe_;
  std::unique_ptr<Page> current_;
  std::unique_ptr<Page> inherited_;
  bool with_statistics_ = false;
  Instant next_creation_;

  // The server's incarnation under which nobody read the pipe; see wake().
  std::atomic<std::uint64_t> dead_incarnation_{~std::uint64_t{0}};
  std::atomic<bool> is_pending_{false};
  std::atomic<bool> notes_releases_{false};
  std::atomic<bool> is_told_gone_{false};  // for messages only
  bool is_announced_ = false;
  Duration pause_{};
  Instant next_try_;
};

}  // namespace filetimer
