// SPDX-License-Identifier: MIT
#include "timer_client/admin/ask.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/kept_fd.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// How often a waiting client checks that the server still runs.
constexpr Duration kLookPeriod = milliseconds{250};
// Between attempts to write to a pipe that is full.
constexpr Duration kBusyPause = milliseconds{5};
constexpr std::size_t kReadBytes = std::size_t{16} << 10;
// Two random names are equal with a probability of 2^-64, so repeated collisions mean a fault of
// the system.
constexpr int kNameAttempts = 8;
constexpr const char* kPipeIsClosed =
    "this process has no pipe for the answer any more: it was forked meanwhile, or closed its "
    "files";

int poll_ms(Duration wait) {
  // Rounded up: poll(0) would spin through the last millisecond.
  return static_cast<int>(std::chrono::ceil<milliseconds>(std::max(wait, Duration{})).count());
}

// The named pipe on which the server answers.
//
// fork() gives the child a copy of the read end, which would hide from the server that the client
// withdraws. So the child closes the read ends of all requests under way; the parent removes the
// pipes. The lock prevents fork() while a pipe is opened or closed.
class ReplyPipe {
 public:
  ReplyPipe() = default;
  ReplyPipe(const ReplyPipe&) = delete;
  ReplyPipe& operator=(const ReplyPipe&) = delete;
  ~ReplyPipe() {
    remove_name();
    const std::scoped_lock held(under_way().mutex);
    std::erase(under_way().pipes, this);
    fd_.reset();
  }

  // To be called once.
  Status open(const std::string& folder) {
    const std::scoped_lock held(under_way().mutex);
    for (int i = 0; i < kNameAttempts; ++i) {
      std::uint64_t random = 0;
      if (::getrandom(&random, sizeof random, 0) != sizeof random) {
        return system_error("cannot get random bytes");
      }
      name_ = fmt::format("{}-{:016x}", ::getpid(), random);
      path_ = fmt::format("{}/{}", folder, name_);
      if (::mkfifo(path_.c_str(), 0600) == 0) {
        has_name_ = true;
        under_way().pipes.push_back(this);
        fd_ = KeptFd(UniqueFd(retry_eintr([&] {
          return ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        })));
        return fd_.get() >= 0 ? Status{}
                              : system_error(fmt::format("cannot open the pipe '{}'", path_));
      }
      if (errno != EEXIST) {
        break;
      }
    }
    return system_error(fmt::format("cannot make a pipe in '{}'", folder));
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns -1 in a child that was forked after open(), and if the program has closed it.
  [[nodiscard]] int fd() { return fd_.get(); }

  void remove_name() {
    if (std::exchange(has_name_, false)) {
      ::unlink(path_.c_str());
    }
  }

 private:
  // Of this process. Never destroyed: a thread may still wait when the process ends.
  struct UnderWay {
    UnderWay() {
      ::pthread_atfork([] { under_way().mutex.lock(); }, [] { under_way().mutex.unlock(); },
                       [] {
                         under_way().leave_to_parent();
                         under_way().mutex.unlock();
                       });
    }
    void leave_to_parent() {
      for (ReplyPipe* const pipe : pipes) {
        pipe->fd_.reset();
        pipe->has_name_ = false;
      }
      pipes.clear();
    }
    std::mutex mutex;
    std::vector<ReplyPipe*> pipes;
  };
  static UnderWay& under_way() {
    static UnderWay& made = *new UnderWay;
    return made;
  }
  static const bool is_ready;  // makes under_way() when the library is loaded, see ProcessLock

  std::string name_;
  std::string path_;
  KeptFd fd_;
  bool has_name_ = false;
};

[[maybe_unused]] const bool ReplyPipe::is_ready = &under_way() != nullptr;

class Asking {
 public:
  Asking(const ServerLocation& place, const wire::Question& question, Duration patience,
         const OnAnswer& on_answer, const WhileWaiting& while_waiting)
      : place_(place),
        question_(question),
        patience_(patience),
        on_answer_(on_answer),
        while_waiting_(while_waiting),
        start_(Instant::now()),
        deadline_(start_ + patience) {}

  Reply run() {
    Reply reply = ask_and_wait();
    reply.waited = Instant::now() - start_;
    if (reply.answer.empty()) {
      client_messages::debug("request '{}': {}{}", question_.request,
                             reply.kind == Kind::kNoAnswer ? "withdrawn: " : "", reply.why);
    }
    return reply;
  }

 private:
  using Kind = Reply::Kind;
  enum class Event { kBytes, kEnd, kTime, kFailed };

  static Reply without_answer(Kind kind, std::string why) {
    Reply reply;
    reply.kind = kind;
    reply.why = std::move(why);
    return reply;
  }

