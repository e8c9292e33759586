// SPDX-License-Identifier: MIT
#include "timer_server/system/messages.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <new>
#include <string>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/text.hpp"
#include "timer_server/system/mutex.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer::messages {
namespace {

// The most messages, with room for some of each worker; then the oldest are dropped.
constexpr std::size_t kQueue = 4 * kMaxWorkers;
constexpr std::chrono::milliseconds kStopLimit{200};

struct Message {
  Level level;
  std::string text;
};

// The variable has the device and the inode of the journal's stream. A process whose standard error
// goes elsewhere may have inherited it.
bool is_standard_error_the_journal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &status) == 0 &&
         fmt::format("{}:{}", status.st_dev, status.st_ino) == stream;
}

struct Channel {
  const Level level;
  const bool to_syslog;
  const bool is_journal = is_standard_error_the_journal();
  Mutex mutex{};  // never held during output
  std::condition_variable changed{};
  std::deque<Message> queue FILETIMER_GUARDED_BY(mutex){};
  bool writing FILETIMER_GUARDED_BY(mutex) = false;

  // May block: only the thread of the messages is delayed. May throw std::bad_alloc.
  void write_out(const Message& message) const {
    if (to_syslog) {
      ::syslog(static_cast<int>(message.level), "%s", message.text.c_str());
      return;
    }
    // The journal reads the level from a number in front, sd-daemon(3).
    const std::string line =
        is_journal ? fmt::format("<{}>{}\n", static_cast<int>(message.level), message.text)
                   : fmt::format("timer_server: {}: {}\n", name_of(message.level), message.text);
    // A process that shares the pipe or the terminal, such as COMMAND, may have set O_NONBLOCK.
    for (std::string_view rest = line; !rest.empty();) {
      const ssize_t put =
          retry_eintr([&] { return ::write(STDERR_FILENO, rest.data(), rest.size()); });
      if (put > 0) {
        rest.remove_prefix(static_cast<std::size_t>(put));
        continue;
      }
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      if (put == 0 || errno != EAGAIN || retry_eintr([&] { return ::poll(&room, 1, -1); }) < 0) {
        return;
      }
    }
  }

  void run() {
    MutexLock lock(mutex);
    for (;;) {
      while (queue.empty()) {
        changed.wait(lock);
      }
      const Message message = std::move(queue.front());
      queue.pop_front();
      writing = true;
      lock.unlock();
      try {
        write_out(message);
      } catch (const std::bad_alloc&) {
        // The message is dropped.
      }
      lock.lock();
      writing = false;
      changed.notify_all();
    }
  }
};

// Never destroyed: its thread may hang in a write to standard error when the process ends.
Channel* channel = nullptr;

}  // namespace

void start(Level level, bool to_syslog) {
  channel = new Channel{.level = level, .to_syslog = to_syslog};
  if (to_syslog) {
    ::openlog("timer_server", LOG_PID, LOG_DAEMON);
  }
  start_detached_thread([] { channel->run(); });
}

void say(Level level, std::string_view line) {
  if (channel == nullptr || level > channel->level) {
    return;
  }
  const MutexLock lock(channel->mutex);
  if (channel->queue.size() >= kQueue) {
    channel->queue.pop_front();
  }
  channel->queue.push_back({level, printable(line)});
  channel->changed.notify_all();
}

void stop() {
  if (channel != nullptr) {
    MutexLock lock(channel->mutex);
    const auto until = std::chrono::steady_clock::now() + kStopLimit;
    while ((!channel->queue.empty() || channel->writing) &&
           channel->changed.wait_until(lock, until) == std::cv_status::no_timeout) {
    }
  }
}

}  // namespace filetimer::messages
