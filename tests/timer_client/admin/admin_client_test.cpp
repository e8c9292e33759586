// The public client for control requests: results, errors, and which timeout applies.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filetimer/admin.hpp>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "tests/timer_client/answering_server.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::AnsweringServer;
using testing::AskedQuestion;
using testing::message_of;
using Answers = testing::AnsweringServer::Answers;

namespace {

constexpr auto kShortTimeout = 20ms;

AdminClient client_of(const AnsweringServer& server, RpcTimeout timeout = testing::kBound) {
  return AdminClient({.dir = server.dir(), .rpc_timeout = timeout});
}

void say_nothing(const AskedQuestion& /*asked*/, Answers& answers) {
  answers.wait_until_hung_up();
}

class RpcTimeoutVariable {
 public:
  explicit RpcTimeoutVariable(const char* value) { ::setenv("FILETIMER_RPC_TIMEOUT", value, 1); }
  RpcTimeoutVariable(const RpcTimeoutVariable&) = delete;
  RpcTimeoutVariable& operator=(const RpcTimeoutVariable&) = delete;
  ~RpcTimeoutVariable() { ::unsetenv("FILETIMER_RPC_TIMEOUT"); }
};

// Returns the timeout of a call in seconds: a ping sends it to the server as its wait.
double sent_timeout(const AnsweringServer& server, const AdminClient& client,
                    RpcTimeout timeout = {}) {
  client.ping(timeout);
  return server.asked().back().wait_s;
}

const RendezvousOptions kTwoOfFour{.rank = 2, .world = 4, .timeout = 30s};

}  // namespace

TEST_CASE("status returns the server's fields and its whole answer") {
  const testing::TempFolder folder;
  const std::string line =
      R"({"answer":"done","server_pid":4711,"server_version":"0.3.0","uptime_s":12.5,"dir":"/d",)"
      R"("fifo":"/d/requests","log":"/d/expired.jsonl","announcement":"draining","workers":3,)"
      R"("open_scopes":5,"requests":100,"rejected":1,"expired":2,"killed":4,"kills_under_way":6,)"
      R"("unkillable":7,"descriptors":20,"limits":{"descriptors":1024,"workers":448},)"
      R"("log_trouble":"full","command_pid":8,"may":{"signal":true}})";
  AnsweringServer server(folder.path(), line);
  const ServerStatus status = client_of(server).status();
  CHECK(server.asked()[0].request == "status");
  CHECK(status.server_pid == 4711);
  CHECK(status.server_version == "0.3.0");
  CHECK(status.uptime == 12500ms);
  CHECK(status.dir == "/d");
  CHECK(status.fifo == "/d/requests");
  CHECK(status.log == "/d/expired.jsonl");
  CHECK(status.announcement == "draining");
  CHECK(status.workers == 3);
  CHECK(status.open_scopes == 5);
  CHECK(status.requests == 100);
  CHECK(status.rejected == 1);
  CHECK(status.expired == 2);
  CHECK(status.killed == 4);
  CHECK(status.kills_under_way == 6);
  CHECK(status.unkillable == 7);
  CHECK(status.descriptors == 20);
  CHECK(status.descriptor_limit == 1024);
  CHECK(status.worker_limit == 448);
  CHECK(status.log_trouble == "full");
  CHECK(status.command_pid == 8);
  CHECK(status.json == line);
}

TEST_CASE("a status with missing or unknown fields is read") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done","server_pid":1,"workers":"many"})");
  const ServerStatus status = client_of(server).status();
  CHECK(status.server_pid == 1);
  CHECK(status.workers == 0);
}

TEST_CASE("drain begins and ends a drain") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), [](const AskedQuestion& asked, Answers& answers) {
    answers.say(asked.off ? R"({"answer":"done","draining":false,"open_scope_count":0})"
                          : R"({"answer":"done","draining":true,"open_scope_count":2})");
  });
  const AdminClient client = client_of(server);
  const DrainResult on = client.drain();
  CHECK(on.draining);
  CHECK(on.open_scope_count == 2);
  CHECK_FALSE(client.drain(false).draining);
}

