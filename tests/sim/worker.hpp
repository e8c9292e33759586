// A made-up worker: its page, written as the client writes it, and the lines that it writes into
// the request pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/scope_page.hpp"
#include "tests/sim/kernel.hpp"

namespace filetimer::sim {

// What a scope asks for.
struct Terms {
  Nanos timeout = kNever;
  std::uint32_t grace_ms = kServersGrace;
  int signal = 9;
  bool spare_if_left = false;
  bool is_torch = false;  // a line of PyTorch's client, which has none of our keys
};

class Worker {
 public:
  Worker(MadeProcess& process, std::string dir);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  MadeProcess& process;

  // Scopes on the page. They return false if there is no page, the scope is not open under the
  // number, or a verdict came first. `open` returns the number; negative: not watched.
  int open(std::string_view name, const Terms& terms);
  bool renew(int number, Nanos timeout);
  bool pause(int number);
  bool resume(int number);
  bool release(int number);
  void begin_idle_timeout(Nanos timeout);
  // Lines of the pipe. They return false if nobody reads the pipe.
  bool acquire_by_line(std::string_view name, const Terms& terms);
  bool release_by_line(std::string_view name);
  bool write_line(const std::string& line) const;

  [[nodiscard]] bool holds_lock_of(ino_t page) const;
  [[nodiscard]] std::string page_path() const;  // empty: it has no page
  [[nodiscard]] Nanos max_timeout() const;      // of the server, as the status page says
  [[nodiscard]] bool is_page_gone() const;      // its file was removed
  // The page's file as it is mapped is whole; otherwise it was cut short and must not be touched.
  [[nodiscard]] bool is_page_whole() const;

 private:
  struct Page;
  bool make_page();
  void look_for_another_directory();
  void wake();
  [[nodiscard]] Slot* slot_of(int number) const;
  [[nodiscard]] Nanos word_for(Nanos timeout) const;
  int free_slot();

  std::string dir_;
  Board* board_ = nullptr;
  ino_t board_inode_ = 0;
  std::vector<std::unique_ptr<Page>> pages_;  // the last one is in use
  std::uint64_t dead_incarnation_ = ~std::uint64_t{0};
  Nanos next_look_ = 0;
  bool has_idle_timeout_ = false;
};

}  // namespace filetimer::sim
