// The answers to the ranks of a rendezvous, on pipes of the test.
// SPDX-License-Identifier: MIT
#include "timer_server/control/rendezvous_desk.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>

#include "tests/support/files.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct DeskStage {
  DeskStage() {
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
  }
  // A client that waits, and the read end of its reply pipe.
  struct Waiting {
    WaitingClients::Id id = 0;
    UniqueFd reader;

    [[nodiscard]] std::string read() const {
      std::array<char, 4096> bytes{};
      const ssize_t got = ::read(reader.get(), bytes.data(), bytes.size());
      return {bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
    }
  };
  Waiting client() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) == 0);
    UniqueFd reader(ends[0]);
    const auto id = clients.add(UniqueFd(ends[1]), "");
    REQUIRE(id);
    return {*id, std::move(reader)};
  }
  std::string join(int rank, int world, const Waiting& waiting) {
    const Status joined = desk.join({"start", rank, world, 100 + rank, waiting.id}, 10s, now);
    return joined ? "" : joined.error().message;
  }
  testing::TempFolder folder;
  filetimer::Records records{RecordOrigin::of_this_process(folder.path())};
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  EventLoop loop = make_event_loop();
  WaitingClients clients{loop.get(), 20, [](WaitingClients::Id) {}};
  RendezvousDesk desk{8, clients, records, *log};
  Instant now{1'000'000'000};
};

}  // namespace

TEST_CASE("The ranks of a full round get one answer, and the round is recorded") {
  DeskStage stage;
  const auto zero = stage.client();
  const auto one = stage.client();
  CHECK(stage.join(0, 2, zero) == "");
  stage.desk.advance(stage.now);
  CHECK(zero.read() == "");
  CHECK(stage.join(1, 2, one) == "");
  stage.now = stage.now + 3s;
  stage.desk.advance(stage.now);
  const std::string answer = zero.read();
  CHECK(answer.starts_with(R"({"version":)"));
  CHECK(testing::contains(answer, R"("answer":"done","name":"start","round":1,"world":2,)"
                                  R"("joined":[{"rank":0,"pid":100},{"rank":1,"pid":101}])"));
  CHECK(one.read() == answer);
  CHECK(stage.clients.count() == 0);
  CHECK(stage.desk.next().is_never());
  const auto records = records_of_log(*stage.log, stage.folder);
  REQUIRE(records.size() == 1);
  CHECK(records[0].is("rendezvous"));
  CHECK(records[0].number("waited_s") == 3);
}

TEST_CASE("A round whose time is up is answered and recorded with the ranks that are missing") {
  DeskStage stage;
  const auto zero = stage.client();
  const auto two = stage.client();
  stage.join(0, 3, zero);
  stage.join(2, 3, two);
  stage.desk.leave(two.id);
  CHECK(stage.desk.next() == stage.now + 10s);
  stage.desk.advance(stage.now + 10s);
  const std::string answer = zero.read();
  CHECK(testing::contains(answer, R"("answer":"timed_out")"));
  CHECK(testing::contains(answer, "1 of 3 ranks had joined"));
  CHECK(testing::contains(answer, R"("missing":[1,2],"left":[2])"));
  CHECK(two.read() == "");
  const auto records = records_of_log(*stage.log, stage.folder);
  REQUIRE(records.size() == 1);
  CHECK(records[0].is("rendezvous_timeout"));
  CHECK(
      testing::contains(records[0].text("reason"), "missing: 1, 2; of these, joined and left: 2"));
}

TEST_CASE(
    "A rank whose client is gone completes no round, even before its withdrawal is reported") {
  DeskStage stage;
  auto zero = stage.client();
  const auto one = stage.client();
  stage.join(0, 2, zero);
  zero.reader.reset();
  stage.join(1, 2, one);
  stage.desk.advance(stage.now);
  CHECK(one.read() == "");
  const auto again = stage.client();
  CHECK(stage.join(0, 2, again) == "");
  stage.desk.advance(stage.now);
  CHECK(testing::contains(one.read(), R"("answer":"done")"));
  CHECK(testing::contains(again.read(), R"("answer":"done")"));
}

TEST_CASE("A restarted rank replaces its predecessor, unless that one still waits") {
  DeskStage stage;
  auto first = stage.client();
  const auto second = stage.client();
  stage.join(0, 2, first);
  CHECK(stage.join(0, 2, second) == "rank 0 has joined rendezvous 'start' already (pid 100)");
  first.reader.reset();
  CHECK(stage.join(0, 2, second) == "");
}

TEST_CASE("All ranks are refused with the reason, and no round is recorded") {
  DeskStage stage;
  const auto zero = stage.client();
  stage.join(0, 2, zero);
  stage.desk.refuse_all("the server is draining");
  CHECK(testing::contains(zero.read(), R"("answer":"refused","reason":"the server is draining")"));
  CHECK(stage.desk.next().is_never());
  stage.desk.advance(stage.now + 1h);
  CHECK(records_of_log(*stage.log, stage.folder).empty());
}
