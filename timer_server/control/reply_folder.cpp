// SPDX-License-Identifier: MIT
#include "timer_server/control/reply_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/directory.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr int kMostFiles = 512;  // that one sweep looks at

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxPageNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
}

}  // namespace

Result<ReplyFolder> ReplyFolder::make(const std::string& dir) {
  std::string path = fmt::format("{}/{}", dir, kRepliesName);
  auto made = create_run_folder(path);
  if (!made) {
    return tl::unexpected<Error>(std::move(made.error()));
  }
  return ReplyFolder(std::move(path), std::move(*made));
}

bool ReplyFolder::is_in_place() const {
  struct stat ours {};
  struct stat there {};
  return ::fstat(folder_.get(), &ours) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

Result<UniqueFd> ReplyFolder::open(std::string_view name) const {
  if (!is_name(name)) {
    return failure(
        fmt::format("x_reply is '{}': expected letters, digits and '-', at most {} bytes",
                    printable(name.substr(0, kMaxPageNameBytes)), kMaxPageNameBytes));
  }
  const std::string path(name);
  // The file is checked by an O_PATH descriptor first, because opening a device can have an effect.
  const UniqueFd handle(::openat(folder_.get(), path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat st {};
  if (!handle || ::fstat(handle.get(), &st) != 0) {
    return system_error(fmt::format("x_reply is '{}'", name));
  }
  if (!S_ISFIFO(st.st_mode) || st.st_uid != ::geteuid()) {
    return failure(
        fmt::format("x_reply is '{}': expected a named pipe of user {}", name, ::geteuid()));
  }
  UniqueFd pipe(retry_eintr([&] {
    return ::open(fmt::format("/proc/self/fd/{}", handle.get()).c_str(),
                  O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  }));
  if (!pipe) {
    return errno == ENXIO ? failure(fmt::format("x_reply is '{}': the pipe has no reader", name))
                          : system_error(fmt::format("x_reply is '{}'", name));
  }
  return pipe;
}

void ReplyFolder::remove_abandoned() const {
  Directory folder{UniqueFd(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  int looked_at = 0;
  while (const char* const name = looked_at++ < kMostFiles ? folder.next() : nullptr) {
    struct stat st {};
    const bool is_old = ::fstatat(folder_.get(), name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISFIFO(st.st_mode) &&
                        std::chrono::seconds{now.tv_sec - st.st_mtim.tv_sec} > kAbandonedAfter;
    if (is_old && is_name(name) && !open(name)) {
      ::unlinkat(folder_.get(), name, 0);
    }
  }
}

}  // namespace filetimer