TEST_CASE("the error of a busy server has its reason and the open scopes") {
  const testing::TempFolder folder;
  bool timed_out = false;
  SUBCASE("refused at once") {}
  SUBCASE("after its time") {
    timed_out = true;
  }
  AnsweringServer server(
      folder.path(), std::string(R"({"answer":")") + (timed_out ? "timed_out" : "refused") +
                         R"(","reason":"2 scopes are open","open_scope_count":2,"open_scopes":[)"
                         R"({"pid":12,"rank":3,"scope":"step","elapsed_s":1.5,"remaining_s":8.5},)"
                         R"({"pid":13,"scope":"a\nb","elapsed_s":2}]})");
  const AdminClient client = client_of(server);
  try {
    client.shutdown();
    FAIL("nothing was thrown");
  } catch (const ServerBusy& error) {
    CHECK(error.what() ==
          std::string("2 scopes are open; open: 'step' of pid 12 (rank 3), 'a\\nb' of pid 13"));
    CHECK(error.reason == "2 scopes are open");
    CHECK(error.timed_out == timed_out);
    CHECK(error.open_scope_count == 2);
    REQUIRE(error.open_scopes.size() == 2);
    CHECK(error.open_scopes[0].rank == 3);
    CHECK(error.open_scopes[0].elapsed == 1500ms);
    CHECK(error.open_scopes[0].remaining == 8500ms);
    CHECK_FALSE(error.open_scopes[1].rank);
    CHECK_FALSE(error.open_scopes[1].remaining);
  }
}

TEST_CASE("a rendezvous returns its round and its members by rank") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), [](const AskedQuestion&, Answers& answers) {
    answers.say(R"({"answer":"granted","wait_s":30})");
    answers.say(R"({"answer":"done","name":"default","round":7,"world":2,)"
                R"("joined":[{"rank":1,"pid":22},{"rank":0,"pid":11}]})");
  });
  const RendezvousResult met =
      client_of(server).rendezvous({.rank = 1, .world = 2, .timeout = 30s, .name = "epoch"});
  CHECK(met.round == 7);
  REQUIRE(met.joined.size() == 2);
  CHECK(met.joined[0].rank == 0);
  CHECK(met.joined[0].pid == 11);
  CHECK(met.joined[1].pid == 22);
  const AskedQuestion asked = server.asked()[0];
  CHECK(asked.name == "epoch");
  CHECK(asked.rank == 1);
  CHECK(asked.world == 2);
  CHECK(asked.wait_s == 30);
}

TEST_CASE("the error of an incomplete rendezvous names the missing ranks") {
  const testing::TempFolder folder;
  AnsweringServer server(
      folder.path(),
      R"({"answer":"timed_out","reason":"2 of 4 ranks came in 30s",)"
      R"("joined":[{"rank":2,"pid":9},{"rank":0,"pid":8}],"missing":[1,3],"left":[3]})");
  const AdminClient client = client_of(server);
  try {
    client.rendezvous(kTwoOfFour);
    FAIL("nothing was thrown");
  } catch (const RendezvousTimeoutError& error) {
    CHECK(error.what() == std::string("rendezvous 'default': 2 of 4 ranks came in 30s; missing: 1, "
                                      "3; had joined and left: 3"));
    CHECK(error.name == "default");
    CHECK(error.joined == std::vector{0, 2});
    CHECK(error.missing == std::vector{1, 3});
    CHECK(error.left == std::vector{3});
  }
  CHECK(server.asked().size() == 1);
}

TEST_CASE("a rendezvous is tried again after a timeout and after no other error") {
  const testing::TempFolder folder;
  std::string after_two;
  std::size_t attempts = 0;
  bool is_met = false;
  int retries = 5;
  SUBCASE("until all have joined") {
    after_two = R"({"answer":"done","round":1})";
    attempts = 3;
    is_met = true;
  }
  SUBCASE("not when it is refused") {
    after_two = R"({"answer":"refused","reason":"the server ends"})";
    attempts = 3;
  }
  SUBCASE("not more often than `retries`") {
    retries = 1;
    attempts = 2;
  }
  int count = 0;
  AnsweringServer server(folder.path(), [&](const AskedQuestion&, Answers& answers) {
    answers.say(++count <= 2 ? R"({"answer":"timed_out","reason":"late"})" : after_two);
  });
  const AdminClient client = client_of(server);
  RendezvousOptions options = kTwoOfFour;
  options.retries = retries;
  options.backoff = 1ms;
  if (is_met) {
    CHECK(client.rendezvous(options).round == 1);
  } else {
    CHECK_THROWS_AS(client.rendezvous(options), TimerError);
  }
  CHECK(server.asked().size() == attempts);
}

