// The messages of the library on standard error, which never block. Code that changes standard
// error or the level runs in a child: both belong to the whole process.
// SPDX-License-Identifier: MIT
#include "timer_client/client/messages.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <filetimer/timer_client.hpp>
#include <iterator>
#include <string>

#include "tests/support/variable.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "tests/timer_client/fake_server.hpp"

namespace filetimer {
namespace {

using client_messages::write_if_room;
using testing::Ends;
using testing::make_pipe;  // its ends block, as standard error does

std::string read_all(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(fd, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return text;
}

// Fills the pipe completely. Returns the number of bytes.
std::size_t fill(int fd) {
  REQUIRE(::fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
  std::size_t written = 0;
  for (const std::size_t size : {std::size_t{4096}, std::size_t{1}}) {
    const std::string block(size, 'x');
    for (ssize_t got = 0; (got = ::write(fd, block.data(), size)) > 0;) {
      written += static_cast<std::size_t>(got);
    }
  }
  REQUIRE(::fcntl(fd, F_SETFL, 0) == 0);
  return written;
}

// Returns what `body` writes on standard error in a child, with the variable as given (null:
// unset).
std::string said(const char* level, const std::function<void()>& body) {
  const testing::TempFolder folder;
  const std::string path = folder.path("err");
  const int code = testing::in_child([&] {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    ::dup2(file.get(), STDERR_FILENO);
    level == nullptr ? ::unsetenv(kLogLevelVariable) : ::setenv(kLogLevelVariable, level, 1);
    try {
      body();
    } catch (const std::exception&) {
      return 1;  // the child must not run further tests
    }
    return 0;
  });
  CHECK(code == 0);
  return testing::read_file(path);
}

using Messages = std::vector<std::string>;

// Returns the lines, without "filetimer[PID] ".
Messages messages_in(const std::string& text) {
  CHECK((text.empty() || text.ends_with('\n')));
  Messages messages;
  for (const std::string& line : testing::lines_of(text)) {
    CHECK(line.starts_with("filetimer["));
    messages.push_back(line.substr(line.find("] ") + 2));
  }
  return messages;
}

Messages messages(const char* level, const std::function<void()>& body) {
  return messages_in(said(level, body));
}

}  // namespace

TEST_CASE("a full pipe takes no line and does not block, and a pipe with room takes a whole line") {
  for (const bool can_be_opened_again : {true, false}) {
    const Ends pipe = make_pipe();
    REQUIRE(::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK) == 0);
    const auto write_in_child = [&] {
      CHECK(testing::in_child([&] {
              const rlimit none{3, 3};
              if (!can_be_opened_again) {
                ::setrlimit(RLIMIT_NOFILE, &none);
              }
              write_if_room(pipe.write.get(), "line\n");
              return 0;
            }) == 0);
    };
    const std::size_t bytes = fill(pipe.write.get());
    write_in_child();
    CHECK(read_all(pipe.read.get()) == std::string(bytes, 'x'));
    write_in_child();
    CHECK(read_all(pipe.read.get()) == "line\n");
    // It still blocks its other writers.
    CHECK((::fcntl(pipe.write.get(), F_GETFL) & O_NONBLOCK) == 0);
  }
}

TEST_CASE("a pipe or socket without a reader raises no signal, and a full socket does not block") {
  Ends pipe = make_pipe();
  pipe.read.reset();
  write_if_room(pipe.write.get(), "lost\n");
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd socket(ends[0]);
  UniqueFd other(ends[1]);
  write_if_room(socket.get(), "line\n");
  char bytes[8];
  CHECK(::recv(other.get(), bytes, sizeof bytes, MSG_DONTWAIT) == 5);
  fill(socket.get());
  write_if_room(socket.get(), "lost\n");
  other.reset();
  write_if_room(socket.get(), "lost\n");
  write_if_room(-1, "lost\n");
}

TEST_CASE("a reader that closes a pipe just before a line is written raises no signal") {
  const testing::TempFolder folder;
  testing::Pipe pipe(folder.path("pipe"));
  const UniqueFd fd(::open(pipe.path().c_str(), O_WRONLY | O_CLOEXEC));
  testing::write_to_flapping(pipe, [&] { write_if_room(fd.get(), "line\n"); });
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == 0);
}

TEST_CASE("a file that may not grow and a terminal that stops writers raise no signal") {
  const testing::TempFolder folder;
  const UniqueFd file(::open(folder.path("err").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(::grantpt(master.get()) == 0);
  REQUIRE(::unlockpt(master.get()) == 0);
  CHECK(testing::in_child([&] {
          const rlimit none{0, 0};
          ::setrlimit(RLIMIT_FSIZE, &none);
          write_if_room(file.get(), "lost\n");
          return 0;
        }) == 0);
  CHECK(testing::in_child([&] {
          ::setsid();
          const UniqueFd terminal(::open(::ptsname(master.get()), O_RDWR | O_CLOEXEC));
          termios mode{};
          ::tcgetattr(terminal.get(), &mode);
          mode.c_lflag |= TOSTOP;
          ::tcsetattr(terminal.get(), TCSANOW, &mode);
          return testing::in_child([&] {
            ::setpgid(0, 0);  // in the background
            write_if_room(terminal.get(), "line\n");
            return 0;
          });
        }) == 0);
}

TEST_CASE("a message that cannot be written leaves errno as it was") {
  CHECK(testing::in_child([] {
          Ends pipe = make_pipe();
          pipe.read.reset();
          ::dup2(pipe.write.get(), STDERR_FILENO);
          client_messages::set_level(LogLevel::kDebug);
          errno = EDOM;
          client_messages::debug("{}", 1);
          return errno == EDOM ? 0 : 1;
        }) == 0);
}

TEST_CASE("lines are written at the position that the writers of a file share") {
  const testing::TempFolder folder;
  const std::string path = folder.path("err");
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::write(file.get(), "one\n", 4) == 4);
  write_if_room(file.get(), "two\n");
  REQUIRE(::write(file.get(), "three\n", 6) == 6);
  CHECK(testing::read_file(path) == "one\ntwo\nthree\n");
}

TEST_CASE("the level selects the messages, and without one none is written") {
  const auto speak = [] {
    if (client_messages::take_level_of_environment()) {
      client_messages::warning("{}", 1);
      client_messages::info("{}", 2);
      client_messages::debug("{}", 3);
    }
  };
  for (const char* const none : {static_cast<const char*>(nullptr), "", "error"}) {
    CHECK(said(none, speak).empty());
  }
  CHECK(messages("warning", speak) == Messages{"warning: 1"});
  CHECK(messages("info", speak) == Messages{"warning: 1", "info: 2"});
  CHECK(messages("debug", speak) == Messages{"warning: 1", "info: 2", "debug: 3"});
  CHECK(messages("debug", [&] {
          client_messages::set_level(LogLevel::kWarning);
          speak();
        }) == Messages{"warning: 1"});
}

TEST_CASE("a message of any bytes is one line with the pid of its process") {
  const std::string text = said("debug", [] {
    (void)client_messages::take_level_of_environment();
    client_messages::debug("'{}'", "a\nb\x1b[1m");
    client_messages::debug("{}", std::string(10'000, 'x'));
    testing::in_child([] {
      client_messages::debug("child {}", ::getpid());
      return 0;
    });
  });
  const Messages lines = messages_in(text);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "debug: 'a\\nb\\x1b[1m'");
  const std::size_t first = text.find('\n') + 1;
  CHECK(text.find('\n', first) - first == 4095);
  const std::string child = lines[2].substr(lines[2].rfind(' ') + 1);
  CHECK(text.find("filetimer[" + child + "] debug: child " + child) != text.npos);
}

TEST_CASE("a file that has replaced standard error is not written to") {
  const testing::TempFolder folder;
  const std::string path = folder.path("data");
  const auto take_level = [] { (void)client_messages::take_level_of_environment(); };
  const auto close_error = [] { ::close(STDERR_FILENO); };
  for (const bool is_closed_first : {false, true}) {
    CHECK(said("debug", [&] {
            is_closed_first ? close_error() : take_level();
            is_closed_first ? take_level() : close_error();
            (void)::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
            client_messages::debug("{}", 1);
          }).empty());
    CHECK(testing::read_file(path).empty());
  }
}

TEST_CASE("an unexpected value of an environment variable is ignored with a notice") {
  const testing::FakeServer server;
  const auto check = [&](const std::string& name, const char* value, const char* message) {
    CAPTURE(name);
    const auto connect = [&] {
      ::setenv(name.c_str(), value, 1);
      (void)server.connect();
    };
    CHECK(messages(nullptr, connect) == Messages{"warning: $" + name + message});
    CHECK((name == kLogLevelVariable || said("error", connect).empty()));
  };
  check(kLogLevelVariable, "loud", ": 'loud': expected one of error, warning, info, debug");
  check("FILETIMER", "of", " is 'of': expected on or off; it counts as on");
  check("FILETIMER_MISSING", "never",
        " is 'never': expected ignore, wait or raise; it does not count");
  check("FILETIMER_TIMEOUTS", "/nonexistent",
        ": cannot read the timeouts in '/nonexistent': No such file or directory; the timeouts in "
        "the code count");
  const Messages lines = messages("error", [&] {  // the level of an earlier connect() ends
    (void)server.connect();
    ::setenv(kLogLevelVariable, "loud", 1);
    (void)server.connect();
  });
  CHECK(lines.size() == 1);
  for (const char* const word : {"", "on", "1", "true", "yes"}) {
    CHECK(said(nullptr, [&] {
            ::setenv(kLogLevelVariable, "", 1);
            ::setenv("FILETIMER_MISSING", "", 1);
            ::setenv("FILETIMER_TIMEOUTS", "", 1);
            ::setenv("FILETIMER", word, 1);
            (void)server.connect();
          }).empty());
  }
}

TEST_CASE("a missing server is a notice once in a process, and then a warning") {
  const testing::TempFolder folder;
  const auto connect = [&] {
    (void)TimerClient::connect({.dir = folder.path("run")});
    ::setenv("FILETIMER_DIR", folder.path("run").c_str(), 1);
    (void)TimerClient::connect();
  };
  const std::string text = "warning: no timer server at '" + folder.path("run/requests") +
                           "': there is no such pipe: scopes are watched once one is there";
  CHECK(messages(nullptr, connect) == Messages{text});
  const testing::Variable of_torch("TORCHELASTIC_TIMER_FILE", "/tmp/timer");
  CHECK(messages("warning", connect) == Messages{text, text});  // in a directory that is named
  CHECK(messages(nullptr, connect) == Messages{text});
  CHECK(said("error", connect).empty());
  const auto connect_to_default = [&] {
    ::unsetenv("FILETIMER_DIR");
    ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
    (void)TimerClient::connect();
  };
  CHECK(messages(nullptr, connect_to_default)
            .at(0)
            .ends_with(" ($TORCHELASTIC_TIMER_FILE is for PyTorch's client and does not count)"));
}

TEST_CASE("with the level info a client says whose timeouts count, and that it is switched off") {
  const testing::FakeServer server;
  const std::string path = server.dir() + "/timeouts.toml";
  testing::write_file(path, "forward = 5\nbackward = 7\n");
  CHECK(messages("info", [&] { (void)server.connect({.timeouts = path}); }) ==
        Messages{"info: timeouts of 2 names from '" + path + "'",
                 "info: connected to the timer server in '" + server.dir() + "'"});
  CHECK(messages("info", [&] {
          ::setenv("FILETIMER", "off", 1);
          (void)server.connect({.timeouts = path});
        }) == Messages{"info: $FILETIMER is off: no scope is watched"});
}

TEST_CASE("a server that has ended is reported once, and so is its return") {
  const testing::TempFolder folder;
  const Messages lines = messages("info", [&] {
    // Made in the child: no other process reads the pipe.
    testing::FakeServer server(folder.path());
    server.board().next_wake = kWakeAlways;
    auto client = server.connect();
    const auto open = [&] { (void)client.expires(std::chrono::seconds{100}, "step").release(); };
    open();
    server.pipe().close();
    open();
    open();
    server.board().incarnation = server.board().incarnation + 1;
    server.pipe().open();
    open();
    open();
  });
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with("info: connected"));
  CHECK(
      lines[1].starts_with("warning: no process reads '" + folder.path("requests") + "': scopes"));
  CHECK(lines[2] == "info: a timer server reads '" + folder.path("requests") + "' again");
}

}  // namespace filetimer
