// A worker of the chaos tests. Reads commands from the driver's socket, one a packet, carries each
// out through the client library (or writes a line into the request pipe), notes begin and end of
// it in its history, and answers with the line of the end. A worker without commands is a hung
// worker.
//
//   chaos_worker NAME   $CHAOS_SOCKET: the driver's socket; $CHAOS_HISTORY: the folder of histories
//
// A command is an object with an operation `op` and the operands below, and goes into the history
// as it is. connect [idle_ns]; open key via=page|heartbeat|pipe|torch signal [scope] [timeout_ns]
// [grace_ns] [spare] [leave] [thread_end]; renew key timeout_ns; pause, resume, release
// key; fork child; exec [no_aslr]; exit code; threads count;
// storm count; catch signal; close_fds; fill_stderr. A scope with `leave` is released by
// the handler's request when its signal has come.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filetimer/timer_client.hpp>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "common/clock.hpp"
#include "common/json_fields.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace {

using filetimer::flag_at;
using filetimer::integer_at;
using filetimer::text_at;
using filetimer::TimerClient;
using Command = simdjson::dom::object;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr unsigned kLastResortSeconds = 600;
constexpr milliseconds kStormChild{30};
constexpr int kChanged = 4;  // exit status: the client has changed which signals are blocked
// Fixed, and high, so that a program that closes and opens files does not meet them.
constexpr int kSocket = 1000;
constexpr int kHistory = 1001;
constexpr int kLookMs = 1'000;  // in which a signal is seen that comes just before poll()
volatile std::sig_atomic_t has_caught = 0;  // a signal

void move_to(int from, int to) {
  if (from < 0 || ::dup3(from, to, O_CLOEXEC) != to) {
    std::perror("chaos_worker");
    std::_Exit(3);
  }
  ::close(from);
}

void note_signal(int /*number*/) {
  has_caught = 1;
}

nanoseconds timeout_of(const Command& command) {
  return nanoseconds{integer_at(command, "timeout_ns").value_or(filetimer::kNoDeadline.count())};
}

// Returns false if no server reads the pipe, or it is full.
bool send(const filetimer::wire::Request& request) {
  const std::string pipe = std::string{std::getenv("FILETIMER_DIR")} + "/requests";
  return filetimer::send_request(pipe, request) == filetimer::Sent::kYes;
}

sigset_t blocked_signals() {
  sigset_t mask{};
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return mask;
}

class Worker {
 public:
  explicit Worker(std::string name) : name_(std::move(name)) { join(); }

  [[noreturn]] void run() {
    for (;;) {
      pollfd driver{kSocket, POLLIN, 0};
      const int ready = ::poll(&driver, 1, kLookMs);
      if (has_caught != 0) {
        has_caught = 0;
        end(begin(R"("op":"caught")"), true);
        leave_scopes();
      }
      if (ready > 0) {
        char bytes[4096];
        const ssize_t got = ::recv(kSocket, bytes, sizeof bytes, 0);
        if (got <= 0) {
          ::_exit(0);
        }
        carry_out(std::string(bytes, static_cast<std::size_t>(got)));
      }
    }
  }

 private:
  using Scope = std::variant<filetimer::TimerScope, filetimer::TimerHeartbeat>;

