// The file behind this process's scope page. It is made, mapped, locked and filled in before it
// gets the name under which the server looks for it, and it grows as slots and names come into use.
// Only allocated parts may be touched: a full disk is an error here and never a SIGBUS. If another
// process cuts the file short, its memory is replaced (is_broken()).
//
// A PageFile lives as long as the process. It keeps one descriptor: closing any descriptor of the
// file drops the lock by which the kernel knows the owner. Only if the program has closed that
// descriptor is the file opened again, and locked. A forked child destroys the PageFile that it
// inherited, which changes nothing for its parent. The ProcessLock guards it.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "common/mapped_file.hpp"
#include "common/result.hpp"
#include "common/scope_page.hpp"

namespace filetimer {

class PageFile {
 public:
  // Makes the page in `folder`, the `scopes` of the runtime directory.
  static Result<PageFile> create(const std::string& folder);

  [[nodiscard]] PageLayout layout() const { return PageLayout(file_.data()); }
  [[nodiscard]] const std::string& name() const { return name_; }

  // Allocate the slot and its name, or the entry, so that it may be touched. Return false if there
  // is no room.
  bool allocate_slot(std::size_t index) noexcept;
  bool allocate_statistics(std::size_t index) noexcept;

  // Takes the lock again if the program has closed a descriptor of the file, and the file is still
  // at its path or the descriptor of the lock is open. Returns whether this process has the lock.
  bool keep_lock() noexcept;

  // Returns whether a server that starts would not see this memory: the file was cut short, or is
  // not at its path any more.
  [[nodiscard]] bool is_broken() const {
    return file_.is_broken() || identity_of(path_) != lock_.identity();
  }

 private:
  PageFile(MappedFile file, FileLock lock, std::string path, std::string name)
      : file_(std::move(file)),
        lock_(std::move(lock)),
        path_(std::move(path)),
        name_(std::move(name)) {}
  bool grow(std::size_t& allocated, std::size_t end) noexcept;

  MappedFile file_;
  FileLock lock_;
  std::string path_;
  std::string name_;
  // The end of what is allocated of each part.
  std::size_t slots_end_ = kMemoryPage;
  std::size_t names_end_ = kNamesAt + kMemoryPage;
  std::size_t statistics_end_ = kStatisticsAt + kMemoryPage;
};

// Removes the pages in `folder` of processes that were killed, or ended by _exit() as forked
// children do, while no server ran. A client that finds no server calls it, and so does a forked
// child with its page: a server removes such pages itself, and without a server each run would
// leave one in the memory that holds the directory. A page stays if a process holds its lock, if
// the process that it names is alive, if a server has ever registered it (the next server records
// its scopes), or if it is not among the first kMaxPagesLookedAt. Every page of this process in
// `folder` must have a name that begins with this pid: such names are skipped, because closing a
// descriptor of the page would drop its lock.
void remove_abandoned_pages(const std::string& folder) noexcept;

inline constexpr int kMaxPagesLookedAt = 256;

}  // namespace filetimer
