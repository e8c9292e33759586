// SPDX-License-Identifier: MIT
#include "timer_client/admin/ask.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/control.hpp"
#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/kept_fd.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// The longest wait without a call of while_waiting.
constexpr Duration kLookPeriod = milliseconds{250};
// Between attempts to connect while too many clients wait to be accepted.
constexpr Duration kBusyPause = milliseconds{5};
constexpr const char* kIsClosed =
    "this process has no connection for the answer any more: it was forked meanwhile, or closed "
    "its files";

int poll_ms(Duration wait) {
  // Rounded up: poll(0) would spin through the last millisecond.
  return static_cast<int>(std::chrono::ceil<milliseconds>(std::max(wait, Duration{})).count());
}

// Returns whether a signal or a debugger has stopped the server of the directory.
bool is_stopped(const std::string& run_folder) {
  const pid_t pid = look_for_server(run_folder).pid;
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  return pid > 0 && stat && (stat->state == 'T' || stat->state == 't');
}

// A connection to the control socket.
//
// fork() gives the child a copy, which would hide from the server that the client exits. So the
// child closes the connections of all requests under way. A child of a bare clone() keeps its copy;
// the end of a request is therefore announced by shutdown(). The lock prevents fork() while a
// connection is opened or closed.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    const std::scoped_lock held(under_way().mutex);
    std::erase(under_way().connections, this);
    if (const int own = fd(); own >= 0) {
      ::shutdown(own, SHUT_RDWR);
    }
    fd_.reset();
  }

  // Returns 0, or the errno that says why there is no connection.
  int open(const std::string& run_folder) {
    const auto address = ControlAddress::in(run_folder);
    if (!address) {
      return address.error().errno_value;
    }
    const std::scoped_lock held(under_way().mutex);
    UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made || ::connect(made.get(), address->get(), ControlAddress::size()) != 0) {
      return errno;
    }
    fd_ = KeptFd(std::move(made));
    under_way().connections.push_back(this);
    return 0;
  }
  // Returns -1 in a child that was forked after open(), and if the program has closed it.
  [[nodiscard]] int fd() { return ::getpid() == maker_ ? fd_.get() : -1; }

 private:
  // Of this process. Never destroyed: a thread may still wait when the process ends.
  struct UnderWay {
    UnderWay() {
      ::pthread_atfork([] { under_way().mutex.lock(); }, [] { under_way().mutex.unlock(); },
                       [] {
                         for (Connection* const each : under_way().connections) {
                           each->fd_.reset();
                         }
                         under_way().connections.clear();
                         under_way().mutex.unlock();
                       });
    }
    std::mutex mutex;
    std::vector<Connection*> connections;
  };
  static UnderWay& under_way() {
    static UnderWay& made = *new UnderWay;
    return made;
  }
  static const bool is_ready;  // makes under_way() when the library is loaded, see ProcessLock

  const pid_t maker_ = ::getpid();
  KeptFd fd_;
};

