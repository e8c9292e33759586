// SPDX-License-Identifier: MIT
#include "timer_server/system/messages.hpp"

#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>

#include "common/mutex.hpp"
#include "common/text.hpp"

namespace filetimer::messages {
namespace {

constexpr std::size_t kQueue = 256;  // messages; then the oldest are dropped
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

class Channel {
 public:
  Channel(Level level, bool to_syslog) : level_(level), to_syslog_(to_syslog) {
    if (to_syslog_) {
      ::openlog("timer_server", LOG_PID, LOG_DAEMON);
    }
    std::thread([this] { run(); }).detach();
  }

  void say(Level level, std::string_view line) {
    if (level > level_) {
      return;
    }
    {
      const MutexLock lock(mutex_);
      if (queue_.size() >= kQueue) {
        queue_.pop_front();
      }
      queue_.push_back({level, printable(line)});
    }
    changed_.notify_all();
  }

  void wait_until_out(std::chrono::milliseconds bound) {
    MutexLock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + bound;
    while ((!queue_.empty() || writing_) && changed_.wait_until(lock, until)) {
    }
  }

 private:
  void run() {
    MutexLock lock(mutex_);
    for (;;) {
      while (queue_.empty()) {
        changed_.wait(lock);
      }
      const Message message = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      lock.unlock();
      write_out(message);
      lock.lock();
      writing_ = false;
      changed_.notify_all();
    }
  }

  // May block: only this thread is delayed.
  void write_out(const Message& message) const {
    if (to_syslog_) {
      ::syslog(static_cast<int>(message.level), "%s", message.text.c_str());
      return;
    }
    // The journal reads the level from a number in front, sd-daemon(3).
    const std::string line =
        is_journal_ ? fmt::format("<{}>{}\n", static_cast<int>(message.level), message.text)
                    : fmt::format("timer_server: {}: {}\n", name_of(message.level), message.text);
    (void)!::write(STDERR_FILENO, line.data(), line.size());
  }

  const Level level_;
  const bool to_syslog_;
  const bool is_journal_ = is_standard_error_the_journal();
  Mutex mutex_;  // never held during output
  ConditionVariable changed_;
  std::deque<Message> queue_ FILETIMER_GUARDED_BY(mutex_);
  bool writing_ FILETIMER_GUARDED_BY(mutex_) = false;
};

// Never destroyed: its thread may hang in a write to standard error when the process ends.
Channel* channel = nullptr;

}  // namespace

void start(Level level, bool to_syslog) {
  channel = new Channel(level, to_syslog);
}

void say(Level level, std::string_view line) {
  if (channel != nullptr) {
    channel->say(level, line);
  }
}

void stop() {
  if (channel != nullptr) {
    channel->wait_until_out(kStopLimit);
  }
}

}  // namespace filetimer::messages
