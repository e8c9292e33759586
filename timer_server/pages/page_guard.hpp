// Reading memory that somebody else may cut away: a worker can truncate its page at any moment, and
// touching what is gone raises SIGBUS. While a PageGuard lives, such a fault puts zeroes where the
// page was and is remembered; the server goes on, and drops the page.
// One guard at a time, on one thread: the loop's.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace filetimer {

class PageGuard {
 public:
  PageGuard(void* begin, std::size_t bytes);
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;
  ~PageGuard();

  // Whether the page was cut away meanwhile: what was read from it counts for nothing.
  [[nodiscard]] static bool faulted();

  // Once, before the first guard. Faults elsewhere end the process as they always did.
  static void install();
};

}  // namespace filetimer
