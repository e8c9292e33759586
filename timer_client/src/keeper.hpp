// The one place in a process where all of its clients meet: the lock, the ids of open scopes, the
// scope pages, what must happen at fork(), and the thread that delivers later what could not be
// sent at once. The thread starts with the first failure and ends when nothing has waited for a
// while; a worker whose server is well never has it. fork(): the lock is held across it, so that a
// child of a multithreaded program finds everything in one piece; in the child no scope is open and
// no thread runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "timer_client/src/fork_watch.hpp"
#include "timer_client/src/page/own_page.hpp"
#include "timer_client/src/pipe/outbox.hpp"
#include "timer_client/src/pipe/scope_ids.hpp"

namespace filetimer {

class Keeper {
 public:
  // Never destroyed: scopes in static objects and the thread may outlive every other static.
  static Keeper& instance();

  // Everything below, and every call of an Outbox, wants this lock.
  [[nodiscard]] std::unique_lock<std::mutex> lock() {
    notice_clone();
    return std::unique_lock(mutex_);
  }

  Outbox& add(std::unique_ptr<Transport> transport);
  // Its client is gone. It is dropped once everything has been delivered.
  void abandon(Outbox& outbox) noexcept;

  // This process's page on the board's run folder; `dir` and `pipe` are where it is.
  OwnPage& page_on(BoardView board, const std::string& dir, const std::string& pipe);

  // Sends what a call has changed, and leaves to the thread what can't be sent now.
  void deliver(Outbox& outbox) noexcept;

  // Sees to it that the thread looks at the pages no later than `when`. False: it can't be started.
  bool attend(Instant when) noexcept;

  [[nodiscard]] ScopeIds& ids() { return ids_; }
  [[nodiscard]] Outbox::Number next_number() { return ++last_number_; }
  // Differs between a process and its forked children.
  [[nodiscard]] unsigned fork_count() const { return fork_count_; }

 private:
  Keeper();
  void start_thread() noexcept;
  void send(Outbox& outbox) noexcept;
  void note_activity() noexcept;
  void run();
  void drop_abandoned() noexcept;
  void notice_clone() noexcept;
  void become_child() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_running_ = false;
  Instant sleeps_until_;
  ScopeIds ids_;
  std::list<Outbox> outboxes_;
  std::list<OwnPage> pages_;  // only grows
  Outbox::Number last_number_ = 0;
  bool was_inside_ = false;  // a scope of a client that uses the pipe
  unsigned fork_count_ = 1;
};

}  // namespace filetimer
