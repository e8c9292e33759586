// Control requests: what the client writes, and how long it waits.
// SPDX-License-Identifier: MIT
#include "timer_client/admin/ask.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>

#include "common/clock.hpp"
#include "common/limits.hpp"
#include "common/mapped_file.hpp"
#include "common/run_folder.hpp"
#include "tests/support/children.hpp"
#include "tests/timer_client/answering_server.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::AnsweringServer;
using Answers = testing::AnsweringServer::Answers;

namespace {

constexpr std::chrono::milliseconds kShort{30};

ServerLocation place_in(const std::string& dir) {
  return {.pipe = dir + "/requests", .run_folder = dir};
}

wire::Question question(std::string_view request, double wait_s = 60) {
  wire::Question asked;
  asked.request = request;
  asked.wait_s = wait_s;
  return asked;
}

// What ask() returns or throws.
struct Outcome {
  std::string kind;  // "done", "busy", "no answer", "no server" or "failed"
  std::string why;
  std::string text;
};

Outcome outcome_of(const wire::Question& asked, const Asking& how) {
  try {
    const Answer answer = ask(asked, how);
    CHECK(answer.waited > Duration{});
    return {"done", "", answer.text};
  } catch (const RpcTimeoutError& error) {
    CHECK(error.request == asked.request);
    CHECK(error.waited > Duration{});
    return {"no answer", error.what(), ""};
  } catch (const ServerUnavailable& error) {
    return {"no server", error.what(), ""};
  } catch (const ServerBusy& error) {
    return {"busy", error.what(), ""};
  } catch (const TimerError& error) {
    return {"failed", error.what(), ""};
  }
}

Outcome ask_in(const std::string& dir, std::string_view request,
               Duration patience = testing::kBound,
               const std::function<void()>& while_waiting = {}) {
  return outcome_of(question(request),
                    {.place = place_in(dir), .patience = patience, .while_waiting = while_waiting});
}

void check(const Outcome& got, std::string_view kind, std::string_view why) {
  CAPTURE(got.why);
  CHECK(got.kind == kind);
  CHECK(testing::contains(got.why, why));
}

// A server in its own process, which holds the lock of the status page and accepts no connection.
struct DeafServer : Child {
  explicit DeafServer(const std::string& dir)
      : Child([dir] {
          static const UniqueFd control = testing::listen_in(dir, 8);
          testing::write_file(dir + "/server", "");
          static const auto lock = FileLock::take(dir + "/server");
          if (!lock) {
            ::_exit(1);
          }
        }) {}
  void stop() {
    REQUIRE(::kill(pid(), SIGSTOP) == 0);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid()), &info, WSTOPPED | WNOWAIT) == 0);
  }
};

}  // namespace

TEST_CASE("a request is one packet, and its answer arrives on the same connection") {
  const testing::TempFolder folder;
  std::string dir = folder.path();
  SUBCASE("also through a path that is too long for an address") {
    dir = folder.path(std::string(200, 'd'));
    std::filesystem::create_directory(dir);
  }
  AnsweringServer server(R"({"answer": "done", "server_pid": 4711})", dir);
  const Outcome got = ask_in(dir, "ping");
  CHECK(got.kind == "done");
  CHECK(got.text == R"({"answer": "done", "server_pid": 4711})");
  CHECK(server.asked() == std::vector{question("ping")});
}

TEST_CASE("a wait that the server grants moves the deadline") {
  testing::until_in_time(kShort, [](Duration patience) {
    enum class First { kNothing, kHeard, kTimedOut };
    std::atomic<First> first = First::kNothing;
    const auto is_first = [&](First event) {
      First nothing = First::kNothing;
      return first.compare_exchange_strong(nothing, event);
    };
    AnsweringServer server([&](const wire::Question&, Answers& answers) {
      answers.say(R"({"answer": "granted", "wait_s": 60})");
      ::poll(nullptr, 0, 4 * static_cast<int>(patience / 1ms));
      if (!is_first(First::kTimedOut)) {
        answers.say(R"({"answer": "done"})");
      }
    });
    const Instant asked = Instant::now();
    const Outcome got =
        outcome_of(question("rendezvous"), {.place = place_in(server.dir()),
                                            .patience = patience,
                                            .on_answer = [&](auto) { is_first(First::kHeard); }});
    if (first == First::kHeard) {
      CHECK(got.kind == "done");
      CHECK(Instant::now() - asked > patience);
    }
    return first == First::kHeard;
  });
}

