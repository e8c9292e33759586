// SPDX-License-Identifier: MIT
#include "timer_server/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "common/posix.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// A file that is written behind another one replaces it.
static_assert(SideThreads::max_threads(SideThreads::Lane::kMetrics) == 1);

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

const char* kind_of(mode_t mode) {
  return S_ISLNK(mode) ? "a symbolic link" : S_ISDIR(mode) ? "a directory" : "no regular file";
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
  if (!is_wanted()) {
    return false;
  }
  if (!written_.valid() || written_.wait_for(Duration::zero()) == std::future_status::ready) {
    return true;
  }
  if (Instant::now() - began_ >= kAnswerLimit) {
    note_failure("its file system does not answer");
  }
  return false;
}

void MetricsFile::write(std::string text) {
  const auto result = std::make_shared<std::promise<Status>>();
  written_ = result->get_future();
  began_ = Instant::now();
  side_threads_.run(
      [this, result, path = path_, text = std::move(text)]() -> SideThreads::Delivery {
        Status written = replace_file(path, text);
        result->set_value(written);
        return [this, written = std::move(written)] { note(written); };
      },
      SideThreads::Lane::kMetrics);
}

// Its delivery does not come, because the loop has ended.
void MetricsFile::write_last(std::string text) {
  write(std::move(text));
  if (written_.wait_for(kLastLimit) == std::future_status::ready) {
    note(written_.get());
  } else {
    note_failure("its file system does not answer");
  }
}

void MetricsFile::note(const Status& written) {
  if (!written) {
    note_failure(written.error().message);
  } else if (std::exchange(has_failed_, false)) {
    messages::info("the metrics file '{}' is written again", path_);
  }
}

void MetricsFile::note_failure(const std::string& why) {
  if (!std::exchange(has_failed_, true)) {
    messages::warning("cannot write the metrics file '{}': {}", path_, why);
  }
}

}  // namespace filetimer
