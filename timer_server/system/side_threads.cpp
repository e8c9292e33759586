// SPDX-License-Identifier: MIT
#include "timer_server/system/side_threads.hpp"

#include <sys/eventfd.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <new>
#include <vector>

#include "common/posix.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"
#include "timer_server/system/mutex.hpp"

namespace filetimer {

struct SideThreads::State : std::enable_shared_from_this<State> {
  const UniqueFd event_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Mutex mutex;  // never held while a job runs
  struct Queue {
    std::condition_variable work;
    std::deque<Job> jobs;
    int threads = 0;
    int idle = 0;
  };
  std::array<Queue, kLanes> queues FILETIMER_GUARDED_BY(mutex);  // by lane
  std::vector<Delivery> deliveries FILETIMER_GUARDED_BY(mutex);
  bool stopping FILETIMER_GUARDED_BY(mutex) = false;
  bool realtime = false;  // set before the first thread is started

  Queue& of(Lane lane) FILETIMER_REQUIRES(mutex) { return queues[static_cast<std::size_t>(lane)]; }

  // Starts a thread of the lane if a job waits for one.
  void start_thread(Lane lane) FILETIMER_REQUIRES(mutex) {
    Queue& queue = of(lane);
    if (queue.jobs.size() <= static_cast<std::size_t>(queue.idle) ||
        queue.threads >= max_threads(lane)) {
      return;
    }
    try {
      start_detached_thread(
          [state = shared_from_this(), &queue] { state->work_until_stopped(queue); });
      ++queue.threads;
    } catch (const std::system_error&) {
      // RLIMIT_NPROC or pids.max is reached. The job waits for the next one, or a sweep.
    }
  }

  void work_until_stopped(Queue& queue) {
    if (realtime) {
      (void)enter_realtime();  // without permission the loop has warned already
    }
    MutexLock lock(mutex);
    for (;;) {
      ++queue.idle;
      while (!stopping && queue.jobs.empty()) {
        queue.work.wait(lock);
      }
      --queue.idle;
      if (stopping) {
        return;
      }
      Job job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      lock.unlock();
      Delivery delivery;
      messages::guard([&] { delivery = job(); });  // a wait for a job has a time limit
      job = nullptr;
      lock.lock();
      if (!delivery) {
        continue;
      }
      const bool is_first = deliveries.empty();
      try {
        deliveries.push_back(std::move(delivery));
      } catch (const std::bad_alloc&) {
        continue;  // as for a job that has failed
      }
      if (is_first) {   // deliver() takes the others with it
        lock.unlock();  // so that the loop does not wait for it
        (void)::eventfd_write(event_fd.get(), 1);
        lock.lock();
      }
    }
  }
};

SideThreads::SideThreads(bool realtime) : state_(std::make_shared<State>()) {
  state_->realtime = realtime;
}

SideThreads::~SideThreads() {
  const MutexLock lock(state_->mutex);
  state_->stopping = true;
  for (State::Queue& queue : state_->queues) {
    queue.jobs.clear();
    queue.work.notify_all();
  }
}

void SideThreads::run(Job job, Lane lane) {
  const MutexLock lock(state_->mutex);
  State::Queue& queue = state_->of(lane);
  if (queue.jobs.size() >= kMaxJobs) {
    return;
  }
  queue.jobs.push_back(std::move(job));
  state_->start_thread(lane);
  queue.work.notify_one();
}

void SideThreads::start_threads() {
  const MutexLock lock(state_->mutex);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    state_->start_thread(static_cast<Lane>(lane));
  }
}

std::size_t SideThreads::waiting(Lane lane) const {
  const MutexLock lock(state_->mutex);
  return state_->of(lane).jobs.size();
}

int SideThreads::event_fd() const {
  return state_->event_fd.get();
}

void SideThreads::deliver() {
  eventfd_t count = 0;
  (void)::eventfd_read(state_->event_fd.get(), &count);
  std::vector<Delivery> deliveries;
  {
    const MutexLock lock(state_->mutex);
    deliveries.swap(state_->deliveries);
  }
  for (const Delivery& delivery : deliveries) {
    messages::guard(delivery);
  }
}

}  // namespace filetimer
