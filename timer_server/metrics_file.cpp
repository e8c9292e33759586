// SPDX-License-Identifier: MIT
#include "timer_server/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "common/posix.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

Status write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = retry_eintr([&] { return ::write(fd, text.data(), text.size()); });
    if (put < 0) {
      return system_error("cannot write the temporary file");
    }
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

Status write_new_file(const std::string& path, std::string_view text) {
  (void)::unlink(path.c_str());  // of a server that was killed and had this process id
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    return system_error(fmt::format("cannot make '{}'", path));
  }
  if (::fchmod(fd.get(), 0644) != 0) {
    return system_error(fmt::format("cannot set the mode of '{}'", path));
  }
  if (Status written = write_whole(fd.get(), text); !written) {
    return written;
  }
  // A file server may tell only then that its disk is full.
  return ::close(fd.release()) == 0 ? Status{}
                                    : system_error(fmt::format("cannot write '{}'", path));
}

std::optional<FileVersion> version_of(const std::string& path) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) {
    return std::nullopt;
  }
  return FileVersion{there.st_ino, there.st_mtim.tv_sec, there.st_mtim.tv_nsec};
}

const char* kind_of(mode_t mode) {
  return S_ISLNK(mode) ? "a symbolic link" : S_ISDIR(mode) ? "a directory" : "no regular file";
}

bool is_done(const std::shared_future<Status>& written, Duration limit) {
  return !written.valid() || written.wait_for(limit) == std::future_status::ready;
}

}  // namespace

Status replace_file(const std::string& path, std::string_view text) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return failure(
        fmt::format("it is {}: expected a regular file, or none", kind_of(there.st_mode)));
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  Status written = write_new_file(temporary, text);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = system_error(fmt::format("cannot rename '{}' to it", temporary));
  }
  if (!written) {
    (void)::unlink(temporary.c_str());
  }
  return written;
}

bool MetricsFile::is_ready() {
  loop_thread_.check();
  if (is_done(written_, Duration::zero())) {
    return true;
  }
  if (Instant::now() - began_ >= kAnswerLimit) {
    note_failure("its file system does not answer");
  }
  return false;
}

void MetricsFile::write(Metrics metrics) {
  loop_thread_.check();
  if (!is_wanted()) {
    return;
  }
  const auto result = std::make_shared<std::promise<Status>>();
  written_ = result->get_future().share();
  began_ = Instant::now();
  // If the job is dropped, the promise is broken, which makes written_ ready.
  side_threads_.run(
      [this, result, path = path_, last = last_version_,
       metrics = std::move(metrics)]() -> SideThreads::Delivery {
        const std::optional<FileVersion> found = version_of(path);
        const bool is_of_another = *last && found && found != *last;
        Status written = replace_file(path, metrics_text(metrics));
        *last = written ? version_of(path) : std::nullopt;
        result->set_value(written);
        return [this, written = std::move(written), is_of_another] {
          note(written);
          if (is_of_another) {
            note_other_writer();
          }
        };
      },
      SideThreads::Lane::kMetrics);
}

void MetricsFile::write_last(Metrics metrics, Duration limit) {
  loop_thread_.check();
  if (!is_wanted()) {
    return;
  }
  const Instant until = Instant::now() + limit;
  if (is_done(written_, limit)) {
    write(std::move(metrics));
    if (is_done(written_, std::max(until - Instant::now(), Duration::zero()))) {
      try {
        note(written_.get());
      } catch (const std::future_error&) {
        note_failure("too many jobs wait");  // it was dropped
      }
      return;
    }
  }
  note_failure("its file system does not answer");
}

void MetricsFile::note(const Status& written) {
  if (!written) {
    note_failure(written.error().message);
  } else if (std::exchange(has_failed_, false)) {
    messages::info("the metrics file '{}' is written again", path_);
  }
}

void MetricsFile::note_other_writer() {
  if (!std::exchange(has_noted_other_, true)) {
    messages::warning(
        "another program writes the metrics file '{}', too: expected a file of its own for each "
        "server",
        path_);
  }
}

void MetricsFile::note_failure(const std::string& why) {
  if (!std::exchange(has_failed_, true)) {
    messages::warning("cannot write the metrics file '{}': {}", path_, why);
  }
}

}  // namespace filetimer
