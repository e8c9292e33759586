// The folder `scopes` as the server keeps it:
//   NAME             a worker's page
//   .owners/NAME     a dangling symlink "PID-STARTTIME-STACK": the process that the kernel named
//                    as the page's owner when the page was admitted. A worker that closes all its
//                    descriptors loses its lock but keeps its scopes, because the next server
//                    trusts this symlink.
//   .stacks/NAME     the Python stacks that the worker writes on the dump signal of its page
//   server/PID       the page that the server keeps for a worker that sends lines only
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.hpp"
#include "common/run_folder.hpp"

namespace filetimer {

// Removes the file of a page, or else empties it: the next look, or the next server, must not find
// its scopes again.
inline void remove_page_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) {
    (void)!::truncate(path.c_str(), 0);
  }
}

class PageFolder {
 public:
  struct Owner {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    std::uint64_t start_stack = 0;  // of the program that it ran
  };

  // Makes the folder in the runtime directory `dir`, or checks it as the directory itself is
  // checked.
  static Result<PageFolder> make(const std::string& dir);

  [[nodiscard]] std::string page_path(std::string_view name) const {
    return fmt::format("{}/{}", path_, name);
  }
  [[nodiscard]] std::string stacks_path(std::string_view name) const {
    return fmt::format("{}/{}/{}", path_, kStacksName, name);
  }
  // Returns the path of the folder `server`.
  [[nodiscard]] std::string server_pages() const { return page_path(kServerPagesName); }

  // Returns the names of the workers' pages, without those that are being made; none without a
  // folder.
  [[nodiscard]] Result<std::vector<std::string>> names() const;
  // Returns false if there is no such page.
  [[nodiscard]] bool has(std::string_view name) const {
    return ::access(page_path(name).c_str(), F_OK) == 0 || errno != ENOENT;
  }
  // Returns the pids of the pages in `server/`.
  [[nodiscard]] Result<std::vector<pid_t>> pipe_workers() const;

  // Notes the owner of a page for the next server.
  void confirm(std::string_view name, Owner owner) const;
  // Returns the owner that this server or an earlier one noted.
  [[nodiscard]] std::optional<Owner> confirmed_owner(std::string_view name) const;
  // Removes the page, the note of its owner, and its stacks.
  void remove(std::string_view name) const {
    remove_page_file(page_path(name));
    ::unlink(owner_path(name).c_str());
    ::unlink(stacks_path(name).c_str());
  }

 private:
  explicit PageFolder(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] std::string owner_path(std::string_view name) const {
    return fmt::format("{}/{}/{}", path_, kOwnersName, name);
  }

  std::string path_;
};

}  // namespace filetimer
