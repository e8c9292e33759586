// SPDX-License-Identifier: MIT
#include "timer_client/admin/ask.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <new>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/process_lock.hpp"
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {
namespace {

using client_messages::debug;
using std::chrono::milliseconds;

// The longest wait without a call of while_waiting.
constexpr Duration kLookPeriod = milliseconds{250};
// Between attempts to connect while too many clients wait to be accepted.
constexpr Duration kBusyPause = milliseconds{5};
// How many scopes and ranks an error names.
constexpr std::size_t kMaxNamed = 8;
constexpr std::array<std::string_view, 4> kLastKinds{"done", "refused", "timed_out", "invalid"};

int poll_ms(Duration wait) {
  // Rounded up: poll(0) would spin through the last millisecond.
  return static_cast<int>(std::chrono::ceil<milliseconds>(std::max(wait, Duration{})).count());
}

// The connections of requests under way, with the ProcessLock. fork() gives the child a copy of
// each, which would hide from the server that the client exits, so the child closes them. Never
// destroyed: a thread may still wait when the process ends.
std::list<KeptFd*>& under_way() {
  static auto& made = *new std::list<KeptFd*>;
  return made;
}

// When the library is loaded, see ProcessLock.
[[gnu::constructor(101)]] void handle_forks() {
  ProcessLock::instance().call_in_children([]() noexcept {
    for (KeptFd* const each : under_way()) {
      each->reset();
    }
    under_way().clear();
  });
}

std::vector<int> ranks_at(simdjson::dom::object answer, std::string_view key) {
  return mapped(elements_at(answer, key), [](simdjson::dom::element element) {
    return static_cast<int>(value_as<std::int64_t>(element).value_or(-1));
  });
}

std::string ranks_text(const char* what, const std::vector<int>& ranks) {
  const auto words = mapped(ranks, [](int rank) { return std::to_string(rank); });
  return ranks.empty() ? "" : fmt::format("; {}: {}", what, listed(words, kMaxNamed));
}

// Returns the ranks that have joined a rendezvous, with their pids, in their order.
std::vector<RendezvousResult::Member> members_in(simdjson::dom::object answer) {
  auto members = mapped(objects_at(answer, "joined"), [](simdjson::dom::object each) {
    return RendezvousResult::Member{static_cast<int>(integer_at(each, "rank").value_or(-1)),
                                    static_cast<pid_t>(count_at(each, "pid"))};
  });
  std::ranges::sort(members, {}, &RendezvousResult::Member::rank);
  return members;
}

RendezvousTimeoutError rendezvous_timeout(const std::string& name, const std::string& reason,
                                          simdjson::dom::object answer) {
  const std::vector<int> missing = ranks_at(answer, "missing");
  const std::vector<int> left = ranks_at(answer, "left");
  RendezvousTimeoutError error(fmt::format("rendezvous '{}': {}{}{}", printable(name), reason,
                                           ranks_text("missing", missing),
                                           ranks_text("had joined and left", left)));
  error.name = name;
  error.joined = mapped(members_in(answer), &RendezvousResult::Member::rank);
  error.missing = missing;
  error.left = left;
  return error;
}

ServerBusy busy(const std::string& kind, const std::string& reason, const Answer& answer) {
  const std::string what = waited_for(answer.fields);
  ServerBusy error(what.empty() ? reason : reason + ": " + what);
  error.reason = reason;
  error.timed_out = kind == "timed_out";
  error.open_scope_count = static_cast<std::size_t>(count_at(answer.fields, "open_scope_count"));
  error.json = answer.text;
  return error;
}

class Request : NotCopied {
 public:
  Request(const wire::Question& question, const Asking& how) : question_(question), how_(how) {
    // Now, because a thread may still wait at the end of the process, after the objects that
    // simdjson makes a parser with were destroyed.
    if (parser_->allocate(kAnswerPacketBytes) != simdjson::SUCCESS) {
      throw std::bad_alloc();
    }
  }
  ~Request() {
    const auto held = ProcessLock::instance().lock();
    std::erase(under_way(), &connection_);
    if (const int fd = own_fd(); fd >= 0) {
      ::shutdown(fd, SHUT_RDWR);  // also the copy of a child of a bare clone()
    }
    connection_.reset();
  }

  Answer ask() {
    if (how_.place.run_folder.empty()) {
      throw no_server();
    }
    const std::string packet = wire::format_question(question_);
    if (packet.size() > kMaxControlBytes) {
      throw InvalidArgument(fmt::format("the request has {} bytes: expected at most {}",
                                        packet.size(), kMaxControlBytes));
    }
    debug("request '{}' to '{}': waiting {} for answers", question_.request, how_.place.pipe,
          duration_text(how_.patience));
    connect();
    why_no_answer_ = "it did not react";
    // Without effect if the server has hung up; it may have said why.
    (void)::send(own_fd(), packet.data(), packet.size(), MSG_NOSIGNAL);
    Answer answer = last_answer();
    answer.waited = Instant::now() - start_;
    return answer;
  }

 private:
  // Returns -1 in a child that was forked meanwhile, and if the program has closed it.
  int own_fd() { return ::getpid() == maker_ ? connection_.get() : -1; }

  static TimerError failed(std::string what, int error) {
    return TimerError(system_error(std::move(what), error).value().message);
  }

  [[nodiscard]] ServerUnavailable no_server() const {
    if (const std::string why = why_no_reader(how_.place.pipe); !why.empty()) {
      return ServerUnavailable(fmt::format("no timer server at '{}': {}", how_.place.pipe, why));
    }
    return ServerUnavailable(fmt::format(
        "the server at '{}' answers no control requests: {}", how_.place.pipe,
        how_.place.run_folder.empty()
            ? "it is a bare pipe, and its runtime directory is not known"
            : fmt::format("no process listens on '{}/{}'", how_.place.run_folder, kControlName)));
  }

  [[nodiscard]] RpcTimeoutError no_answer() const {
    const Duration waited = Instant::now() - start_;
    const pid_t server = look_for_server(how_.place.run_folder).pid;
    const auto stat = read_stat(fmt::format("/proc/{}", server));
    const bool is_stopped = server > 0 && stat && (stat->state == 'T' || stat->state == 't');
    RpcTimeoutError error(
        fmt::format("no answer to '{}' from the server at '{}' in {}: {}; its process is {}",
                    question_.request, how_.place.pipe, duration_for_reading(waited),
                    why_no_answer_, is_stopped ? "stopped" : "alive"));
    error.request = question_.request;
    error.waited = waited;
    return error;
  }

  void connect() {
    while (const int error = open_connection()) {
      if (error == ENOENT || error == ENOTDIR || error == ECONNREFUSED) {
        throw no_server();
      }
      if (error != EAGAIN) {
        throw failed(fmt::format("cannot connect to '{}/{}'", how_.place.run_folder, kControlName),
                     error);
      }
      const Duration left = deadline_ - Instant::now();
      if (left <= Duration{}) {
        throw no_answer();
      }
      ::poll(nullptr, 0, poll_ms(std::min(left, kBusyPause)));
      if (how_.while_waiting) {
        how_.while_waiting();
      }
    }
  }

  // Returns 0, or the errno that says why there is no connection.
  int open_connection() {
    const auto address = ControlAddress::in(how_.place.run_folder);
    if (!address) {
      return address.error().errno_value;
    }
    const auto held = ProcessLock::instance().lock();
    // What a process without standard descriptors prints must not go to the server.
    UniqueFd made = above_standard_descriptors(
        UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    if (!made || ::connect(made.get(), address->get(), ControlAddress::size()) != 0) {
      return errno;
    }
    connection_ = KeptFd(std::move(made));
    under_way().push_back(&connection_);
    return 0;
  }

  Answer last_answer() {
    std::optional<Answer> last;
    std::string unread;
    for (;;) {
      const std::string part = receive();
      if (part.empty() && !last) {
        throw ServerUnavailable(
            fmt::format("the timer server at '{}' ended before it answered '{}'", how_.place.pipe,
                        question_.request));
      }
      unread += part;
      if (unread.size() > kMaxAnswerBytes) {
        throw TimerError(fmt::format("an answer of the server at '{}' is longer than {} bytes",
                                     how_.place.pipe, kMaxAnswerBytes));
      }
      for (std::size_t end = 0; !last && (end = unread.find('\n')) != unread.npos;) {
        last = take(unread.substr(0, end));
        unread.erase(0, end + 1);
      }
      // After a shutdown the server hangs up when it has ended.
      if (last && (part.empty() || question_.request != "shutdown")) {
        return *last;
      }
    }
  }

  // Returns the next packet; empty when the server has hung up. Answers that have arrived take
  // precedence over the deadline.
  std::string receive() {
    for (;;) {
      if (how_.while_waiting) {
        how_.while_waiting();
      }
      const int fd = own_fd();
      if (fd < 0) {
        throw TimerError(
            "this process has no connection for the answer any more: it was forked meanwhile, or "
            "closed its files");
      }
      const Duration left = deadline_ - Instant::now();
      pollfd answers{fd, POLLIN, 0};
      const int ready = ::poll(&answers, 1, poll_ms(std::min(left, kLookPeriod)));
      if (ready < 0 && errno != EINTR) {
        throw failed("cannot wait for the answer", errno);
      }
      if (ready == 0 && left <= Duration{}) {
        throw no_answer();
      }
      if (ready <= 0) {
        continue;
      }
      char bytes[kAnswerPacketBytes];
      const ssize_t got = retry_eintr([&] { return ::recv(fd, bytes, sizeof bytes, 0); });
      if (got >= 0) {
        return {bytes, static_cast<std::size_t>(got)};
      }
      // The kernel reports a reset once, before the answers that have arrived.
      if (errno != EAGAIN && errno != ECONNRESET) {
        throw failed("cannot read the answer", errno);
      }
    }
  }

  // Returns the answer if it is the last one, and throws the error that it is if it is not "done".
  // One that is unknown comes from another version of the server, and is not the last one.
  std::optional<Answer> take(std::string line) {
    Answer answer;
    if (parser_->parse(line).get_object().get(answer.fields) != simdjson::SUCCESS) {
      throw TimerError(
          fmt::format("the server at '{}' answered '{}': expected a JSON object", how_.place.pipe,
                      printable(std::string_view(line).substr(0, kMaxRejectedBytesShown))));
    }
    const std::string kind = text_at(answer.fields, "answer");
    std::string reason = text_at(answer.fields, "reason");
    std::string detail = reason;
    why_no_answer_ = "the wait that it granted is over";
    if (kind == "granted") {
      const auto wait_s = number_at(answer.fields, "wait_s");
      const Duration granted = wait_s ? duration_from_seconds(*wait_s) : kForever;
      // Two additions: either duration may be kForever, and each sum saturates.
      deadline_ = Instant::now() + granted + how_.patience;
      detail = duration_text(granted);
    }
    debug("request '{}': {} after {}{}{}", question_.request, kind,
          duration_for_reading(Instant::now() - start_), detail.empty() ? "" : ": ", detail);
    if (std::ranges::find(kLastKinds, kind) == kLastKinds.end()) {
      if (how_.on_answer) {
        how_.on_answer(answer.fields);
      }
      return std::nullopt;
    }
    why_no_answer_ = "it announced its end, and still runs";
    answer.text = std::move(line);
    answer.parser = parser_;
    if (kind == "done") {
      return answer;
    }
    if (reason.empty()) {
      reason = fmt::format("the server answered '{}' and gave no reason", kind);
    }
    if (kind == "invalid") {
      throw InvalidArgument(reason);
    }
    if (kind == "timed_out" && question_.request == "rendezvous") {
      throw rendezvous_timeout(question_.name, reason, answer.fields);
    }
    throw busy(kind, reason, answer);
  }

  const wire::Question& question_;
  const Asking& how_;
  const pid_t maker_ = ::getpid();
  const Instant start_ = Instant::now();
  Instant deadline_ = start_ + how_.patience;
  KeptFd connection_;
  const char* why_no_answer_ = "it accepts no connection";
  std::shared_ptr<simdjson::dom::parser> parser_ = std::make_shared<simdjson::dom::parser>();
};

// --- the RPC timeout of AdminClient ---

thread_local RpcTimeout t_scoped_timeout;

RpcTimeout checked(RpcTimeout timeout) {
  if (timeout) {
    check_timeout("the RPC timeout", timeout->value());
  }
  return timeout;
}

// Returns the answer. The RPC timeout is that of the call, else that of the thread, else `how`'s.
Answer ask_within(RpcTimeout timeout, const wire::Question& asked, Asking how) {
  if (const RpcTimeout set = checked(timeout) ? timeout : t_scoped_timeout) {
    how.patience = set->value();
  }
  return ask(asked, how);
}

}  // namespace

Answer ask(const wire::Question& question, const Asking& how) {
  wire::Question sent = question;
  if (sent.wait_s == 0) {
    sent.wait_s = seconds_or_infinity(how.patience);
  }
  try {
    return Request(sent, how).ask();
  } catch (const TimerError& error) {
    debug("request '{}': {}", sent.request, error.what());
    throw;
  }
}

std::string waited_for(simdjson::dom::object answer) {
  const auto scopes = mapped(objects_at(answer, "open_scopes"), [](simdjson::dom::object each) {
    const auto rank = integer_at(each, "rank");
    return fmt::format("'{}' of pid {}{}", printable(text_at(each, "scope")), count_at(each, "pid"),
                       rank ? fmt::format(" (rank {})", *rank) : "");
  });
  const auto workers = mapped(objects_at(answer, "workers"), [](simdjson::dom::object each) {
    return fmt::format("{} (pid {})", printable(text_at(each, "comm")), count_at(each, "pid"));
  });
  const auto count = static_cast<std::size_t>(count_at(answer, "open_scope_count"));
  return scopes.empty() ? listed(workers, kMaxNamed) : listed(scopes, kMaxNamed, ", ", count);
}

// --- AdminClient ---

ScopedRpcTimeout::ScopedRpcTimeout(RpcTimeout timeout)
    : outer_(std::exchange(t_scoped_timeout, checked(timeout))) {}

ScopedRpcTimeout::~ScopedRpcTimeout() {
  t_scoped_timeout = outer_;
}

AdminClient::AdminClient(const AdminOptions& options) {
  if (const Status level = client_messages::take_level_of_environment(); !level) {
    client_messages::notice("{}", level.error().message);
  }
  const RpcTimeout given = checked(options.rpc_timeout);
  const auto patience = given ? Result<Duration>(given->value()) : rpc_timeout_of_environment();
  if (!patience) {
    throw InvalidArgument(patience.error().message);
  }
  how_ = std::make_shared<const Asking>(Asking{.place = locate_server(options.dir),
                                               .patience = *patience,
                                               .while_waiting = options.while_waiting});
}

void AdminClient::ping(RpcTimeout timeout) const {
  (void)ask_within(timeout, {.request = "ping"}, *how_);
}

ServerStatus AdminClient::status(RpcTimeout timeout) const {
  const Answer answer = ask_within(timeout, {.request = "status"}, *how_);
  return {.server_pid = static_cast<pid_t>(count_at(answer.fields, "server_pid")),
          .server_version = text_at(answer.fields, "server_version"),
          .announcement = text_at(answer.fields, "announcement"),
          .workers = count_at(answer.fields, "workers"),
          .open_scopes = count_at(answer.fields, "open_scopes"),
          .askers = count_at(answer.fields, "askers"),
          .json = answer.text};
}

std::int64_t AdminClient::drain(bool on, RpcTimeout timeout) const {
  const Answer answer = ask_within(timeout, {.request = "drain", .off = !on}, *how_);
  return count_at(answer.fields, "open_scope_count");
}

std::int64_t AdminClient::shutdown(ShutdownMode mode, Timeout wait, RpcTimeout timeout) const {
  check_timeout("the timeout of shutdown()", wait.value());
  const auto* const words = std::ranges::find(kShutdownModes, mode, &ShutdownWords::mode);
  if (words == std::end(kShutdownModes)) {
    throw InvalidArgument(
        fmt::format("shutdown mode {}: expected one of ShutdownMode", static_cast<int>(mode)));
  }
  const Answer answer = ask_within(timeout,
                                   {.request = "shutdown",
                                    .wait_s = seconds_or_infinity(wait.value()),
                                    .graceful = std::string(words->graceful),
                                    .force = words->force},
                                   *how_);
  return count_at(answer.fields, "open_scope_count");
}

RendezvousResult AdminClient::rendezvous(const RendezvousOptions& options,
                                         RpcTimeout timeout) const {
  check_timeout("the timeout of rendezvous()", options.timeout.value());
  const Answer answer = ask_within(timeout,
                                   {.request = "rendezvous",
                                    .wait_s = seconds_or_infinity(options.timeout.value()),
                                    .name = options.name,
                                    .rank = options.rank,
                                    .world = options.world},
                                   *how_);
  return {count_at(answer.fields, "round"), members_in(answer.fields)};
}

}  // namespace filetimer
