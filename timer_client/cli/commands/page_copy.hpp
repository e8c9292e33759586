// A copy of a scope page, read by pread(), of the parts that are in use. Nothing is mapped: a page
// that its worker cuts short meanwhile causes a short read and no SIGBUS. The worker writes while
// the kernel copies, so the parts are copied in an order that shows which slots did not change.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "common/page_reader.hpp"
#include "common/result.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer::cli {

// One object can read any number of pages, one after the other.
class PageCopy {
 public:
  PageCopy() : lines_(kPageBytes / sizeof(Line)), slots_before_(kMaxScopesPerWorker) {}

  // Fails for a file that is not regular or belongs to another user, and as read_claims() does.
  Result<PageClaims> read_header(int file);

  // The next three follow read_header(). Slots that changed at every attempt to read them are left
  // out: their scopes have ended.
  Result<std::vector<SlotReading>> read_slots(int file);
  Status read_statistics(int file, StatisticsByName& sums);
  // A scope that ends while it is copied may get the time of another one of the same name.
  Status read_ended_scopes(int file, EndedScopesByName& ended);

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  static_assert(kPageBytes % sizeof(Line) == 0 && sizeof(Line) == sizeof(Slot));

  [[nodiscard]] PageLayout page() { return PageLayout(lines_.data()); }
  std::byte* at(std::size_t offset) { return page().base() + offset; }
  bool copy(int file, std::size_t offset, std::size_t bytes);
  bool reread(int file, std::size_t index);

  std::vector<Line> lines_;
  std::vector<Line> slots_before_;
};

}  // namespace filetimer::cli
