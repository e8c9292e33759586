// SPDX-License-Identifier: MIT
#include "timer_server/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace filetimer {
namespace {

bool ended(int pidfd) {
  pollfd poll{pidfd, POLLIN, 0};
  return retry_eintr([&] { return ::poll(&poll, 1, 0); }) > 0;
}

// The fields behind the command's name, which may hold spaces and parentheses itself.
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
  Number number() {
    Number value{};
    const std::string_view field = next();
    std::from_chars(field.data(), field.data() + field.size(), value);
    return value;
  }

  void skip(int count) {
    for (int i = 0; i < count; ++i) {
      next();
    }
  }

 private:
  std::string_view text_;
};

// Real and effective uid, from the "Uid:" line.
Result<std::pair<uid_t, uid_t>> read_uids(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/status", pid);
  const auto text = read_small_file(path);
  if (!text) {
    return tl::unexpected<Error>(text.error());
  }
  constexpr std::string_view kKey = "\nUid:";
  const std::size_t start = text->find(kKey);
  if (start == text->npos) {
    return failure(fmt::format("'{}' has no Uid line", path));
  }
  std::string line = text->substr(start + kKey.size(), text->find('\n', start + 1) - start - 5);
  for (char& c : line) {
    c = c == '\t' ? ' ' : c;
  }
  StatFields fields(line);
  const auto real = fields.number<uid_t>();
  return std::pair{real, fields.number<uid_t>()};
}

}  // namespace

Result<std::string> read_small_file(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) {
    return system_error(fmt::format("cannot open '{}'", path));
  }
  // Grows as it is filled: most files are far smaller than what a caller is ready to take, and a
  // limit's worth of zeroes would be touched, and kept by the allocator, for each of them.
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
  const auto text = read_small_file(path + "/stat", 2048);
  if (!text) {
    return tl::unexpected<Error>(text.error());
  }
  const std::size_t open = text->find('(');
  const std::size_t close = text->rfind(')');
  if (open == text->npos || close == text->npos || close < open) {
    return failure(fmt::format("'{}/stat' is not in the form of proc(5)", path));
  }
  ProcStat stat;
  std::from_chars(text->data(), text->data() + open, stat.pid);
  stat.comm = text->substr(open + 1, close - open - 1);
  StatFields fields(std::string_view(*text).substr(close + 1));
  const std::string_view state = fields.next();
  stat.state = state.empty() ? '?' : state[0];
  stat.ppid = fields.number<pid_t>();
  stat.pgrp = fields.number<pid_t>();
  fields.skip(8);  // session ... cmajflt
  stat.user_ticks = fields.number<std::uint64_t>();
  stat.system_ticks = fields.number<std::uint64_t>();
  fields.skip(6);  // cutime ... itrealvalue
  stat.start_time = fields.number<std::uint64_t>();
  fields.skip(1);  // vsize
  stat.rss_pages = fields.number<std::int64_t>();
  fields.skip(3);  // rsslim, startcode, endcode
  stat.start_stack = fields.number<std::uint64_t>();
  return stat;
}

bool Process::is_alive() const {
  return !ended(pidfd.get());
}

bool Process::send_signal(int signal) const {
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0U) == 0;
}

// glibc got wrappers for the two pidfd calls in 2.36; Ubuntu 22.04 has 2.35.
UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));  // always close-on-exec
}

Result<Process> open_process(pid_t pid) {
  Process process;
  process.pid = pid;
  process.pidfd = open_pidfd(pid);
  if (!process.pidfd) {
    if (errno == ESRCH) {
      return tl::unexpected<Error>(Error{fmt::format("pid {} is no process", pid), ESRCH});
    }
    if (errno == EINVAL) {
      return failure(fmt::format("pid {} is not a process's own id (a thread's?)", pid));
    }
    return system_error(fmt::format("cannot open pid {}", pid));
  }
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  const auto uids = read_uids(pid);
  if (process.is_alive() && (!stat || !uids)) {
    return tl::unexpected<Error>(!stat ? stat.error() : uids.error());
  }
  if (!stat || !uids || !process.is_alive()) {
    return tl::unexpected<Error>(Error{fmt::format("pid {} has ended", pid), ESRCH});
  }
  process.start_time = stat->start_time;
  process.comm = stat->comm;
  process.ppid = stat->ppid;
  process.pgrp = stat->pgrp;
  process.start_stack = stat->start_stack;
  // One who runs as somebody else (a set-uid program) counts as that user.
  process.uid = uids->first == ::geteuid() ? uids->second : uids->first;
  return process;
}

std::vector<pid_t> ancestors_of(pid_t pid) {
  constexpr int kMaxDepth = 1024;  // deeper than any real tree; a bound should pids be recycled
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
