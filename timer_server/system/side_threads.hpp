// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "common/posix.hpp"

namespace filetimer {

// Starts a thread that is never joined. Throws a std::system_error if there are no more threads.
template <class Work>
void start_detached_thread(Work work) {
  try {
    std::thread(std::move(work)).detach();
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "cannot start a thread");  // its own text has no subject
  }
}

// Runs jobs that may block, for example on files of /proc that take a worker's memory lock, or that
// take time, so that the loop never waits. A job runs on a side thread; the function that it
// returns runs on the loop thread:
//
//   side_threads.run([pid, cell]() -> SideThreads::Delivery {
//     WorkerFacts facts = read_worker_facts(pid);
//     return [cell, facts] { *cell = facts; };
//   }, SideThreads::Lane::kFacts);
//
// A job that hangs costs its thread. Other threads take its place, up to max_threads() of its
// lane. A job never waits for one of another lane.
class SideThreads : NotCopied {
 public:
  // What deliver() does with the result of a job; empty: nothing.
  using Delivery = std::function<void()>;
  using Job = std::function<Delivery()>;

  // kSlow: jobs that may wait for a worker. kFacts: reads in /proc that take its memory lock, which
  // a worker that hangs may hold: no evidence of a kill waits behind them.
  // kMetrics: jobs that may wait for the file system of --metrics, so that metrics are written
  // while workers hang; one after the other. kUnexpired: evidence of workers that have not
  // expired, which leaves all threads of kQuick and kSlow to kills. kLooks: looks for halted
  // workers, which wait for no worker; one after the other.
  enum class Lane { kQuick, kSlow, kFacts, kMetrics, kUnexpired, kLooks };
  static constexpr std::size_t kLanes = 6;

  static constexpr int max_threads(Lane lane) {
    return lane == Lane::kUnexpired ? 6 : lane == Lane::kMetrics || lane == Lane::kLooks ? 1 : 4;
  }
  // The most jobs that wait in a lane. The result of a job is of use for a short time only, so
  // further jobs are dropped.
  static constexpr std::size_t kMaxJobs = 8192;

  // `realtime`: the threads get the priority of the loop, because a kill waits for evidence.
  explicit SideThreads(bool realtime = false);
  // Drops the queued jobs and lets the threads end. A thread owns what it uses.
  ~SideThreads();

  // Queues a job. The job must own everything that it uses. Called on the loop thread.
  void run(Job job, Lane lane = Lane::kQuick);
  // Starts threads for jobs for which none could be started. Called by sweeps.
  void start_threads();
  [[nodiscard]] std::size_t waiting(Lane lane) const;
  // Returns a descriptor that is readable when deliver() has something to do.
  [[nodiscard]] int event_fd() const;
  // Calls the deliveries of the jobs that are done, on the caller's thread.
  void deliver();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace filetimer
