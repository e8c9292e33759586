// A scope page that its worker writes, mapped.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/bus_guard.hpp"
#include "common/mapped_file.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/scopes/worker_page.hpp"

namespace filetimer {

// The worker may write anything to the page, truncate it or delete it at any moment.
class MappedPage final : public WorkerPage {
 public:
  // Opens `path`. Fails unless it is a regular file of this user that read_claims() accepts.
  // Follows no symlink and waits for nothing.
  static Result<std::shared_ptr<MappedPage>> open(const std::string& path, std::string name);

  [[nodiscard]] const PageClaims& claims() const { return claims_; }
  // Returns the process that holds the lock, in this pid namespace, as the kernel names it. Fails
  // with ESRCH if no process holds the lock, and with another error if the holder is outside this
  // pid namespace.
  [[nodiscard]] Result<pid_t> owner() const;
  // Closes the descriptor, which only owner() and has_lost_lock() need: one less for each worker.
  void close_descriptor() { fd_.reset(); }
  [[nodiscard]] bool has_lost_lock() const override;  // false after close_descriptor()

  [[nodiscard]] std::uint64_t program() const override { return program_; }
  void set_program(std::uint64_t start_stack) { program_ = start_stack; }
  std::uint32_t dump_signal() override;
  void add_statistics(StatisticsByName& sums) override;
  void add_ended_scopes(EndedScopesByName& ended) override;
  void unmap_names() override;
  [[nodiscard]] bool is_whole() const override { return !guard_.is_broken(); }
  // Returns the layout, for parts that no other member reads.
  [[nodiscard]] const PageLayout& layout() const { return layout_; }

 private:
  MappedPage(std::string name, UniqueFd fd, MappedFile file);
  [[nodiscard]] std::size_t slot_count() const override { return slots_in_use(layout_); }
  [[nodiscard]] Slot* first_slot() const override { return &layout_.slot(0); }
  [[nodiscard]] std::string id_of(std::size_t slot) override;

  UniqueFd fd_;
  MappedFile file_;
  const BusGuard guard_{file_.data(), kPageBytes};
  PageLayout layout_{file_.data()};
  PageClaims claims_;
  std::uint64_t program_ = 0;
};

}  // namespace filetimer
