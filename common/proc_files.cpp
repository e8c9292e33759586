// SPDX-License-Identifier: MIT
#include "common/proc_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/posix.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr std::uint32_t kKernelThread = 0x00200000;  // PF_KTHREAD of the kernel's sched.h
constexpr std::uint32_t kExiting = 0x4;              // PF_EXITING

// The fields after the command's name, which may itself contain spaces and parentheses.
class StatFields {
 public:
  explicit StatFields(std::string_view text) : text_(text) {}

  std::string_view next() {
    const std::size_t start = std::min(text_.find_first_not_of(" \t"), text_.size());
    const std::size_t end = std::min(text_.find_first_of(" \t", start), text_.size());
    const std::string_view field = text_.substr(start, end - start);
    text_.remove_prefix(end);
    return field;
  }

  template <class Number>
  Number number(int base = 10) {
    return number_from<Number>(next(), base).value_or(0);
  }

  void skip(int count) {
    for (int i = 0; i < count; ++i) {
      next();
    }
  }

 private:
  std::string_view text_;
};

// Returns the fields after `key` (a line's beginning, with its colon) in /proc/PID/status.
StatFields fields_of(const std::string& status, std::string_view key) {
  const std::size_t start = std::min(status.find(key), status.size());
  const std::string_view line =
      std::string_view(status).substr(start).substr(0, status.find('\n', start + 1) - start);
  return StatFields(line.substr(std::min(key.size(), line.size())));
}

}  // namespace

Result<std::string> read_small_file(const std::string& path, std::size_t limit,
                                    bool is_given_at_once) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  std::array<char, 4096> block;
  std::string text;
  for (bool is_end = false; text.size() < limit && !is_end;) {
    const std::size_t room = std::min(block.size(), limit - text.size());
    const ssize_t got = retry_eintr([&] { return ::read(fd.get(), block.data(), room); });
    if (got < 0) {
      return system_error(fmt::format("cannot read '{}'", path));
    }
    text.append(block.data(), static_cast<std::size_t>(got));
    is_end = got == 0 || (is_given_at_once && static_cast<std::size_t>(got) < room);
  }
  return text;
}

Result<ProcStat> read_stat(const std::string& path) {
  const auto text = read_small_file(path + "/stat", 2048, true);
  FILETIMER_TRY(text);
  const std::size_t open = text->find('(');
  const std::size_t close = text->rfind(')');
  if (open == text->npos || close == text->npos || close < open) {
    return failure(fmt::format("'{}/stat' is not in the form of proc(5)", path));
  }
  ProcStat stat;
  stat.pid = StatFields(std::string_view(*text).substr(0, open)).number<pid_t>();
  stat.comm = text->substr(open + 1, close - open - 1);
  StatFields fields(std::string_view(*text).substr(close + 1));
  const std::string_view state = fields.next();
  stat.state = state.empty() ? '?' : state[0];
  stat.ppid = fields.number<pid_t>();
  stat.pgrp = fields.number<pid_t>();
  stat.session = fields.number<pid_t>();
  fields.skip(2);  // tty_nr, tpgid
  const auto flags = fields.number<std::uint32_t>();
  stat.is_kernel_thread = (flags & kKernelThread) != 0;
  stat.is_exiting = (flags & kExiting) != 0;
  fields.skip(4);  // minflt ... cmajflt
  stat.user_ticks = fields.number<std::uint64_t>();
  stat.system_ticks = fields.number<std::uint64_t>();
  fields.skip(4);  // cutime ... nice
  stat.threads = fields.number<int>();
  fields.skip(1);  // itrealvalue
  stat.start_time = fields.number<std::uint64_t>();
  fields.skip(1);  // vsize
  stat.rss_pages = fields.number<std::int64_t>();
  fields.skip(3);  // rsslim, startcode, endcode
  stat.start_stack = fields.number<std::uint64_t>();
  return stat;
}

Result<ProcStatus> read_status(const std::string& path) {
  const auto text = read_at_once(path + "/status");
  FILETIMER_TRY(text);
  StatFields of_user = fields_of(*text, "\nUid:");
  const auto uid = number_from<uid_t>(of_user.next());
  if (!uid) {
    return failure(fmt::format("'{}/status' has no Uid line", path));
  }
  const auto bits = [&](std::string_view key) {
    return fields_of(*text, key).number<std::uint64_t>(16);
  };
  ProcStatus status;
  status.uid = *uid;
  status.effective_uid = of_user.number<uid_t>();
  StatFields of_namespaces = fields_of(*text, "\nNSpid:");
  for (pid_t pid = 0; (pid = of_namespaces.number<pid_t>()) != 0;) {
    status.innermost_pid = pid;
  }
  const std::string_view state = fields_of(*text, "\nState:").next();
  status.state = state.empty() ? '?' : state[0];
  status.tracer = fields_of(*text, "\nTracerPid:").number<pid_t>();
  status.pending = bits("\nShdPnd:");
  status.blocked = bits("\nSigBlk:");
  status.caught = bits("\nSigCgt:");
  status.effective_capabilities = bits("\nCapEff:");
  return status;
}

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> numbers;
  Directory entries(folder);
  if (!entries) {
    entries = Directory(folder);  // no descriptor was left, perhaps
  }
  while (const char* const name = entries.next()) {
    if (const auto number = number_from<pid_t>(name)) {
      numbers.push_back(*number);
    }
  }
  return numbers;
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> tids = numbers_in(fmt::format("/proc/{}/task", pid));
  std::ranges::sort(tids, {}, [pid](pid_t tid) { return std::pair(tid != pid, tid); });
  return tids;
}

std::vector<pid_t> children_of(pid_t pid, pid_t tid) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::vector<pid_t> children;
  const auto text = retry_for_now([path = fmt::format("/proc/{}/task/{}/children", pid, tid)] {
    return read_small_file(path, kMostBytes);
  });
  std::string_view rest = text ? std::string_view(*text) : std::string_view{};
  while (const auto child = take_number<pid_t>(rest)) {
    children.push_back(*child);
    rest.remove_prefix(std::min(rest.size(), std::size_t{1}));  // the space after each
  }
  return children;
}

std::vector<pid_t> ancestors_of(pid_t pid) {
  constexpr int kMaxDepth = 1024;  // deeper than any real tree; recycled pids may form a circle
  std::vector<pid_t> ancestors;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const auto stat = read_stat(fmt::format("/proc/{}", pid));
    if (!stat || stat->ppid <= 0) {
      break;
    }
    ancestors.push_back(stat->ppid);
    pid = stat->ppid;
  }
  return ancestors;
}

}  // namespace filetimer
