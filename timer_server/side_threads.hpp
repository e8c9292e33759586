// Runs what may block (files of /proc that take a worker's memory lock) beside the loop, and what
// takes its time. A job that hangs costs its thread; others go on in another one, up to
// kMaxSideThreads of its lane: what is slow by nature never stands in the way of what is quick.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace filetimer {

class SideThreads {
 public:
  // What is to be done on the loop thread with a job's result; empty: nothing.
  using Delivery = std::function<void()>;
  using Job = std::function<Delivery()>;

  enum class Lane { kQuick, kSlow };

  static constexpr int kMaxSideThreads = 4;  // of each lane
  // Jobs that wait in a lane; one more is dropped. All of them are of use only for a short while.
  static constexpr std::size_t kMaxJobs = 8192;

  // `realtime`: as the loop, which waits for them between a deadline and its signal.
  explicit SideThreads(bool realtime = false);
  // Leaves behind threads that do not come back; they keep what they need.
  ~SideThreads();
  SideThreads(const SideThreads&) = delete;
  SideThreads& operator=(const SideThreads&) = delete;

  // Called on the loop thread. The job must own all that it uses.
  void run(Job job, Lane lane = Lane::kQuick);
  // Jobs that no thread has taken up yet.
  [[nodiscard]] std::size_t waiting(Lane lane) const;
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