TEST_CASE("intermediate answers are passed to the caller, and unknown ones do not end the wait") {
  AnsweringServer server([&](const wire::Question&, Answers& answers) {
    answers.say_raw(
        "{\"answer\": \"granted\", \"wait_s\": 60}\n{\"answer\": \"waiting\"}\n{\"answer\": \"n");
    answers.say_raw("ew\"}\n{\"answer\": \"refused\", \"reason\": \"it is busy\"}\n");
  });
  std::vector<std::string> seen;
  const auto note = [&](simdjson::dom::object answer) { seen.push_back(simdjson::minify(answer)); };
  const Outcome got =
      outcome_of(question("shutdown"),
                 {.place = place_in(server.dir()), .patience = testing::kBound, .on_answer = note});
  CHECK(got.kind == "busy");
  CHECK(got.why == "it is busy");
  CHECK(seen == std::vector<std::string>{R"({"answer":"granted","wait_s":60})",
                                         R"({"answer":"waiting"})", R"({"answer":"new"})"});
}

TEST_CASE("an answer may be longer than a packet") {
  const std::string line =
      R"({"answer": "done", "log": ")" + std::string(std::size_t{300'000}, 'x') + R"("})";
  CHECK(ask_in(AnsweringServer(line).dir(), "status").text == line);
}

TEST_CASE("an answer that is no JSON object, or endless, is a failure") {
  std::string text;
  std::string why = "' answered '[1]': expected a JSON object";
  SUBCASE("no JSON") {
    text = std::string(kMaxRejectedBytesShown + 1, '?') + "\n";
    why = "' answered '" + std::string(kMaxRejectedBytesShown, '?') + "': expected a JSON object";
  }
  SUBCASE("no object") {
    text = "[1]\n";
  }
  SUBCASE("endless") {
    text = std::string(kMaxAnswerBytes + 1, ' ');
    why = "/requests' is longer than 4194304 bytes";
  }
  AnsweringServer server([&](const wire::Question&, Answers& answers) {
    answers.say_raw(text);
    answers.wait_until_hung_up();
  });
  check(ask_in(server.dir(), "status"), "failed", why);
}

TEST_CASE("a child that is forked during a request leaves the answer to its parent") {
  std::atomic<bool> may_answer = false;
  AnsweringServer server([&](const wire::Question&, Answers& answers) {
    may_answer.wait(false);
    answers.say(R"({"answer": "done"})");
  });
  const pid_t parent = ::getpid();
  pid_t child = -1;
  int child_status = -1;
  const auto fork_once = [&] {
    if (child == -1 && (child = ::fork()) > 0) {
      child_status = testing::exit_code_of(child);
      may_answer = true;
      may_answer.notify_all();
    }
  };
  const Outcome got = ask_in(server.dir(), "ping", testing::kBound, fork_once);
  if (::getpid() != parent) {
    ::_exit(got.kind == "failed" && testing::contains(got.why, "was forked") ? 0 : 1);
  }
  CHECK(child_status == 0);
  CHECK(got.kind == "done");
}

TEST_CASE("a server that ends without an answer is noticed before the timeout") {
  constexpr const char* kEnded = "ended before it answered 'status'";
  SUBCASE("when it has the request") {
    AnsweringServer server([](const wire::Question&, Answers&) {});
    CHECK(testing::contains(ask_in(server.dir(), "status", kForever).why, kEnded));
  }
  SUBCASE("before it accepts the connection") {
    const testing::TempFolder folder;
    DeafServer server(folder.path());
    check(ask_in(folder.path(), "status", kForever, [&] { server.end(); }), "no server", kEnded);
  }
}

