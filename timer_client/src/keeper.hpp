// What the clients of a process share: the lock, the scope pages, what must happen at fork(), and
// the thread that writes later the wake-up message for which the pipe had no room. The thread
// starts with the first such message and ends when nothing has waited for a while; a worker whose
// server is well never has it. fork(): the lock is held across it, so that a child of a
// multithreaded program finds everything in one piece; in the child no scope is open and no thread
// runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>

#include "common/result.hpp"
#include "timer_client/src/fork_watch.hpp"
#include "timer_client/src/page/own_page.hpp"

namespace filetimer {

class Keeper {
 public:
  // Never destroyed: scopes in static objects and the thread may outlive every other static.
  static Keeper& instance();

  // Every member below must be called with this lock held.
  [[nodiscard]] std::unique_lock<std::mutex> lock() {
    notice_clone();
    return std::unique_lock(mutex_);
  }

  // Returns this process's page in the runtime directory `dir`, whose server listens at `pipe`.
  // Makes the directory and its status page if they are missing; if that fails, `why_not` says why,
  // and the page has no status page: its scopes are not watched until a later look finds one.
  OwnPage& page_in(const std::string& dir, const std::string& pipe, Status& why_not);

  // Returns the page of clients that are switched off: no scope is opened on it.
  OwnPage& page_of_nobody();

  // Looks, at most once a second for each page, whether the files of the page are the ones that a
  // server uses: the runtime directory may have been removed and made again, or a file cut short.
  // Returns the page to use from now on: `page`, or its successor.
  OwnPage& look_again(OwnPage& page) noexcept;

  // Has the thread look at the pages no later than `when`. Returns false if it cannot be started.
  bool attend(Instant when) noexcept;

  [[nodiscard]] std::uint64_t next_client() { return ++last_client_; }
  // Differs between a process and its forked children.
  [[nodiscard]] unsigned fork_count() const { return fork_count_; }

 private:
  Keeper();
  void start_thread() noexcept;
  void run();
  void notice_clone() noexcept;
  void become_child() noexcept;
  void remove_unregistered_pages() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_running_ = false;
  Instant sleeps_until_;
  std::list<OwnPage> pages_;  // only grows
  std::uint64_t last_client_ = 0;
  unsigned fork_count_ = 1;
};

}  // namespace filetimer
