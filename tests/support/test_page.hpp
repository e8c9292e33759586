// For tests of code that reads scope pages: a page in memory, made from the layout alone.
// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

struct TestScope {
  std::string_view name = "forward";
  std::int64_t acquired = 1'000;
  std::int64_t timeout = 500;
  std::int64_t word = 1'500;
  std::int64_t started = 1'000;
  std::uint32_t grace_ms = kServersGrace;
  std::int32_t tid = 7;
  std::uint16_t signal = SIGKILL;
  std::uint16_t flags = 0;
  std::uint32_t soft_ms = 0;
};

// Writes the fields of a slot, as a worker does before its deadline word opens it.
inline void fill_slot(const PageLayout& page, std::size_t index, const TestScope& scope) {
  Slot& slot = page.slot(index);
  write_name(page.name(index), scope.name);
  slot.acquired = scope.acquired;
  slot.started = scope.started;
  slot.timeout = scope.timeout;
  slot.grace_ms = scope.grace_ms;
  slot.tid = scope.tid;
  slot.signal = scope.signal;
  slot.flags = scope.flags;
  slot.soft_ms = scope.soft_ms;
  auto& slots = page.header().slots;
  slots = std::max(slots.load(), static_cast<std::uint32_t>(index) + 1);
}

class TestPage {
 public:
  TestPage() : lines_(kPageBytes / sizeof(Line)) {
    PageHeader& header = page().header();
    begin_page(header, 0);
  }

  [[nodiscard]] PageLayout page() { return PageLayout(lines_.data()); }
  [[nodiscard]] PageHeader& header() { return page().header(); }

  // Opens a scope, in the order of a worker's writes.
  void open(std::size_t index, const TestScope& scope) {
    fill_slot(page(), index, scope);
    page().slot(index).deadline = scope.word;
  }
  void set(char* field, std::size_t size, std::string_view text) {
    std::memset(field, 0, size);
    std::memcpy(field, text.data(), std::min(size, text.size()));
  }
  void set_rank(std::string_view rank) { set(header().rank, sizeof header().rank, rank); }

  [[nodiscard]] std::string_view bytes() {
    return {reinterpret_cast<const char*>(lines_.data()), kPageBytes};
  }
  void write(const std::string& path) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes();
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  std::vector<Line> lines_;
};

// Returns field 22 of /proc/PID/stat, read in another way than by the code under test.
inline std::uint64_t start_time_in_proc(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  std::istringstream rest(stat.substr(stat.rfind(')') + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) {
    rest >> word;
  }
  return std::stoull(word);
}

}  // namespace filetimer