TEST_CASE("no answer in time is an error that names the request and the server's state") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), say_nothing);
  const AdminClient client = client_of(server);
  try {
    client.drain(true, kShortTimeout);
    FAIL("nothing was thrown");
  } catch (const RpcTimeoutError& error) {
    CHECK(error.request == "drain");
    CHECK(error.waited >= kShortTimeout);
    CHECK(std::string(error.what()).find("no answer to 'drain'") == 0);
    CHECK(std::string(error.what()).find("its process is alive") != std::string::npos);
  }
}

TEST_CASE("a call's timeout precedes the thread's, which precedes the client's") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done"})");
  const AdminClient client = client_of(server, 50s);
  CHECK(sent_timeout(server, client) == 50);
  {
    const ScopedRpcTimeout outer(40s);
    CHECK(sent_timeout(server, client) == 40);
    {
      const ScopedRpcTimeout inner(std::chrono::hours::max());
      CHECK(sent_timeout(server, client) == std::numeric_limits<double>::infinity());
      CHECK(sent_timeout(server, client, 30s) == 30);
      std::thread([&] { CHECK(sent_timeout(server, client) == 50); }).join();
    }
    CHECK(sent_timeout(server, client) == 40);
  }
  CHECK(sent_timeout(server, client) == 50);
}

TEST_CASE(
    "an RPC timeout is any duration over zero, and the longest one of its type means no limit") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done"})");
  const AdminClient client = client_of(server);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Seconds = std::chrono::duration<double>;
  CHECK(sent_timeout(server, client, 2500ms) == 2.5);
  CHECK(sent_timeout(server, client, 1h) == 3600);
  CHECK(sent_timeout(server, client, Seconds(0.25)) == 0.25);
  for (const RpcTimeout& none :
       {RpcTimeout(std::chrono::hours::max()), RpcTimeout(std::chrono::milliseconds::max()),
        RpcTimeout(std::chrono::nanoseconds::max()), RpcTimeout(Seconds::max()),
        RpcTimeout(Seconds(kInfinity))}) {
    CHECK(sent_timeout(server, client, none) == kInfinity);
  }
  for (const double seconds : {0.0, -1.0, -0.5, 2e9, -kInfinity, std::nan("")}) {
    const Seconds wrong(seconds);
    CAPTURE(wrong.count());
    CHECK_THROWS_AS(client.ping(wrong), InvalidArgument);
  }
  CHECK(message_of([&] { client.ping(-2500ms); }) ==
        "the RPC timeout is -2500ms: expected more than 0 and at most 1000000000s, or max() for no "
        "limit");
}

TEST_CASE("a number without a unit is not an RPC timeout") {
  CHECK(std::is_convertible_v<std::chrono::minutes, RpcTimeout>);
  CHECK_FALSE(std::is_constructible_v<RpcTimeout, int>);
  CHECK_FALSE(std::is_constructible_v<RpcTimeout, double>);
  CHECK_FALSE(std::is_invocable_v<decltype(&AdminClient::ping), const AdminClient&, int>);
  CHECK_FALSE(std::is_invocable_v<decltype(&AdminClient::ping), const AdminClient&, double>);
}

TEST_CASE("the client's timeout is that of the environment, else a minute") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done"})");
  {
    const AdminClient client = client_of(server, RpcTimeout{});
    CHECK(sent_timeout(server, client) == 60);
  }
  {
    const RpcTimeoutVariable variable("1500ms");
    const AdminClient client = client_of(server, RpcTimeout{});
    CHECK(sent_timeout(server, client) == 1.5);
    const AdminClient other = client_of(server, 7s);
    CHECK(sent_timeout(server, other) == 7);
  }
  const RpcTimeoutVariable variable("soon");
  CHECK_THROWS_AS(client_of(server, RpcTimeout{}), InvalidArgument);
  CHECK(message_of([&] {
          client_of(server, RpcTimeout{});
        }).find("$FILETIMER_RPC_TIMEOUT: 'soon' is not a duration") == 0);
}

