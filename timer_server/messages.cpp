// SPDX-License-Identifier: MIT
#include "timer_server/messages.hpp"

#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/base_sink.h>
#include <syslog.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "common/text.hpp"

namespace filetimer::messages {
namespace {

constexpr std::size_t kQueue = 256;  // messages; past this the oldest are dropped
constexpr std::chrono::milliseconds kStopLimit{200};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kError:
      return spdlog::level::err;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kDebug:
      return spdlog::level::debug;
  }
  return spdlog::level::info;
}

int syslog_priority(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::err:
      return LOG_ERR;
    case spdlog::level::warn:
      return LOG_WARNING;
    case spdlog::level::info:
      return LOG_INFO;
    default:
      return LOG_DEBUG;
  }
}

class Output final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Output(bool to_syslog) : to_syslog_(to_syslog) {
    if (to_syslog_) {
      ::openlog("timer_server", LOG_PID, LOG_DAEMON);
    }
  }

  // False when what was said before the last flush is not out within `bound`.
  bool wait_for_flush(std::chrono::milliseconds bound) {
    std::unique_lock lock(flush_mutex_);
    return flush_done_.wait_for(lock, bound, [this] { return flushed_; });
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    if (to_syslog_) {
      ::syslog(syslog_priority(message.level), "%.*s", static_cast<int>(text.size()), text.data());
      return;
    }
    const std::string line = journal_
                                 ? fmt::format("<{}>{}\n", syslog_priority(message.level), text)
                                 : fmt::format("timer_server: {}: {}\n",
                                               spdlog::level::to_string_view(message.level), text);
    (void)!::write(STDERR_FILENO, line.data(), line.size());
  }
  void flush_() override {
    const std::lock_guard lock(flush_mutex_);
    flushed_ = true;
    flush_done_.notify_all();
  }

  const bool to_syslog_;
  const bool journal_ = std::getenv("JOURNAL_STREAM") != nullptr;
  std::mutex flush_mutex_;
  std::condition_variable flush_done_;
  bool flushed_ = false;
};

struct Channel {
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<Output> output;
  std::shared_ptr<spdlog::async_logger> logger;
};

// Never destroyed: its thread may hang in a write to standard error when the process ends.
Channel* channel = nullptr;

}  // namespace

void start(Level level, bool to_syslog) {
  channel = new Channel;
  channel->pool = std::make_shared<spdlog::details::thread_pool>(kQueue, 1);
  channel->output = std::make_shared<Output>(to_syslog);
  channel->logger =
      std::make_shared<spdlog::async_logger>("timer_server", channel->output, channel->pool,
                                             spdlog::async_overflow_policy::overrun_oldest);
  channel->logger->set_level(to_spdlog(level));
}

void say(Level level, std::string_view line) {
  if (channel != nullptr) {
    channel->logger->log(to_spdlog(level), printable(line));
  }
}

void stop() {
  if (channel == nullptr) {
    return;
  }
  // Joining the pool's thread could hang; this is bounded.
  channel->logger->flush();
  channel->output->wait_for_flush(kStopLimit);
}

}  // namespace filetimer::messages
