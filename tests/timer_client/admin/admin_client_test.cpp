// The public client for control requests: results, errors, and which timeout applies.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cmath>
#include <filetimer/admin.hpp>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "tests/support/children.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/answering_server.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::AnsweringServer;
using testing::message_of;
using testing::Variable;
using Answers = testing::AnsweringServer::Answers;

namespace {

constexpr auto kShortTimeout = 20ms;
const RendezvousOptions kTwoOfFour{.rank = 2, .world = 4, .timeout = 30s};

AdminClient client_of(const AnsweringServer& server, RpcTimeout timeout = testing::kBound) {
  return AdminClient({.dir = server.dir(), .rpc_timeout = timeout});
}

// Returns the timeout of a call in seconds: a ping sends it to the server as its wait.
double sent_timeout(const AnsweringServer& server, RpcTimeout timeout) {
  client_of(server, timeout).ping();
  return server.asked().back().wait_s;
}

// Returns what a call throws: its type and fields.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const ServerBusy& error) {
    return fmt::format("busy: {}; {}; timed out {}, {}; {}", error.what(), error.reason,
                       error.timed_out, error.open_scope_count, error.json);
  } catch (const RendezvousTimeoutError& error) {
    return fmt::format("late: {}: {}; {} {} {}", error.what(), error.name, error.joined,
                       error.missing, error.left);
  } catch (const RpcTimeoutError& error) {
    return fmt::format("no answer: {}", error.request);
  } catch (const ServerUnavailable& error) {
    return std::string("no server");
  } catch (const InvalidArgument& error) {
    return fmt::format("invalid: {}", error.what());
  }
  return "";
}

}  // namespace

TEST_CASE("status returns the server's fields and its whole answer, and may lack some") {
  std::string line =
      R"({"answer":"done","server_pid":4711,"server_version":"0.3.0","uptime_s":12.5,)"
      R"("announcement":"draining","workers":3,"open_scopes":5,"askers":2,"may":{"signal":true}})";
  AnsweringServer server([&](const auto&, Answers& answers) { answers.say(line); });
  const ServerStatus status = client_of(server).status();
  CHECK(server.asked()[0].request == "status");
  CHECK(fmt::format("{} {} {}", status.server_pid, status.server_version, status.announcement) ==
        "4711 0.3.0 draining");
  CHECK(std::vector{status.workers, status.open_scopes, status.askers} ==
        std::vector<std::int64_t>{3, 5, 2});
  CHECK(status.json == line);
  line = R"({"answer":"done","server_pid":1,"workers":"many"})";
  CHECK(client_of(server).status().server_pid == 1);
  CHECK(client_of(server).status().workers == 0);
}

TEST_CASE("a drain and a rendezvous return what the server answers") {
  AnsweringServer server([](const wire::Question& asked, Answers& answers) {
    if (asked.request == "rendezvous") {
      answers.say(R"({"answer":"granted","wait_s":30})");
    }
    answers.say(asked.request == "rendezvous"
                    ? R"({"answer":"done","round":7,"joined":[{"rank":1,"pid":22},)"
                      R"({"pid":33},{"rank":0,"pid":11}]})"
                : asked.off ? R"({"answer":"done","draining":false,"open_scope_count":0})"
                            : R"({"answer":"done","draining":true,"open_scope_count":2})");
  });
  const AdminClient client = client_of(server);
  CHECK(client.drain() == 2);
  CHECK(client.drain(false) == 0);
  CHECK(server.asked().back().off);
  CHECK(client.shutdown(ShutdownMode::kWorkersOrNow, 7s) == 2);
  CHECK(server.asked().back() ==
        wire::Question{.request = "shutdown", .wait_s = 7, .graceful = "workers", .force = true});
  const RendezvousResult met =
      client.rendezvous({.rank = 1, .world = 2, .timeout = 30s, .name = "epoch"});
  CHECK(met.round == 7);
  REQUIRE(met.joined.size() == 3);
  CHECK(met.joined[0].rank == -1);  // the server has named none
  CHECK(met.joined[0].pid == 33);
  CHECK(met.joined[1].rank == 0);
  CHECK(met.joined[1].pid == 11);
  CHECK(met.joined[2].pid == 22);
  CHECK(server.asked().back() ==
        wire::Question{
            .request = "rendezvous", .wait_s = 30, .name = "epoch", .rank = 1, .world = 2});
}