TEST_CASE("wrong values are refused before a request is sent") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done"})");
  const AdminClient client = client_of(server);
  for (const auto wrong : {std::chrono::nanoseconds{0}, std::chrono::nanoseconds{-1}}) {
    CHECK_THROWS_AS(client.ping(wrong), InvalidArgument);
    CHECK_THROWS_AS((void)ScopedRpcTimeout{wrong}, InvalidArgument);
    CHECK_THROWS_AS(client_of(server, wrong), InvalidArgument);
    CHECK_THROWS_AS(client.shutdown(ShutdownMode::kGraceful, wrong), InvalidArgument);
  }
  const auto meet = [&](auto change) {
    RendezvousOptions options = kTwoOfFour;
    change(options);
    return message_of([&] { client.rendezvous(options); });
  };
  CHECK(meet([](auto& o) { o.rank = 4; }) == "the rank is 4: expected 0 to 3");
  CHECK(meet([](auto& o) { o.rank = -1; }) == "the rank is -1: expected 0 to 3");
  CHECK(meet([](auto& o) { o.world = 0; }) == "the world is 0: expected 1 or more");
  CHECK(meet([](auto& o) { o.name = ""; }) ==
        "the rendezvous's name has 0 bytes: expected 1 to 255");
  CHECK(meet([](auto& o) { o.name = std::string(256, 'x'); }).find("has 256 bytes") !=
        std::string::npos);
  CHECK(meet([](auto& o) { o.timeout = 0s; }).find("the timeout of rendezvous() is 0s") == 0);
  CHECK(meet([](auto& o) { o.retries = -1; }).find("the retries are -1") == 0);
  CHECK(meet([](auto& o) { o.backoff = 0s; }) == "the backoff is 0s: expected more than 0");
  CHECK(server.asked().empty());
}

TEST_CASE("a request that the server rejects as invalid is a wrong argument") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"invalid","reason":"rank 2 is there"})");
  const AdminClient client = client_of(server);
  CHECK_THROWS_AS(client.rendezvous(kTwoOfFour), InvalidArgument);
  CHECK(message_of([&] { client.rendezvous(kTwoOfFour); }) == "rank 2 is there");
}

TEST_CASE("a server that cannot answer is unavailable") {
  const testing::TempFolder folder;
  SUBCASE("none") {
    const AdminClient client({.dir = folder.path()});
    CHECK_THROWS_AS(client.shutdown(), ServerUnavailable);
    CHECK(message_of([&] { client.shutdown(); }).find("no timer server at") == 0);
  }
  SUBCASE("one that ends") {
    AnsweringServer server(folder.path(), [](const AskedQuestion&, Answers&) {});
    const AdminClient client = client_of(server);
    CHECK_THROWS_AS((void)client.status(1h), ServerUnavailable);
  }
}

TEST_CASE("an exception of while_waiting withdraws a request, also between two tries") {
  const testing::TempFolder folder;
  SUBCASE("that is not answered") {
    AnsweringServer server(folder.path(), say_nothing);
    const AdminClient client(
        {.dir = server.dir(), .while_waiting = [] { throw std::runtime_error("withdrawn"); }});
    CHECK_THROWS_WITH(client.ping(), "withdrawn");
    CHECK(server.reply_names().empty());
  }
  SUBCASE("of a rendezvous that pauses") {
    AnsweringServer server(folder.path(), R"({"answer":"timed_out","reason":"late"})");
    // The reply pipe has no name any more: the answer was read.
    const auto withdraw = [&] {
      if (!server.asked().empty() && server.reply_names().empty()) {
        throw std::runtime_error("withdrawn");
      }
    };
    RendezvousOptions options = kTwoOfFour;
    options.retries = 1;
    options.backoff = 1h;
    const AdminClient client({.dir = server.dir(), .while_waiting = withdraw});
    CHECK_THROWS_WITH(client.rendezvous(options), "withdrawn");
    CHECK(server.asked().size() == 1);
  }
}

TEST_CASE("an admin client that was moved from works as before") {
  const testing::TempFolder folder;
  AnsweringServer server(folder.path(), R"({"answer":"done"})");
  AdminClient first = client_of(server, 7s);
  const AdminClient second = std::move(first);
  CHECK(sent_timeout(server, first) == 7);  // NOLINT: a move is a copy
  CHECK(sent_timeout(server, second) == 7);
}
