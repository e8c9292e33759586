// This process's scope page in one runtime directory: shared by all of its clients there, and never
// destroyed, since scopes and threads hold plain pointers to it. Hands its slots to the threads
// that open scopes, announces itself to the server, and wakes it where a deadline needs that. The
// page is made whether a server runs or not: a server that starts reads all pages.
//
// A forked child drops the page of its parent, never writes to it, and makes its own with its first
// scope. If the runtime directory is removed and made again, or a file of it is cut short, the page
// gets a successor (ProcessPages::look_again()); scopes that are open stay on the old page until
// they are renewed.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "timer_client/client/page/page_context.hpp"
#include "timer_client/client/page/page_file.hpp"
#include "timer_client/client/page/page_statistics.hpp"
#include "timer_client/client/page/slot_handle.hpp"
#include "timer_client/client/page/thread_slots.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/server/board_view.hpp"

namespace filetimer {

class OwnPage final : public PageContext {
 public:
  enum class Refusal {
    kLimit,   // kMaxScopesPerWorker are open
    kNoRoom,  // the disk is full, or the page can't be made
  };

  // `dir`: the runtime directory; `pipe`: where its server listens.
  OwnPage(BoardView board, std::string dir, std::string pipe);
  // Returns the page of a slot.
  static OwnPage& of(const SlotHandle& handle) { return static_cast<OwnPage&>(*handle.page); }

  // --- with the ProcessLock ---

  // Makes the page, if there is none yet, and announces it. Fails without a status page.
  Status make(bool with_statistics, bool allow_tracing);
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
  // Begins a look at the files, if the last one was a second ago. Returns whether they are not the
  // ones that a server uses: there is no status page, another one is in its place, or a file was
  // cut short.
  bool begin_look() noexcept;
  // Makes `next` the successor of this page, and moves the idle timeouts and the offer of stacks
  // there.
  void continue_on(OwnPage& next) noexcept;
  // Returns whether a thread is in a paused region: its scopes must stay on one page.
  [[nodiscard]] bool is_any_thread_suspended() const noexcept;
  [[nodiscard]] bool keeps_statistics() const { return with_statistics_; }
  [[nodiscard]] bool allows_tracing() const { return allows_tracing_; }
  // Returns whether this process has a page file now.
  [[nodiscard]] bool is_made() const { return current_ != nullptr; }
  // Removes the page file if no server knows it. For the end of the process: nobody would.
  void remove_if_unregistered() const noexcept;
  // See TimerClient. Empty, and false: there is no page.
  [[nodiscard]] std::string stacks_file() const;
  bool offer_stacks(int signal, int file) noexcept;

  // A wake line that could not be written waits for the retry thread.
  [[nodiscard]] bool has_pending() const { return is_pending_.load(std::memory_order_relaxed); }
  [[nodiscard]] Instant next_try() const { return next_try_; }
  void try_again() noexcept;

  // --- any thread, without the lock ---

  void wake() noexcept override;
  // Returns the page that took the place of this one; null: none did. Acquire: pairs with the
  // release in continue_on().
  [[nodiscard]] OwnPage* successor() const { return successor_.load(std::memory_order_acquire); }
  // Returns whether a server holds the lock of the status page. Some microseconds.
  [[nodiscard]] bool has_server() const;
  // The thread that these belong to ends. Destroys them.
  void thread_ended(ThreadSlots& slots) noexcept;
  SlotStatistics* own_statistics(const SlotHandle& handle, bool has_lock) noexcept override;

  [[nodiscard]] bool is_off() const { return view_.is_off(); }
  [[nodiscard]] bool has_board() const { return identity() != BoardView::Identity{}; }
  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] const std::string& pipe() const { return pipe_; }
  [[nodiscard]] const std::string& pages_folder() const { return pages_folder_; }
  [[nodiscard]] BoardView::Identity identity() const { return view_.identity(); }
  // With the ProcessLock.
  [[nodiscard]] bool is_broken() const {
    return view_.is_broken() || (current_ && current_->file->is_broken());
  }
  [[nodiscard]] bool is_watched() const noexcept;
  // These two for threads that have a slot of the page.
  [[nodiscard]] PageLayout layout() const override { return current_->file->layout(); }
  [[nodiscard]] bool may_have_statistics() const override {
    return current_->statistics.may_have_more();
  }

 private:
  // All that belongs to one page file. A child keeps what it inherited, without the file, for as
  // long as it lives: another thread may have been at work on any of it at the fork.
  // The signal on which this process writes its stacks, and where to; signal 0: none.
  struct StacksOffer {
    int signal = 0;
    int file = -1;
    BoardView::Identity identity;  // of the file: the process may close the descriptor
  };

  struct Page {
    std::optional<PageFile> file;
    std::string hint;  // the line that names it
    std::deque<SlotHandle> handles;
    std::vector<SlotHandle*> free;     // with no thread
    std::vector<SlotHandle*> orphans;  // of threads that ended inside a scope
    std::vector<std::unique_ptr<ThreadSlots>> threads;
    PageStatistics statistics;
    StacksOffer offer;
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
  void try_later() noexcept;
  [[nodiscard]] bool has_anything_watched() const noexcept;
  void tell_whether_gone(LineSent sent) noexcept;

  Status make_folders() const;
  void move_offer_of_stacks(OwnPage& next) const noexcept;

  const BoardView view_;
  const std::string dir_;
  const std::string board_path_;
  const std::string pages_folder_;
  const std::string pipe_;
  std::unique_ptr<Page> current_;
  std::unique_ptr<Page> inherited_;
  bool with_statistics_ = false;
  bool allows_tracing_ = false;
  Instant next_creation_;

  // The server's incarnation under which nobody read the pipe; see wake().
  std::atomic<std::uint64_t> dead_incarnation_{~std::uint64_t{0}};
  std::atomic<bool> is_pending_{false};
  std::atomic<OwnPage*> successor_{nullptr};
  std::atomic<bool> is_told_gone_{false};  // for messages only
  bool is_announced_ = false;
  Duration pause_{};
  Instant next_try_;
};

}  // namespace filetimer
