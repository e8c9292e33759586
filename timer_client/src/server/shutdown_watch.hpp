// Calls back when the server announces on its board that it shuts down, or has stopped. A thread
// waits there only while somebody has registered a callback, by futex(2) and for kLookPeriod at
// most: it owns the watch together with the client, so nobody waits for the thread when the client
// goes.
// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "timer_client/src/server/board_view.hpp"

namespace filetimer {

class ShutdownWatch : public std::enable_shared_from_this<ShutdownWatch> {
 public:
  // How late the thread sees that it is not needed, or that there is a board now.
  static constexpr Duration kLookPeriod = std::chrono::seconds{1};

  // Not in a shared_ptr: std::bad_weak_ptr from add().
  explicit ShutdownWatch(std::string board_path);

  // Throws TimerError when there is no thread to be had.
  void add(std::function<void()> call);
  // No callback runs after it, but for the one that calls it.
  void stop();

  // In a forked child the thread is not there, and the mutex may be locked for ever.
  [[nodiscard]] bool is_of_this_process() const;
  // For such a child: forgets it without touching it.
  static void leave_to_parent(std::shared_ptr<ShutdownWatch> watch);

 private:
  void look();  // with the lock
  void run();
  void call_all(std::unique_lock<std::mutex>& held);

  const std::string board_path_;
  const unsigned fork_count_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::optional<BoardView> board_;  // once it is there, for good
  bool has_served_ = false;         // a server on it
  std::vector<std::function<void()>> calls_;
  std::thread::id calling_;  // the thread in which a callback runs
  bool has_thread_ = false;
  bool is_stopped_ = false;
};

}  // namespace filetimer
