// A scope page read by pread, part by part and as far as it is in use. Nothing is mapped: a page
// that its worker cuts short meanwhile is a short read and no SIGBUS. The kernel copies what the
// worker is writing, so the parts are copied in an order that shows which slots held still.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "common/page_reader.hpp"
#include "common/result.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer::cli {

// One is enough for all pages, one after the other.
class PageCopy {
 public:
  PageCopy() : lines_(kPageBytes / sizeof(Line)), slots_before_(kMaxScopesPerWorker) {}

  // Refused with what it is: no regular file, another user's, and what read_claims() refuses.
  Result<PageClaims> read_header(int file);

  // These three after read_header(). Slots that were used again and again while they were read are
  // left out: what was in them has ended.
  Result<std::vector<SlotReading>> read_slots(int file);
  Status read_statistics(int file, StatisticsByName& sums);
  // A scope that ends while it is copied may have the time of another one of the same name.
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
