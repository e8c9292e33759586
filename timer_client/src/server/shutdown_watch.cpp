// SPDX-License-Identifier: MIT
#include "timer_client/src/server/shutdown_watch.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "timer_client/src/fork_watch.hpp"
#include "timer_client/src/own_thread.hpp"

namespace filetimer {
namespace {

constexpr auto kShutdown = static_cast<std::uint32_t>(Announcement::kShutdown);

// Until the word is no longer `seen`, or for `longest`. Without FUTEX_PRIVATE_FLAG: who changes it
// is another process.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Duration longest) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(longest);
  const timespec bound{seconds.count(), (longest - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &bound, nullptr, 0);
}

}  // namespace

// The ProcessLock is held: a child has noticed what it is.
ShutdownWatch::ShutdownWatch(std::string board_path)
    : board_path_(std::move(board_path)), fork_count_(fork_watch::count()) {}

void ShutdownWatch::add(std::function<void()> call) {
  const std::scoped_lock held(mutex_);
  look();  // a server that stops before the thread does has been seen to serve
  calls_.push_back(std::move(call));
  if (!has_thread_) {
    has_thread_ = start_own_thread([self = shared_from_this()] { self->run(); });
    if (!has_thread_) {
      calls_.pop_back();
      throw_no_thread();
    }
  }
}

void ShutdownWatch::stop() {
  std::vector<std::function<void()>> dropped;  // what they own may call back
  std::unique_lock held(mutex_);
  is_stopped_ = true;
  dropped.swap(calls_);
  if (calling_ != std::this_thread::get_id()) {
    returned_.wait(held, [&] { return calling_ == std::thread::id{}; });
  }
}

bool ShutdownWatch::is_of_this_process() const {
  return fork_count_ == fork_watch::count();
}

void ShutdownWatch::leave_to_parent(std::shared_ptr<ShutdownWatch> watch) {
  // Its destructor would destroy what a thread that is not here may have locked.
  new std::shared_ptr<ShutdownWatch>(std::move(watch));
}

void ShutdownWatch::look() {
  if (!board_) {
    board_ = BoardView::open(board_path_);
  }
  has_served_ = has_served_ || (board_ && board_->is_serving());
}

void ShutdownWatch::run() {
  // Stands for the word while there is no board; nobody changes it.
  const std::atomic<std::uint32_t> none{0};
  std::unique_lock held(mutex_);
  while (!is_stopped_ && !calls_.empty()) {
    look();
    const auto& word = board_ ? board_->board().announcement : none;
    held.unlock();
    // Pairs with the server's store: what it wrote on the board before can be seen.
    std::uint32_t seen = word.load(std::memory_order_acquire);
    if (seen != kShutdown) {
      wait_for_change(word, seen, kLookPeriod);
      seen = word.load(std::memory_order_acquire);
    }
    held.lock();
    // A server takes its announcement back when it has stopped, which may be soon after it.
    if (seen == kShutdown || (has_served_ && !board_->is_serving())) {
      call_all(held);
    }
  }
  has_thread_ = false;
}

// Also those that a callback adds: the announcement stands.
void ShutdownWatch::call_all(std::unique_lock<std::mutex>& held) {
  while (!is_stopped_ && !calls_.empty()) {
    std::function<void()> call = std::move(calls_.front());
    calls_.erase(calls_.begin());
    calling_ = std::this_thread::get_id();
    held.unlock();
    call();
    call = nullptr;  // what it owns goes with it, and without the lock
    held.lock();
    calling_ = {};
    returned_.notify_all();
  }
}

}  // namespace filetimer