TEST_CASE("each answer that is no success is an error with all that the answer says") {
  const std::string busy =
      R"("reason":"2 scopes are open","open_scope_count":2,"open_scopes":[)"
      R"({"pid":12,"rank":3,"scope":"step","elapsed_s":1.5,"remaining_s":8.5},)"
      R"({"pid":13,"scope":"a\nb","elapsed_s":2}]})";
  for (const bool is_late : {false, true}) {
    const std::string answer =
        fmt::format(R"({{"answer":"{}",)", is_late ? "timed_out" : "refused") + busy;
    AnsweringServer server(answer);
    CHECK(thrown_by([&] { client_of(server).shutdown(); }) ==
          "busy: 2 scopes are open: 'step' of pid 12 (rank 3), 'a\\nb' of pid 13; 2 scopes are "
          "open; " +
              fmt::format("timed out {}, 2; {}", is_late, answer));
  }
  AnsweringServer refusing(R"({"answer":"invalid","reason":"rank 2 is there"})");
  CHECK(thrown_by([&] { client_of(refusing).shutdown(); }) == "invalid: rank 2 is there");
  AnsweringServer ending([](const auto&, Answers&) {});
  CHECK(thrown_by([&] { client_of(ending).shutdown(); }) == "no server");
  const testing::TempFolder folder;
  CHECK(thrown_by([&] { AdminClient({.dir = folder.path()}).shutdown(); }) == "no server");
  AnsweringServer server([](const wire::Question& asked, Answers& answers) {
    if (asked.request == "drain") {
      answers.wait_until_hung_up();
    }
    answers.say(R"({"answer":"timed_out","reason":"2 of 4 ranks came in 30s",)"
                R"("joined":[{"rank":2,"pid":9},{"rank":0,"pid":8}],"missing":[1,3],"left":[3]})");
  });
  CHECK(thrown_by([&] { client_of(server).rendezvous(kTwoOfFour); }) ==
        "late: rendezvous 'default': 2 of 4 ranks came in 30s; missing: 1, 3; had joined and left: "
        "3: default; [0, 2] [1, 3] [3]");
  CHECK(thrown_by([&] { client_of(server, kShortTimeout).drain(); }) == "no answer: drain");
}

TEST_CASE("an error names eight ranks or scopes, and counts the others") {
  std::string line;
  AnsweringServer server([&](const auto&, Answers& answers) { answers.say(line); });
  line = R"({"answer":"timed_out","reason":"late","missing":[null,1,2,3,4,5,6,7],)"
         R"("left":[0,1,2,3,4,5,6,7,8]})";
  RendezvousOptions options = kTwoOfFour;
  options.name = "a\nb";
  CHECK(thrown_by([&] { client_of(server).rendezvous(options); })
            .starts_with("late: rendezvous 'a\\nb': late; missing: -1, 1, 2, 3, 4, 5, 6, 7; had "
                         "joined and left: 0, 1, 2, 3, 4, 5, 6, 7 and 1 more: a\nb;"));
  line = R"({"answer":"refused","reason":"busy","open_scope_count":70,"open_scopes":[)"
         R"({"pid":1,"scope":"a"},{"pid":2,"scope":"b"}]})";
  CHECK(thrown_by([&] {
          client_of(server).shutdown();
        }).starts_with("busy: busy: 'a' of pid 1, 'b' of pid 2 and 68 more; busy;"));
  line = R"({"answer":"refused","reason":"busy","open_scope_count":70,)"
         R"("workers":[{"pid":9,"comm":"a\nb"}]})";
  CHECK(thrown_by([&] { client_of(server).shutdown(); }) ==
        "busy: busy: a\\nb (pid 9); busy; timed out false, 70; " + line);
}

