// The folder `scopes` as the server keeps it:
//   NAME             a worker's page
//   .owners/NAME     a symlink to nowhere, "PID-STARTTIME-STACK": the process that the kernel named
//                    as the page's owner when it was registered. A worker that closes all
//                    descriptors loses its lock, not its timers: the next server believes what this
//                    one has seen.
//   .stacks/NAME     what the worker writes on the dump signal of its page, if it makes it
//   server/PID       the page that the server keeps for a worker that speaks on the pipe only
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.hpp"

namespace filetimer {

class PageFolder {
 public:
  struct Owner {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    std::uint64_t start_stack = 0;  // of the program it ran
  };

  // In the run folder `dir`; checked as the run folder itself is.
  static Result<PageFolder> make(const std::string& dir);

  [[nodiscard]] std::string page_path(std::string_view name) const;
  [[nodiscard]] std::string stacks_path(std::string_view name) const;
  [[nodiscard]] std::string server_path(std::string_view name) const;

  // Everything in it that is not the server's own, and is not being made.
  [[nodiscard]] std::vector<std::string> names() const;
  // Whether anything came or went since the last time this was asked.
  bool has_changed();
  // The workers of the server's own pages.
  [[nodiscard]] std::vector<pid_t> wire_workers() const;

  void confirm(std::string_view name, Owner owner) const;
  [[nodiscard]] std::optional<Owner> confirmed_owner(std::string_view name) const;
  // The page, what was confirmed about it, and its stacks.
  void remove(std::string_view name) const;

 private:
  explicit PageFolder(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] std::string owner_path(std::string_view name) const;

  std::string path_;
  std::int64_t changed_at_ = 0;  // ns, of the folder's modification time
};

}  // namespace filetimer