  // Opens the history and the way to the driver, and says its name.
  void join() {
    const std::string path = std::string{std::getenv("CHAOS_HISTORY")} + "/" + name_ + ".history";
    move_to(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), kHistory);
    const int driver = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, std::getenv("CHAOS_SOCKET"), sizeof address.sun_path - 1);
    if (::connect(driver, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ::_exit(3);
    }
    move_to(driver, kSocket);
    ::alarm(kLastResortSeconds);
    answer(name_);
  }

  static void answer(const std::string& line) {
    (void)!::send(kSocket, line.data(), line.size(), MSG_NOSIGNAL);
  }

  void note(std::int64_t number, const std::string& fields) {
    last_ = fmt::format(R"({{"t":{},"who":"{}","n":{},{}}})"
                        "\n",
                        filetimer::Instant::now().ns, name_, number, fields);
    // By calls that the client does not make, so that the sweep can have the client's fail.
    const iovec line{last_.data(), last_.size()};
    (void)!::writev(kHistory, &line, 1);
  }
  // Returns the number of the call, the time at which it begins. So the numbers also rise over an
  // exec.
  std::int64_t begin(const std::string& fields) {
    const std::int64_t number = filetimer::Instant::now().ns;
    note(number, fields);
    return number;
  }
  // `fields` begin with a comma.
  void end(std::int64_t number, bool is_ok, std::string_view fields = "") {
    note(number, fmt::format(R"("end":true,"ok":{}{})", is_ok, fields));
  }

  void carry_out(const std::string& line) {
    simdjson::dom::parser parser;
    Command command;
    if (parser.parse(line).get(command) != simdjson::SUCCESS) {
      ::_exit(2);
    }
    const std::string key = text_at(command, "key");
    const std::int64_t number = begin(line.substr(1, line.size() - 2));  // within the braces
    try {
      const auto [is_ok, fields] = perform(command, key);
      end(number, is_ok, fields);
    } catch (const std::exception& error) {
      end(number, false, fmt::format(R"(,"error":"{}")", error.what()));
    }
    if (const sigset_t now = blocked_signals(); std::memcmp(&now, &blocked_, sizeof now) != 0) {
      ::_exit(kChanged);
    }
    answer(last_);
  }

  std::pair<bool, std::string> perform(const Command& command, const std::string& key) {
    const std::string op = text_at(command, "op");
    if (op == "connect") {
      filetimer::ConnectOptions options;
      options.idle_timeout = nanoseconds{integer_at(command, "idle_ns").value_or(0)};
      client_.emplace(TimerClient::connect(std::move(options)));
    } else if (op == "open") {
      return open(command, key);
    } else if (op == "renew" || op == "pause" || op == "resume") {
      return change(command, key);
    } else if (op == "release") {
      return release(key);
    } else if (op == "fork") {
      const std::string child = text_at(command, "child");
      fork(child);
      return {true, fmt::format(R"(,"child":"{}")", child)};
    } else if (op == "exec") {
      if (flag_at(command, "no_aslr")) {
        ::personality(ADDR_NO_RANDOMIZE);
      }
      ::execl("/proc/self/exe", "chaos_worker", name_.c_str(), nullptr);
      return {false, ""};
    } else if (op == "exit") {
      std::exit(static_cast<int>(integer_at(command, "code").value_or(0)));
    } else if (op == "threads") {
      for (long long i = 0; i < integer_at(command, "count").value_or(0); ++i) {
        std::thread([] { ::pause(); }).detach();
      }
    } else if (op == "storm") {
      storm(integer_at(command, "count").value_or(0));
    } else if (op == "catch") {
      std::signal(static_cast<int>(integer_at(command, "signal").value_or(0)), note_signal);
    } else if (op == "close_fds") {
      ::close_range(3, kSocket - 1, 0);
      ::close_range(kHistory + 1, ~0U, 0);
    } else if (op == "fill_stderr") {
      const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
      ::dup2(full, STDERR_FILENO);
      ::close(full);
    } else {
      return {false, R"(,"error":"unknown operation")"};
    }
    return {true, ""};
  }

  std::pair<bool, std::string> open(const Command& command, const std::string& key) {
    const std::string via = text_at(command, "via");
    const std::string named = text_at(command, "scope");
    const std::string& scope = named.empty() ? key : named;
    const int signal = static_cast<int>(integer_at(command, "signal").value_or(0));
    const auto grace_ns = integer_at(command, "grace_ns");
    if (flag_at(command, "leave")) {
      std::signal(signal, note_signal);
      left_on_signal_.insert(key);
    }
    if (via == "pipe" || via == "torch") {
      lines_[key] = scope;
      filetimer::wire::Request request = filetimer::acquire_request(timeout_of(command), scope);
      request.signal = signal;
      request.x_tid.reset();
      if (via == "torch") {  // whose lines have none of our keys
        request.x_timeout_s.reset();
      }
      if (grace_ns) {
        request.x_grace_s = static_cast<double>(*grace_ns) / 1e9;
      }
      request.x_signal_first = flag_at(command, "spare");
      return {send(request), ""};
    }
    filetimer::ScopeOptions options;
    options.signal = signal;
    options.signal_first = flag_at(command, "spare");
    if (grace_ns) {
      options.grace = nanoseconds{*grace_ns};
    }
    if (via == "heartbeat") {
      scopes_.emplace(key, client_->heartbeat(timeout_of(command), scope, options));
    } else if (flag_at(command, "thread_end")) {
      std::thread([&] {
        scopes_.emplace(key, client_->expires(timeout_of(command), scope, options));
      }).join();
    } else {
      scopes_.emplace(key, client_->expires(timeout_of(command), scope, options));
    }
    const bool is_watched =
        std::visit([](auto& each) { return each.times().has_value(); }, scopes_.at(key));
    return {true, fmt::format(R"(,"watched":{})", is_watched)};
  }

  static bool renew(filetimer::TimerScope& scope, const Command& command) {
    return scope.renew(timeout_of(command));
  }
  static bool renew(filetimer::TimerHeartbeat& heartbeat, const Command& /*command*/) {
    return heartbeat.beat();
  }
  // Also says whether a beat behind the verdict has opened its heartbeat anew.
  std::pair<bool, std::string> change(const Command& command, const std::string& key) {
    const std::string op = text_at(command, "op");
    return std::visit(
        [&](auto& each) -> std::pair<bool, std::string> {
          const bool is_changed = op == "renew"   ? renew(each, command)
                                  : op == "pause" ? each.pause()
                                                  : each.resume();
          return {is_changed, each.times() ? R"(,"watched":true)" : ""};
        },
        scopes_.at(key));
  }

  std::pair<bool, std::string> release(const std::string& key) {
    left_on_signal_.erase(key);
    if (const auto line = lines_.find(key); line != lines_.end()) {
      const bool is_written = send(filetimer::release_request(line->second));
      lines_.erase(line);
      return {is_written, ""};
    }
    const auto result = std::visit([](auto& each) { return each.release(); }, scopes_.at(key));
    scopes_.erase(key);
    return {true,
            result == filetimer::ReleaseResult::kNotOpen
                ? ""
                : fmt::format(R"(,"in_time":{})", result == filetimer::ReleaseResult::kReleased)};
  }

  void leave_scopes() {
    for (const std::string& key : std::set<std::string>{left_on_signal_}) {
      const std::int64_t number = begin(fmt::format(R"("op":"release","key":"{}")", key));
      const auto [is_ok, fields] = release(key);
      end(number, is_ok, fields);
    }
  }

  // Has a child that does nothing but fork, for as long as its children are counted.
  static void storm(long long count) {
    if (::fork() == 0) {
      ::close(kSocket);
      for (std::signal(SIGCHLD, SIG_IGN); count > 0; --count) {
        if (::fork() == 0) {
          std::this_thread::sleep_for(kStormChild);
          ::_exit(0);
        }
        std::this_thread::sleep_for(kStormChild / 10);
      }
      ::_exit(0);
    }
  }

  // The child is a worker with a history and a socket of its own; its parent reaps it never, so
  // that the driver sees how it ended.
  void fork(const std::string& child) {
    if (::fork() != 0) {
      return;
    }
    name_ = child;
    scopes_.clear();
    lines_.clear();
    left_on_signal_.clear();
    join();
    run();
  }

  std::string name_;
  std::string last_;
  const sigset_t blocked_ = blocked_signals();
  std::optional<TimerClient> client_;
  std::map<std::string, Scope> scopes_;
  std::map<std::string, std::string> lines_;  // the names of scopes of the pipe
  std::set<std::string> left_on_signal_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: chaos_worker NAME\n");
    return 2;
  }
  Worker(argv[1]).run();
}