TEST_CASE("the timeout of a client precedes that of the environment") {
  AnsweringServer server(R"({"answer":"done"})");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Seconds = std::chrono::duration<double>;
  CHECK(sent_timeout(server, {}) == 60);
  {
    const Variable variable("FILETIMER_RPC_TIMEOUT", "21500ms");
    CHECK(sent_timeout(server, {}) == 21.5);
    CHECK(sent_timeout(server, 7s) == 7);
  }
  {
    const Variable variable("FILETIMER_RPC_TIMEOUT", "soon");
    CHECK(thrown_by([&] {
            client_of(server, {});
          }).starts_with("invalid: $FILETIMER_RPC_TIMEOUT: 'soon' is not a duration"));
  }
  CHECK(sent_timeout(server, Seconds(20.25)) == 20.25);
  for (const Timeout& none : {Timeout(std::chrono::milliseconds::max()), Timeout(Seconds::max()),
                              Timeout(Seconds(kInfinity))}) {
    CHECK(sent_timeout(server, none) == kInfinity);
  }
  for (const double seconds : {0.0, -1.0, -0.5, 2e9, -kInfinity, std::nan("")}) {
    CAPTURE(seconds);
    CHECK_THROWS_AS(client_of(server, Seconds(seconds)), InvalidArgument);
  }
  CHECK_FALSE(std::is_constructible_v<RpcTimeout, int>);
}

TEST_CASE("a call's timeout precedes the thread's, and that one the client's") {
  AnsweringServer server(R"({"answer":"done"})");
  const AdminClient client = client_of(server, 50s);
  const auto sent_timeout_of = [&](const RpcTimeout& timeout) {
    client.ping(timeout);
    return server.asked().back().wait_s;
  };
  {
    const ScopedRpcTimeout outer(40s);
    {
      const ScopedRpcTimeout inner(std::chrono::hours::max());
      CHECK(sent_timeout_of({}) == std::numeric_limits<double>::infinity());
      CHECK(sent_timeout_of(30s) == 30);
      std::thread([&] { CHECK(sent_timeout_of({}) == 50); }).join();
    }
    CHECK(sent_timeout_of({}) == 40);
  }
  CHECK(sent_timeout_of({}) == 50);
  CHECK_THROWS_AS(client.ping(-1s), InvalidArgument);
  CHECK_THROWS_AS((void)ScopedRpcTimeout{0s}, InvalidArgument);
}

TEST_CASE("wrong values are refused before a request is sent") {
  AnsweringServer server(R"({"answer":"done"})");
  const AdminClient client = client_of(server);
  for (const auto wrong : {std::chrono::nanoseconds{0}, std::chrono::nanoseconds{-1}}) {
    CHECK_THROWS_AS(client_of(server, wrong), InvalidArgument);
    CHECK_THROWS_AS(client.shutdown(ShutdownMode::kGraceful, wrong), InvalidArgument);
  }
  CHECK(message_of([&] { client_of(server, -2500ms); }) ==
        "the RPC timeout is -2500ms: expected more than 0 and at most 1000000000s, or max() for "
        "none");
  RendezvousOptions options = kTwoOfFour;
  options.timeout = 0s;
  CHECK(message_of([&] {
          client.rendezvous(options);
        }).starts_with("the timeout of rendezvous() is 0s"));
  options.timeout = 1s;
  options.name = std::string(4096, 'n');
  CHECK(message_of([&] { client.rendezvous(options); }).ends_with(" bytes: expected at most 4096"));
  CHECK(message_of([&] { client.shutdown(static_cast<ShutdownMode>(9)); }) ==
        "shutdown mode 9: expected one of ShutdownMode");
  CHECK(server.asked().empty());
}

TEST_CASE(
    "an exception of while_waiting withdraws a request, even if a child that it forked is alive") {
  std::atomic<bool> has_hung_up = false;
  AnsweringServer server([&](const auto&, Answers& answers) {
    answers.wait_until_hung_up();
    has_hung_up = true;
  });
  std::optional<Child> child;
  const AdminClient client({.dir = server.dir(), .while_waiting = [&] {
                              child.emplace();
                              throw std::runtime_error("withdrawn");
                            }});
  CHECK_THROWS_WITH(client.ping(), "withdrawn");
  // Where the client does not hang up, wait_until_hung_up() returns after 20 s.
  CHECK(testing::wait_until([&] { return has_hung_up.load(); }, 10s));
}
