// Survives a truncated page. A worker can truncate its page at any moment, and an access to the
// missing part raises SIGBUS.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace filetimer {

// While a PageGuard lives, a SIGBUS in its memory maps zeroes in place of the page, and is noted.
// The server then drops the page. One guard at a time, on the loop thread.
class PageGuard {
 public:
  PageGuard(void* begin, std::size_t bytes);
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;
  ~PageGuard();

  // Returns whether the last guard met a fault: what was read under it must not be used.
  [[nodiscard]] static bool faulted();

  // Installs the signal handler. Called once, before the first guard. Faults in other memory end
  // the process.
  static void install();
};

}  // namespace filetimer
