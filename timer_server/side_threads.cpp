// SPDX-License-Identifier: MIT
#include "timer_server/side_threads.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "common/posix.hpp"
#include "timer_server/realtime.hpp"

namespace filetimer {

struct SideThreads::State {
  const UniqueFd event_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;  // guards all below; never held while a job runs
  std::condition_variable work;
  std::condition_variable ended;
  std::deque<Job> jobs;
  std::vector<Delivery> deliveries;
  int threads = 0;
  int idle = 0;
  bool stopping = false;
  bool realtime = false;

  void work_until_stopped() {
    if (realtime) {
      (void)enter_realtime();  // the loop has told the user when it may not
    }
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      work.wait(lock, [this] { return stopping || !jobs.empty(); });
      --idle;
      if (stopping) {
        break;
      }
      Job job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      Delivery delivery = job();
      job = nullptr;
      lock.lock();
      if (!delivery) {
        continue;
      }
      deliveries.push_back(std::move(delivery));
      const std::uint64_t one = 1;
      (void)!::write(event_fd.get(), &one, sizeof one);
    }
    --threads;
    ended.notify_all();
  }
};

SideThreads::SideThreads(bool realtime) : state_(std::make_shared<State>()) {
  state_->realtime = realtime;
}

SideThreads::~SideThreads() {
  stop(std::chrono::milliseconds{0});
}

void SideThreads::run(Job job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->jobs.size() >= kMaxJobs) {
    return;
  }
  state_->jobs.push_back(std::move(job));
  if (state_->jobs.size() > static_cast<std::size_t>(state_->idle) &&
      state_->threads < kMaxSideThreads) {
    try {
      std::thread([state = state_] { state->work_until_stopped(); }).detach();
      ++state_->threads;
    } catch (const std::system_error&) {
      // No more threads here (RLIMIT_NPROC, pids.max): the job waits for one that there is. Who
      // waits for the job does so for a bounded time.
    }
  }
  state_->work.notify_one();
}

int SideThreads::event_fd() const {
  return state_->event_fd.get();
}

void SideThreads::deliver() {
  std::uint64_t count = 0;
  (void)!::read(state_->event_fd.get(), &count, sizeof count);
  std::vector<Delivery> deliveries;
  {
    const std::lock_guard lock(state_->mutex);
    deliveries.swap(state_->deliveries);
  }
  for (const Delivery& delivery : deliveries) {
    delivery();
  }
}

bool SideThreads::stop(std::chrono::milliseconds bound) {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->jobs.clear();
  state_->work.notify_all();
  return state_->ended.wait_for(lock, bound, [this] { return state_->threads == 0; });
}

}  // namespace filetimer
