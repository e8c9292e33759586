// SPDX-License-Identifier: MIT
#include "timer_server/stacks/unwinder.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"

namespace filetimer::stacks {
namespace {

constexpr std::size_t kMaxMapsBytes = std::size_t{16} << 20;
// Longer names are left mangled. A short name may demangle to a huge text as well; the helper's
// limits of memory and time are the bound for that.
constexpr std::size_t kMaxMangledBytes = 1024;

std::string libdw_error() {
  const char* const text = ::dwfl_errmsg(-1);
  return text == nullptr ? "libdw gives no reason" : text;
}

// Reports to libdw that there is no separate debug file.
int find_no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                       GElf_Word, char**) {
  return -1;
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// Returns the lines of /proc/PID/maps whose files have code in them. Other files need not be read:
// they may be as large as a training set, and lie on a file system that hangs.
std::string maps_of_code(const std::string& maps) {
  std::vector<std::pair<std::string_view, std::string_view>> lines;  // each with its path
  std::set<std::string_view> with_code;
  for (std::string_view rest = maps; !rest.empty();) {
    const std::string_view line = take_until(rest, '\n');
    // "7f01-7f02 r-xp 00001000 fe:01 1234    /usr/lib/x.so"
    const std::size_t space = line.find(' ');
    const std::size_t slash = line.find('/');
    if (space + 3 < line.size() && slash != line.npos) {
      lines.emplace_back(line, line.substr(slash));
      if (line[space + 3] == 'x') {
        with_code.insert(line.substr(slash));
      }
    }
  }
  std::string kept;
  for (const auto& [line, path] : lines) {
    if (with_code.contains(path)) {
      kept.append(line).append("\n");
    }
  }
  return kept;
}

// Reports the vdso, which has code but no file. A loop that reads the clock is in it.
void report_vdso(Dwfl* dwfl, pid_t pid, std::string_view maps) {
  const std::size_t at = maps.find("[vdso]");
  if (at == maps.npos) {
    return;
  }
  const std::size_t line = maps.rfind('\n', at) + 1;  // npos + 1 is 0
  unsigned long begin = 0;
  unsigned long end = 0;
  if (std::sscanf(maps.data() + line, "%lx-%lx", &begin, &end) == 2) {
    ::dwfl_report_module(dwfl, fmt::format("[vdso: {}]", pid).c_str(), begin, end);
  }
}

// Returns an address in the function of the frame. A return address may be past the end of the
// function, if the call was its last instruction.
Dwarf_Addr code_address(const Stack::Frame& frame) {
  return frame.is_exact ? frame.pc : frame.pc - 1;
}

std::string demangled(const char* symbol) {
  if (std::strncmp(symbol, "_Z", 2) != 0 || std::strlen(symbol) > kMaxMangledBytes) {
    return symbol;
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return text ? text.get() : symbol;
}

}  // namespace

Elf* ElfFiles::open(int fd, const struct stat& st) {
  ::elf_version(EV_CURRENT);
  auto& known = files_[{st.st_dev, st.st_ino, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec}];
  if (!known) {
    // RLIMIT_DATA limits mappings that may be written. What is not mapped is lost here.
    known.reset(::elf_begin(fd, ELF_C_READ_MMAP, nullptr));
    ::elf_cntl(known.get(), ELF_C_FDDONE);  // the file is mapped
    if (known) {
      names_.try_emplace(known.get());
    }
  }
  return ::elf_begin(-1, ELF_C_READ_MMAP, known.get());  // counts as another user
}

ElfFiles::Names* ElfFiles::names_of(Elf* elf) {
  const auto found = names_.find(elf);
  return found == names_.end() ? nullptr : &found->second;
}

Unwinder::Unwinder(pid_t pid, ElfFiles& files)
    : pid_(pid),
      files_(files),
      callbacks_{find_module, find_no_debug_file, nullptr, nullptr},
      dwfl_(::dwfl_begin(&callbacks_)) {}

Unwinder::~Unwinder() {
  ::dwfl_end(dwfl_);
}

Result<std::unique_ptr<Unwinder>> Unwinder::prepare(pid_t pid, ElfFiles& files) {
  std::unique_ptr<Unwinder> unwinder(new Unwinder(pid, files));
  if (unwinder->dwfl_ == nullptr) {
    return failure("libdw: " + libdw_error());
  }
  FILETIMER_TRY(unwinder->report_modules());
  return unwinder;
}

Status Unwinder::report_modules() {
  const auto maps = read_small_file(fmt::format("/proc/{}/maps", pid_), kMaxMapsBytes);
  FILETIMER_TRY(maps);
  std::string of_code = maps_of_code(*maps);
  if (maps->empty()) {
    return failure("the process is exiting");  // its memory is gone
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      of_code.empty() ? nullptr : ::fmemopen(of_code.data(), of_code.size(), "r"), std::fclose);
  ::dwfl_report_begin(dwfl_);
  if (file && ::dwfl_linux_proc_maps_report(dwfl_, file.get()) != 0) {
    return failure("libdw: " + libdw_error());
  }
  report_vdso(dwfl_, pid_, *maps);
  ::dwfl_report_end(dwfl_, nullptr, nullptr);
  for_each_module([this](Dwfl_Module*, void** user) { *user = this; });
  // `true`: libdw assumes that the threads are stopped. Tracees stops them.
  if (const int error = ::dwfl_linux_proc_attach(dwfl_, pid_, true); error != 0) {
    return error > 0 ? system_error(fmt::format("cannot look into pid {}", pid_), error)
                     : failure("libdw: " + libdw_error());
  }
  // Reads the unwind tables now, and not while the worker is stopped.
  for_each_module([](Dwfl_Module* module, void**) {
    Dwarf_Addr bias = 0;
    ::dwfl_module_eh_cfi(module, &bias);
  });
  return {};
}

template <class Visit>
void Unwinder::for_each_module(Visit visit) {
  ::dwfl_getmodules(
      dwfl_,
      [](Dwfl_Module* module, void** user, const char*, Dwarf_Addr, void* data) {
        (*static_cast<Visit*>(data))(module, user);
        return static_cast<int>(DWARF_CB_OK);
      },
      &visit, 0);
}

int Unwinder::find_module(Dwfl_Module* module, void** user, const char* name, Dwarf_Addr base,
                          char** file, Elf** elf) {
  const std::string_view path = name;
  // The vdso and deleted files are in memory only.
  if (!path.starts_with('/') || path.ends_with(" (deleted)")) {
    return ::dwfl_linux_proc_find_elf(module, user, name, base, file, elf);
  }
  Unwinder& unwinder = *static_cast<Unwinder*>(*user);
  UniqueFd fd(::open(fmt::format("/proc/{}/root{}", unwinder.pid_, path).c_str(),
                     O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    unwinder.not_found_.emplace_back(base_name(path));
    return -1;
  }
  *file = ::strdup(name);
  *elf = unwinder.files_.open(fd.get(), st);
  return *elf == nullptr ? fd.release() : -1;
}

Stack Unwinder::unwind(pid_t tid) {
  Stack stack;
  stack.tids.push_back(tid);
  const int result = ::dwfl_getthread_frames(
      dwfl_, tid,
      [](Dwfl_Frame* frame, void* data) {
        Stack& into = *static_cast<Stack*>(data);
        Stack::Frame next;
        if (into.frames.size() >= kMaxStackFrames) {
          into.ended_early = fmt::format("only {} frames are kept", kMaxStackFrames);
          return static_cast<int>(DWARF_CB_ABORT);
        }
        if (!::dwfl_frame_pc(frame, &next.pc, &next.is_exact)) {
          return static_cast<int>(DWARF_CB_ABORT);
        }
        into.frames.push_back(next);
        return static_cast<int>(DWARF_CB_OK);
      },
      &stack);
  if (result != 0 && stack.ended_early.empty()) {
    stack.ended_early = libdw_error();
  }
  return stack;
}

void Unwinder::will_name(const Stack& stack) {
  for (const Stack::Frame& frame : stack.frames) {
    functions_.try_emplace(code_address(frame));
  }
}

const std::string& Unwinder::name(const Stack::Frame& frame) {
  const Dwarf_Addr pc = code_address(frame);
  Dwfl_Module* const module = ::dwfl_addrmodule(dwfl_, pc);
  Dwarf_Addr bias = 0;
  Elf* const elf = module == nullptr ? nullptr : ::dwfl_module_getelf(module, &bias);
  ElfFiles::Names* const shared = files_.names_of(elf);
  std::string& name =
      shared == nullptr ? names_[{pc, frame.is_exact}] : (*shared)[{pc - bias, frame.is_exact}];
  if (name.empty()) {
    name = module == nullptr ? fmt::format("{:#x}", pc) : make_name(module, pc, frame.is_exact);
  }
  return name;
}

// Reads the symbols of the module once. dwfl_module_addrinfo() would read them for each address, of
// which a library such as PyTorch's has some hundred thousand.
void Unwinder::find_functions(Dwfl_Module* module) {
  Dwarf_Addr begin = 0;
  Dwarf_Addr end = 0;
  ::dwfl_module_info(module, nullptr, &begin, &end, nullptr, nullptr, nullptr, nullptr);
  const int count = ::dwfl_module_getsymtab(module);
  for (int i = 1; i < count; ++i) {
    GElf_Sym symbol{};
    Function next;
    next.symbol =
        ::dwfl_module_getsym_info(module, i, &symbol, &next.begin, nullptr, nullptr, nullptr);
    const int type = GELF_ST_TYPE(symbol.st_info);
    if (next.symbol == nullptr || *next.symbol == '\0' || symbol.st_shndx == SHN_UNDEF ||
        (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE)) {
      continue;
    }
    next.is_local = GELF_ST_BIND(symbol.st_info) == STB_LOCAL;
    // Of several functions around an address the innermost one counts, of its names a global one.
    const auto rank = [](const Function& each) {
      return std::tuple(each.symbol != nullptr, each.begin, !each.is_local);
    };
    for (auto at = functions_.lower_bound(std::max(begin, next.begin));
         at != functions_.end() && at->first < end && at->first - next.begin < symbol.st_size;
         ++at) {
      at->second = rank(at->second) < rank(next) ? next : at->second;
    }
  }
}

std::string Unwinder::make_name(Dwfl_Module* module, Dwarf_Addr pc, bool is_exact) {
  Dwarf_Addr start = 0;
  const char* path =
      ::dwfl_module_info(module, nullptr, &start, nullptr, nullptr, nullptr, nullptr, nullptr);
  const std::string file = valid_utf8(base_name(path == nullptr ? "?" : path));
  if (modules_read_.insert(module).second) {
    find_functions(module);
  }
  if (const Function& function = functions_[pc]; function.symbol != nullptr) {
    const std::string where =
        fmt::format("+{:#x} ({})", pc - function.begin + (is_exact ? 0 : 1), file);
    std::string name = valid_utf8(demangled(function.symbol));
    std::ranges::replace(name, '\n', '?');  // it must not end a line of the answer
    const std::size_t room = kMaxFrameBytes - std::min(where.size(), kMaxFrameBytes);
    return fmt::format("{}{}", utf8_prefix(name, room), where);
  }
  // addr2line takes an address in the file, not in the process.
  GElf_Addr bias = start;
  ::dwfl_module_getelf(module, &bias);
  return fmt::format("{}+{:#x}", utf8_prefix(file, kMaxFrameBytes - 24), pc - bias);
}

}  // namespace filetimer::stacks
