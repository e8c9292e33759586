// Stacks of another process through elfutils' libdw: first everything that takes time (finding and
// reading the files that its code comes from), then, while its threads are held still, the bare
// addresses, and afterwards their names.
//
// Reads what the worker has mapped and no more: no separate debug files, no debuginfod. Files are
// opened through /proc/PID/root, so that a worker in another mount namespace gets the names of its
// own libraries and not of what lies at the same path here.
// SPDX-License-Identifier: MIT
#pragma once

#include <elfutils/libdwfl.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/result.hpp"

namespace filetimer::stacks {

struct Stack {
  pid_t tid = 0;
  struct Frame {
    Dwarf_Addr pc = 0;
    bool is_exact = false;  // it is about to run this; else it is what a call returns to
  };
  std::vector<Frame> frames;  // the innermost first, at most kMaxStackFrames
  std::string ended_early;    // why there is no more; empty: it is whole
};

class Unwinder {
 public:
  // Reads the process's modules. It runs on meanwhile.
  static Result<std::unique_ptr<Unwinder>> prepare(pid_t pid);
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;
  ~Unwinder();

  // Of a thread that is held by ptrace and has stopped.
  Stack unwind(pid_t tid);
  // "function+0x1d (module)", "module+0x1234" where the function has no name, "0x7f0123456789"
  // where nothing is known; at most kMaxFrameBytes. May read the module's symbols first.
  const std::string& name(const Stack::Frame& frame);

  // Names of files of code that could not be opened.
  [[nodiscard]] const std::vector<std::string>& not_found() const { return not_found_; }

 private:
  explicit Unwinder(pid_t pid);
  Status report_modules();
  template <class Visit>
  void for_each_module(Visit visit);
  std::string make_name(const Stack::Frame& frame);
  static int find_module(Dwfl_Module* module, void** user, const char* name, Dwarf_Addr base,
                         char** file, Elf** elf);

  const pid_t pid_;
  const Dwfl_Callbacks callbacks_;
  Dwfl* const dwfl_;
  std::vector<std::string> not_found_;
  std::unordered_map<Dwarf_Addr, std::string> names_;  // of calls: the same in many threads
};

}  // namespace filetimer::stacks
