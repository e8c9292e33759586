// A worker of the simulation: the page of the client library, and the lines of its pipe client, as
// those of another process.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/scope_page.hpp"
#include "tests/sim/kernel.hpp"
#include "timer_client/client/page/own_page.hpp"

namespace filetimer::sim {

// What a scope asks for.
struct Terms {
  Nanos timeout = kNever;
  std::uint32_t grace_ms = kServersGrace;
  int signal = 9;
  bool signal_first = false;
  bool is_torch = false;  // a line of PyTorch's client, which has none of our keys
};

// A scope on the page, as TimerScope.
struct PageScope {
  SlotHandle* slot = nullptr;
  std::uint64_t number = 0;
};

class Worker {
 public:
  Worker(Process& process, std::string dir) : process_(process), dir_(std::move(dir)) {}

  // Scopes on the page. They return a null slot if the scope is not watched, and false if a verdict
  // came first.
  PageScope open(std::string_view name, const Terms& terms);
  bool renew(PageScope scope, Nanos timeout);
  bool pause(PageScope scope, bool pauses);
  bool release(PageScope scope);
  bool begin_idle_timeout(Nanos timeout);
  // Lines of the pipe. They return false if nobody reads the pipe.
  bool acquire_by_line(std::string_view name, const Terms& terms);
  bool release_by_line(std::string_view name);

  [[nodiscard]] bool holds_lock_of(ino_t page) const;
  [[nodiscard]] std::string page_path() const;  // empty: it has no page

 private:
  bool look();

  Process& process_;
  const std::string dir_;
  OwnPage* page_ = nullptr;  // never destroyed
  std::vector<ino_t> files_;
};

}  // namespace filetimer::sim