  [[nodiscard]] Reply no_server() const {
    int error = 0;
    if (has_reader(place_.pipe, error)) {
      return without_answer(
          Kind::kNoServer,
          fmt::format("the server at '{}' answers no control requests: there is no folder '{}/{}'",
                      place_.pipe, place_.run_folder, kRepliesName));
    }
    return without_answer(Kind::kNoServer, fmt::format("no timer server at '{}': {}", place_.pipe,
                                                       why_no_reader(error)));
  }

  [[nodiscard]] Reply server_gone(std::string_view before) const {
    Reply reply = without_answer(
        Kind::kServerGone, fmt::format("the timer server at '{}' ended before {} '{}'", place_.pipe,
                                       before, question_.request));
    reply.server = ServerProcess::kGone;
    return reply;
  }

  Reply no_answer(std::string_view what) const {
    const ServerProcess process = watch_->look();
    Reply reply = without_answer(
        Kind::kNoAnswer,
        fmt::format("no answer to '{}' from the server at '{}' in {}: {}; its process is {}",
                    question_.request, place_.pipe, duration_for_reading(Instant::now() - start_),
                    what, name_of(process)));
    reply.server = process;
    return reply;
  }

  Reply ask_and_wait() {
    if (place_.run_folder.empty()) {
      return without_answer(
          Kind::kNoServer,
          fmt::format("the server at '{}' answers no control requests: it is a bare pipe, and its "
                      "runtime directory is not known",
                      place_.pipe));
    }
    watch_.emplace(place_);
    if (Status made = pipe_.open(fmt::format("{}/{}", place_.run_folder, kRepliesName)); !made) {
      const int error = made.error().errno_value;
      return error == ENOENT || error == ENOTDIR
                 ? no_server()
                 : without_answer(Kind::kFailed, std::move(made.error().message));
    }
    question_.reply = pipe_.name();
    client_messages::debug("request '{}' to '{}': waiting {} for answers on '{}/{}'",
                           question_.request, place_.pipe, duration_text(patience_), kRepliesName,
                           pipe_.name());
    if (auto failed = send()) {
      return std::move(*failed);
    }
    Reply reply = wait_for_answers();
    if (reply.kind == Kind::kDone && question_.request == "shutdown") {
      // The server closes the pipe when it ends.
      if (auto failed = wait_for_end()) {
        return std::move(*failed);
      }
    }
    return reply;
  }

  std::optional<Reply> send() {
    // 0: unknown. In another pid namespace this process's pid names another process.
    const pid_t pid = why_no_pids(place_.run_folder).empty() ? ::getpid() : 0;
    const std::string line = wire::format_question(question_, pid);
    if (line.size() > kMaxAtomicWrite) {
      return without_answer(
          Kind::kInvalid, fmt::format("the request has {} bytes: expected at most {}", line.size(),
                                      kMaxAtomicWrite));
    }
    for (;;) {
      switch (send_line(place_.pipe, line)) {
        case LineSent::kYes:
          return std::nullopt;
        case LineSent::kBusy:
          break;
        default:
          return no_server();
      }
      const Duration left = deadline_ - Instant::now();
      if (left <= Duration{}) {
        return no_answer("its pipe is full");
      }
      wait_for(std::min(left, kBusyPause), while_waiting_);
      if (pipe_.fd() < 0) {
        return without_answer(Kind::kFailed, kPipeIsClosed);
      }
    }
  }

  Reply wait_for_answers() {
    for (;;) {
      switch (wait()) {
        case Event::kBytes:
          break;
        case Event::kEnd:
          return server_gone("it answered");
        case Event::kTime:
          return no_answer(was_answered_ ? "the wait that it granted is over" : "it did not react");
        case Event::kFailed:
          return without_answer(Kind::kFailed, std::move(trouble_));
      }
      std::size_t start = 0;
      for (std::size_t end = 0; (end = unread_.find('\n', start)) != unread_.npos;
           start = end + 1) {
        if (auto last = take(std::string_view(unread_).substr(start, end - start))) {
          return std::move(*last);
        }
      }
      unread_.erase(0, start);
    }
  }

  std::optional<Reply> wait_for_end() {
    for (;;) {
      unread_.clear();
      switch (wait()) {
        case Event::kBytes:
          break;
        case Event::kEnd:
          return std::nullopt;
        case Event::kTime:
          return no_answer("it announced its end, and still runs");
        case Event::kFailed:
          return without_answer(Kind::kFailed, std::move(trouble_));
      }
    }
  }

