// Keeps every side thread of a lane busy for as long as it lives.
// SPDX-License-Identifier: MIT
#pragma once

#include <future>

#include "timer_server/system/side_threads.hpp"

namespace filetimer {

class BusyThreads {
 public:
  BusyThreads(SideThreads& threads, SideThreads::Lane lane) {
    for (int i = 0; i < SideThreads::max_threads(lane); ++i) {
      threads.run(
          [end = ended_]() -> SideThreads::Delivery {
            end.wait();
            return [] {};
          },
          lane);
    }
  }
  ~BusyThreads() { end_.set_value(); }

 private:
  std::promise<void> end_;
  const std::shared_future<void> ended_ = end_.get_future().share();
};

}  // namespace filetimer