[[maybe_unused]] const bool Connection::is_ready = &under_way() != nullptr;

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

  static Reply without_answer(Kind kind, std::string why) {
    Reply reply;
    reply.kind = kind;
    reply.why = std::move(why);
    return reply;
  }

  static Reply failed(std::string what, int error) {
    return without_answer(Kind::kFailed, system_error(std::move(what), error).value().message);
  }

  [[nodiscard]] Reply no_server() const {
    int error = 0;
    if (has_reader(place_.pipe, error)) {
      return without_answer(
          Kind::kNoServer,
          fmt::format("the server at '{}' answers no control requests: no process listens on "
                      "'{}/{}'",
                      place_.pipe, place_.run_folder, kControlName));
    }
    return without_answer(Kind::kNoServer, fmt::format("no timer server at '{}': {}", place_.pipe,
                                                       why_no_reader(error)));
  }

  [[nodiscard]] Reply server_gone() const {
    return without_answer(Kind::kServerGone,
                          fmt::format("the timer server at '{}' ended before it answered '{}'",
                                      place_.pipe, question_.request));
  }

  [[nodiscard]] Reply no_answer(std::string_view what) const {
    return without_answer(
        Kind::kNoAnswer,
        fmt::format("no answer to '{}' from the server at '{}' in {}: {}; its process is {}",
                    question_.request, place_.pipe, duration_for_reading(Instant::now() - start_),
                    what, is_stopped(place_.run_folder) ? "stopped" : "alive"));
  }

  Reply ask_and_wait() {
    if (place_.run_folder.empty()) {
      return without_answer(
          Kind::kNoServer,
          fmt::format("the server at '{}' answers no control requests: it is a bare pipe, and its "
                      "runtime directory is not known",
                      place_.pipe));
    }
    const std::string packet = wire::format_question(question_);
    if (packet.size() > kMaxControlBytes) {
      return without_answer(Kind::kInvalid,
                            fmt::format("the request has {} bytes: expected at most {}",
                                        packet.size(), kMaxControlBytes));
    }
    client_messages::debug("request '{}' to '{}': waiting {} for answers", question_.request,
                           place_.pipe, duration_text(patience_));
    if (auto unconnected = connect()) {
      return std::move(*unconnected);
    }
    // Without effect if the server has hung up; it may have said why.
    (void)::send(connection_.fd(), packet.data(), packet.size(), MSG_NOSIGNAL);
    return wait_for_answers();
  }

  std::optional<Reply> connect() {
    for (;;) {
      switch (const int error = connection_.open(place_.run_folder)) {
        case 0:
          return std::nullopt;
        case EAGAIN:
          break;
        case ENOENT:
        case ENOTDIR:
        case ECONNREFUSED:
          return no_server();
        default:
          return without_answer(
              Kind::kFailed,
              system_error(
                  fmt::format("cannot connect to '{}/{}'", place_.run_folder, kControlName), error)
                  .value()
                  .message);
      }
      const Duration left = deadline_ - Instant::now();
      if (left <= Duration{}) {
        return no_answer("it accepts no connection");
      }
      wait_for(std::min(left, kBusyPause), while_waiting_);
    }
  }

  Reply wait_for_answers() {
    for (;;) {
      if (auto end = receive()) {
        return std::move(*end);
      }
      std::size_t start = 0;
      for (std::size_t end = 0; !last_ && (end = unread_.find('\n', start)) != unread_.npos;
           start = end + 1) {
        last_ = take(std::string_view(unread_).substr(start, end - start));
      }
      if (last_ && (last_->kind != Kind::kDone || question_.request != "shutdown")) {
        return std::move(*last_);
      }
      unread_.erase(0, start);
    }
  }

  // Waits for more of the answers. Returns the reply if there will be none. Answers that have
  // arrived take precedence over the deadline.
  std::optional<Reply> receive() {
    for (;;) {
      if (while_waiting_) {
        while_waiting_();
      }
      const int fd = connection_.fd();
      if (fd < 0) {
        return without_answer(Kind::kFailed, kIsClosed);
      }
      const Duration left = deadline_ - Instant::now();
      const bool is_over = left <= Duration{};
      pollfd answers{fd, POLLIN, 0};
      const int ready = ::poll(&answers, 1, is_over ? 0 : poll_ms(std::min(left, kLookPeriod)));
      if (ready > 0) {
        char bytes[kAnswerPacketBytes];
        const ssize_t got = retry_eintr([&] { return ::recv(fd, bytes, sizeof bytes, 0); });
        if (got == 0) {
          return last_ ? std::move(*last_) : server_gone();
        }
        if (got > 0) {
          unread_.append(bytes, static_cast<std::size_t>(got));
          return unread_.size() <= kMaxAnswerBytes
                     ? std::nullopt
                     : std::optional(without_answer(
                           Kind::kFailed,
                           fmt::format("an answer of the server at '{}' is longer than {} bytes",
                                       place_.pipe, kMaxAnswerBytes)));
        }
        // The kernel reports a reset once, before the answers that have arrived.
        if (errno != EAGAIN && errno != ECONNRESET) {
          return failed("cannot read the answer", errno);
        }
      } else if (ready < 0 && errno != EINTR) {
        return failed("cannot wait for the answer", errno);
      } else if (is_over) {
        return no_answer(last_           ? "it announced its end, and still runs"
                         : was_answered_ ? "the wait that it granted is over"
                                         : "it did not react");
      }
    }
  }

  // Returns the reply if `line` is the last answer.
  std::optional<Reply> take(std::string_view line) {
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
  const wire::Question& question_;
  const Duration patience_;
  const OnAnswer& on_answer_;
  const WhileWaiting& while_waiting_;
  const Instant start_;
  Instant deadline_;
  Connection connection_;
  std::string unread_;
  std::optional<Reply> last_;  // of a shutdown: the server hangs up when it ends
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

Reply ask(const ServerLocation& place, const wire::Question& question, Duration patience,
          const OnAnswer& on_answer, const WhileWaiting& while_waiting) {
  return Asking(place, question, patience, on_answer, while_waiting).run();
}

}  // namespace filetimer
