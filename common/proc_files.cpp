// SPDX-License-Identifier: MIT
#include "common/proc_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "common/directory.hpp"
#include "common/numbers.hpp"
#include "common/posix.hpp"

namespace filetimer {
namespace {

constexpr std::uint32_t kKernelThread = 0x00200000;  // PF_KTHREAD of the kernel's sched.h

// The fields after the command's name, which may itself contain spaces and parentheses.
class StatFields {
 public:
  explicit StatFields(std::string_view text) : text_(text) {}

  std::string_view next() {
    const std::size_t start = text_.find_first_not_of(' ');
    if (start == text_.npos) {
      return {};
    }
    const std::size_t end = std::min(text_.find(' ', start), text_.size());
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

// Returns the text after `key` (a line's beginning, with its colon) in /proc/PID/status.
std::string value_of(const std::string& status, std::string_view key) {
  const std::size_t start = status.find(key);
  if (start == status.npos) {
    return {};
  }
  const std::size_t from = start + key.size();
  std::string value = status.substr(from, status.find('\n', from) - from);
  std::ranges::replace(value, '\t', ' ');
  return value;
}

// Reads a file of /proc that one read() returns as a whole, so no second read() has to find its
// end.
Result<std::string> read_at_once(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  const auto text = std::make_unique_for_overwrite<char[]>(limit);
  const ssize_t got = fd ? retry_eintr([&] { return ::read(fd.get(), text.get(), limit); }) : -1;
  if (got < 0) {
    return system_error(fmt::format("cannot {} '{}'", fd ? "read" : "open", path));
  }
  return std::string(text.get(), static_cast<std::size_t>(got));
}

std::uint64_t bits_of(const std::string& status, std::string_view key) {
  const std::string text = value_of(status, key);
  return StatFields(text).number<std::uint64_t>(16);
}

}  // namespace

Result<std::string> read_small_file(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  // The buffer grows as it is filled, because most files are far smaller than the limit, and a
  // buffer of that size would be zeroed, and kept by the allocator, for each of them.
  constexpr std::size_t kFirstBytes = 4096;
  std::string text;
  std::size_t used = 0;
  while (used < limit) {
    if (used == text.size()) {
      text.resize(std::min(limit, std::max(kFirstBytes, used * 2)));
    }
    const ssize_t got =
        retry_eintr([&] { return ::read(fd.get(), text.data() + used, text.size() - used); });
    if (got < 0) {
      return system_error(fmt::format("cannot read '{}'", path));
    }
    if (got == 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

Result<ProcStat> read_stat(const std::string& path) {
  const auto text = read_at_once(path + "/stat", 2048);
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
  stat.is_kernel_thread = (fields.number<std::uint32_t>() & kKernelThread) != 0;
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
  const auto text = read_at_once(path + "/status", 16384);
  FILETIMER_TRY(text);
  const std::string uids = value_of(*text, "\nUid:");
  if (uids.empty()) {
    return failure(fmt::format("'{}/status' has no Uid line", path));
  }
  ProcStatus status;
  StatFields of_user(uids);
  status.uid = of_user.number<uid_t>();
  status.effective_uid = of_user.number<uid_t>();
  const std::string pids = value_of(*text, "\nNSpid:");
  StatFields of_namespaces(pids);
  for (pid_t pid = 0; (pid = of_namespaces.number<pid_t>()) != 0;) {
    status.innermost_pid = pid;
  }
  const std::string state = value_of(*text, "\nState:");
  const std::string_view letter = StatFields(state).next();
  status.state = letter.empty() ? '?' : letter[0];
  const std::string tracer = value_of(*text, "\nTracerPid:");
  status.tracer = StatFields(tracer).number<pid_t>();
  status.pending = bits_of(*text, "\nShdPnd:");
  status.blocked = bits_of(*text, "\nSigBlk:");
  status.caught = bits_of(*text, "\nSigCgt:");
  status.effective_capabilities = bits_of(*text, "\nCapEff:");
  return status;
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> tids;
  Directory threads(fmt::format("/proc/{}/task", pid));
  while (const char* const name = threads.next()) {
    if (const auto tid = number_from<pid_t>(name)) {
      tids.push_back(*tid);
    }
  }
  std::ranges::sort(tids, {}, [pid](pid_t tid) { return std::pair(tid != pid, tid); });
  return tids;
}

std::vector<pid_t> children_of(pid_t pid, pid_t tid) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::vector<pid_t> children;
  const auto text = read_small_file(fmt::format("/proc/{}/task/{}/children", pid, tid), kMostBytes);
  std::string_view rest = text ? std::string_view(*text) : std::string_view{};
  while (const auto child = take_number<pid_t>(rest)) {
    children.push_back(*child);
    rest.remove_prefix(std::min(rest.size(), std::size_t{1}));  // the space after each
  }
  return children;
}

}  // namespace filetimer
