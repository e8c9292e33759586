// Runs what may block (files of /proc that take a worker's memory lock) beside the loop. A job that
// hangs costs its thread; others go on in another one, up to kMaxSideThreads.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace filetimer {

class SideThreads {
 public:
  // What is to be done on the loop thread with a job's result; empty: nothing.
  using Delivery = std::function<void()>;
  using Job = std::function<Delivery()>;

  static constexpr int kMaxSideThreads = 4;
  // Jobs that wait; one more is dropped. All of them are of use only for a short while.
  static constexpr std::size_t kMaxJobs = 8192;

  // `realtime`: as the loop, which waits for them between a deadline and its signal.
  explicit SideThreads(bool realtime = false);
  // Leaves behind threads that do not come back; they keep what they need.
  ~SideThreads();
  SideThreads(const SideThreads&) = delete;
  SideThreads& operator=(const SideThreads&) = delete;

  // Called on the loop thread. The job must own all that it uses.
  void run(Job job);
  // Readable when deliver() has something to do.
  [[nodiscard]] int event_fd() const;
  // Carries out, on the caller's thread, the deliveries of the jobs that have come back.
  void deliver();
  // Waits at most `bound` for the threads to end. False when one hangs.
  bool stop(std::chrono::milliseconds bound);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace filetimer
