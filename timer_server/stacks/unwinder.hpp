// Reads the stacks of another process with elfutils' libdw.
// SPDX-License-Identifier: MIT
#pragma once

#include <elfutils/libdwfl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer::stacks {

struct Stack {
  std::vector<pid_t> tids;  // one, unless equal stacks are folded
  struct Frame {
    Dwarf_Addr pc = 0;
    bool is_exact = false;  // `pc` is the next instruction; otherwise it is a return address
    bool operator==(const Frame&) const = default;
  };
  std::vector<Frame> frames;  // the innermost first, at most kMaxStackFrames
  std::string ended_early;    // why frames are missing; empty: the stack is complete
};

// The mapped ELF files of workers, each of which is read once, and the names of frames in them: the
// workers of a job run the same code.
class ElfFiles {
 public:
  // Returns the open file, which the caller ends with elf_end(); null: libelf cannot read it.
  Elf* open(int fd, const struct stat& status);
  // The names of frames, as Unwinder::name() returns them, by address in the file and `is_exact`.
  using Names = std::map<std::pair<Dwarf_Addr, bool>, std::string>;
  // Returns the names of the frames in `elf`; null if open() has not returned that file.
  Names* names_of(Elf* elf);

 private:
  using Key = std::tuple<dev_t, ino_t, off_t, time_t, long>;  // with size and time of change
  struct End {
    void operator()(Elf* elf) const { ::elf_end(elf); }
  };
  std::map<Key, std::unique_ptr<Elf, End>> files_;
  std::map<Elf*, Names> names_;
};

// Does as little as possible while the threads are stopped:
//
//   auto unwinder = Unwinder::prepare(pid, files);  // finds and reads the files; the process runs
//   Stack stack = (*unwinder)->unwind(tid);   // reads addresses; the thread is stopped by ptrace
//   (*unwinder)->will_name(stack);            // before the first name(); the process runs
//   (*unwinder)->name(stack.frames[0]);       // finds names; the process runs
//
// Reads the mapped files of the process only: no separate debug files, no debuginfod. Opens them
// through /proc/PID/root, because at the same path a worker in another mount namespace has other
// files than the helper.
class Unwinder : NotCopied {
 public:
  // Reads the modules of the process, which may run. Fails if the process cannot be read.
  static Result<std::unique_ptr<Unwinder>> prepare(pid_t pid, ElfFiles& files);
  ~Unwinder();

  // Returns the stack of a thread that ptrace has stopped.
  Stack unwind(pid_t tid);
  // Notes the frames of which name() will be asked.
  void will_name(const Stack& stack);
  // Returns "function+0x1d (module)", or "module+0x1234" for a function without a name or size, or
  // "0x7f0123456789" for an address outside all modules; at most kMaxFrameBytes. Reads the module's
  // symbols at the first call for a frame that no worker had before.
  const std::string& name(const Stack::Frame& frame);

  // Returns the names of files of code that could not be opened.
  [[nodiscard]] const std::vector<std::string>& not_found() const { return not_found_; }

 private:
  Unwinder(pid_t pid, ElfFiles& files);
  Status report_modules();
  template <class Visit>
  void for_each_module(Visit visit);
  // The function around an address.
  struct Function {
    Dwarf_Addr begin = 0;
    const char* symbol = nullptr;  // null: none was found
    bool is_local = false;         // in its file
  };
  std::string make_name(Dwfl_Module* module, Dwarf_Addr pc, bool is_exact);
  // Finds the functions around all addresses in the module that were noted.
  void find_functions(Dwfl_Module* module);
  static int find_module(Dwfl_Module* module, void** user, const char* name, Dwarf_Addr base,
                         char** file, Elf** elf);

  const pid_t pid_;
  ElfFiles& files_;
  const Dwfl_Callbacks callbacks_;
  Dwfl* const dwfl_;
  std::vector<std::string> not_found_;
  ElfFiles::Names names_;                     // of frames outside all files, by address
  std::map<Dwarf_Addr, Function> functions_;  // by address: threads share most frames
  std::set<Dwfl_Module*> modules_read_;       // by find_functions()
};

}  // namespace filetimer::stacks