  // Answers in the pipe take precedence over the server's end and over the deadline.
  Event wait() {
    for (;;) {
      if (while_waiting_) {
        while_waiting_();
      }
      if (pipe_.fd() < 0) {
        trouble_ = kPipeIsClosed;
        return Event::kFailed;
      }
      const Duration left = deadline_ - Instant::now();
      const bool is_over = left <= Duration{};
      pollfd answers{pipe_.fd(), POLLIN, 0};
      const int ready =
          ::poll(&answers, 1, is_over || is_gone_ ? 0 : poll_ms(std::min(left, kLookPeriod)));
      if (ready > 0) {
        return read();
      }
      if (ready < 0 && errno != EINTR) {
        trouble_ = system_error("cannot wait for the answer").value().message;
        return Event::kFailed;
      }
      if (is_gone_) {
        return Event::kEnd;
      }
      if (is_over) {
        return Event::kTime;
      }
      if (ready == 0) {
        is_gone_ = watch_->look() == ServerProcess::kGone;
      }
    }
  }

  Event read() {
    char bytes[kReadBytes];
    const ssize_t got = retry_eintr([&] { return ::read(pipe_.fd(), bytes, sizeof bytes); });
    if (got > 0) {
      unread_.append(bytes, static_cast<std::size_t>(got));
      if (unread_.size() <= kMaxAnswerBytes) {
        return Event::kBytes;
      }
      trouble_ = fmt::format("an answer of the server at '{}' is longer than {} bytes", place_.pipe,
                             kMaxAnswerBytes);
      return Event::kFailed;
    }
    if (got < 0 && errno == EAGAIN) {
      return Event::kBytes;  // no bytes: a spurious wake-up
    }
    if (got < 0) {
      trouble_ = system_error("cannot read the answer").value().message;
    }
    return got == 0 ? Event::kEnd : Event::kFailed;
  }

  // Returns the reply if `line` is the last answer.
  std::optional<Reply> take(std::string_view line) {
    pipe_.remove_name();
    simdjson::dom::object answer;
    if (parser_.parse(line.data(), line.size()).get_object().get(answer) != simdjson::SUCCESS) {
      return without_answer(
          Kind::kFailed,
          fmt::format("the server at '{}' answered '{}': expected a JSON object", place_.pipe,
                      printable(line.substr(0, kMaxRejectedBytesShown))));
    }
    const std::string kind = text_at(answer, "answer");
    std::string detail = text_at(answer, "reason");
    if (kind == "granted") {
      const auto wait_s = number_at(answer, "wait_s");
      const Duration granted = wait_s ? duration_from_seconds(*wait_s) : kForever;
      // Two additions: either duration may be kForever, and each sum saturates.
      deadline_ = Instant::now() + granted + patience_;
      detail = duration_text(granted);
    }
    client_messages::debug("request '{}': {} after {}{}{}", question_.request, kind,
                           duration_for_reading(Instant::now() - start_),
                           detail.empty() ? "" : ": ", detail);
    was_answered_ = true;
    for (const auto& [word, last] : {std::pair{"done", Kind::kDone},
                                     {"refused", Kind::kRefused},
                                     {"timed_out", Kind::kTimedOut},
                                     {"invalid", Kind::kInvalid}}) {
      if (kind == word) {
        Reply reply = without_answer(last, text_at(answer, "reason"));
        if (reply.why.empty() && last != Kind::kDone) {
          reply.why = fmt::format("the server answered '{}' and gave no reason", word);
        }
        reply.answer = line;
        return reply;
      }
    }
    // An unknown answer comes from another version of the server, and is not the last one.
    if (on_answer_) {
      on_answer_(line);
    }
    return std::nullopt;
  }

  const ServerLocation& place_;
  wire::Question question_;
  const Duration patience_;
  const OnAnswer& on_answer_;
  const WhileWaiting& while_waiting_;
  const Instant start_;
  Instant deadline_;
  std::optional<ServerWatch> watch_;
  ReplyPipe pipe_;
  std::string unread_;
  std::string trouble_;
  bool is_gone_ = false;
  bool was_answered_ = false;
  simdjson::dom::parser parser_;
};

}  // namespace

void wait_for(Duration time, const WhileWaiting& while_waiting) {
  const Instant end = Instant::now() + time;
  for (Duration left = time; left > Duration{}; left = end - Instant::now()) {
    ::poll(nullptr, 0, poll_ms(std::min(left, kLookPeriod)));
    if (while_waiting) {
      while_waiting();
    }
  }
}

Reply ask(const ServerLocation& place, wire::Question question, Duration patience,
          const OnAnswer& on_answer, const WhileWaiting& while_waiting) {
  return Asking(place, question, patience, on_answer, while_waiting).run();
}

}  // namespace filetimer