TEST_CASE("a stopped server is distinguished from a silent one") {
  const testing::TempFolder folder;
  DeafServer server(folder.path());
  CHECK(testing::contains(ask_in(folder.path(), "status", kShort).why,
                          ": it did not react; its process is alive"));
  server.stop();
  check(ask_in(folder.path(), "status", kShort), "no answer", "its process is stopped");
}

TEST_CASE("a request waits while too many clients wait to be accepted") {
  const testing::TempFolder folder;
  const UniqueFd control = testing::listen_in(folder.path(), 0);
  const auto address = ControlAddress::in(folder.path());
  const UniqueFd other(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(other.get(), address->get(), ControlAddress::size()) == 0);
  SUBCASE("in vain") {
    check(ask_in(folder.path(), "ping", kShort), "no answer", "it accepts no connection");
  }
  SUBCASE("until there is room") {
    std::vector<UniqueFd> accepted;
    const auto accept_and_answer = [&] {
      accepted.emplace_back(::accept4(control.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (accepted.size() == 2) {
        REQUIRE(::send(accepted.back().get(), "{\"answer\":\"done\"}\n", 18, 0) == 18);
      }
    };
    CHECK(ask_in(folder.path(), "ping", testing::kBound, accept_and_answer).kind == "done");
    CHECK(accepted.size() == 2);
  }
}

TEST_CASE("a shutdown returns when the server has ended") {
  SUBCASE("and not before") {
    std::atomic<bool> ended = false;
    AnsweringServer server([&](const wire::Question&, Answers& answers) {
      answers.say(R"({"answer": "done", "open_scope_count": 0})");
      ::poll(nullptr, 0, static_cast<int>(kShort / 1ms));
      ended = true;
    });
    CHECK(ask_in(server.dir(), "shutdown").kind == "done");
    CHECK(ended);
  }
  SUBCASE("which must happen within the timeout") {
    testing::until_in_time(kShort, [](Duration patience) {
      AnsweringServer server([&](const wire::Question&, Answers& answers) {
        answers.say(R"({"answer": "done", "open_scope_count": 0})");
        answers.wait_until_hung_up();
      });
      const Outcome got = ask_in(server.dir(), "shutdown", patience);
      CHECK(got.kind == "no answer");
      return testing::contains(got.why, "it announced its end, and still runs");
    });
  }
}

TEST_CASE("a request without a server fails with the reason") {
  const testing::TempFolder folder;
  SUBCASE("a server without a socket") {
    testing::Pipe pipe(folder.path("requests"));
    check(ask_in(folder.path(), "ping"), "no server",
          "answers no control requests: no process listens on '" + folder.path("control") + "'");
    CHECK(pipe.is_silent());
  }
  SUBCASE("a pipe whose folder is not known") {
    testing::Pipe pipe(folder.path("requests"));
    const Outcome got = outcome_of(
        question("ping"), {.place = {.pipe = pipe.path(), .run_folder = {}}, .patience = kForever});
    check(got, "no server", "answers no control requests: it is a bare pipe");
    CHECK(pipe.is_silent());
  }
  SUBCASE("a socket that a killed server has left, and a file in place of the folder") {
    (void)testing::listen_in(folder.path(), 1);
    CHECK(ask_in(folder.path(), "ping").kind == "no server");
    folder.write("file", "");
    CHECK(ask_in(folder.path("file"), "ping").kind == "no server");
  }
  SUBCASE("a socket that cannot be found") {
    std::filesystem::create_symlink("control", folder.path("control"));
    check(ask_in(folder.path(), "ping"), "failed",
          "cannot connect to '" + folder.path("control") + "': ");
  }
}
