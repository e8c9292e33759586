// Rounds of a rendezvous with injected time.
// SPDX-License-Identifier: MIT
#include "timer_server/control/rendezvous.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct RendezvousStage {
  std::string join(int rank, int world, Duration patience = 10s,
                   const std::string& name = "start") {
    const Status joined =
        rendezvous.join(name, world, {rank, 100 + rank, ++client}, now + patience, now);
    return joined ? "" : joined.error().message;
  }
  Rendezvous rendezvous{64};
  Rendezvous::Client client = 0;  // the last that joined
  Instant now{1'000'000'000};
};

std::vector<int> ranks_of(const Rendezvous::Round& round) {
  std::vector<int> ranks;
  for (const auto& member : round.joined) {
    ranks.push_back(member.rank);
  }
  return ranks;
}

}  // namespace

TEST_CASE("A round is full with the last of its ranks, and lists them in order") {
  RendezvousStage stage;
  CHECK(stage.join(2, 3) == "");
  CHECK(stage.join(0, 3) == "");
  CHECK(stage.rendezvous.take_full().empty());
  stage.now = stage.now + 3s;
  CHECK(stage.join(1, 3) == "");
  const auto rounds = stage.rendezvous.take_full();
  REQUIRE(rounds.size() == 1);
  CHECK(rounds[0].name == "start");
  CHECK(rounds[0].number == 1);
  CHECK(rounds[0].world == 3);
  CHECK(stage.now - rounds[0].begun == 3s);
  CHECK(ranks_of(rounds[0]) == std::vector{0, 1, 2});
  CHECK(rounds[0].joined[2].client == 1);
  CHECK(rounds[0].joined[1].pid == 101);
  CHECK(rounds[0].missing.empty());
  CHECK(stage.rendezvous.next_failure().is_never());
}

TEST_CASE("A round fails for all ranks when the first of them has waited long enough") {
  RendezvousStage stage;
  const Instant begun = stage.now;
  stage.join(0, 4, 10s);
  stage.join(3, 4, 2s);
  CHECK(stage.rendezvous.next_failure() == begun + 2s);
  CHECK(stage.rendezvous.take_failed({(begun + 2s).ns - 1}).empty());
  const auto rounds = stage.rendezvous.take_failed(begun + 2s);
  REQUIRE(rounds.size() == 1);
  CHECK(ranks_of(rounds[0]) == std::vector{0, 3});
  CHECK(rounds[0].missing == std::vector{1, 2});
  CHECK(rounds[0].left.empty());
}

TEST_CASE("A rank that has left is missing and named, and may join again") {
  RendezvousStage stage;
  stage.join(0, 3);
  stage.join(1, 3);
  const auto first = stage.client;
  stage.join(2, 3);
  stage.rendezvous.leave(first);
  CHECK(stage.rendezvous.take_full().empty());
  SUBCASE("it does not rejoin") {
    const auto rounds = stage.rendezvous.take_failed(stage.now + 10s);
    REQUIRE(rounds.size() == 1);
    CHECK(rounds[0].missing == std::vector{1});
    CHECK(rounds[0].left == std::vector{1});
  }
  SUBCASE("it rejoins") {
    CHECK(stage.join(1, 3) == "");
    const auto rounds = stage.rendezvous.take_full();
    REQUIRE(rounds.size() == 1);
    CHECK(rounds[0].left.empty());
  }
}

TEST_CASE("A rank that has left does not limit how long the others wait") {
  RendezvousStage stage;
  stage.join(0, 3, 1s);
  const auto first = stage.client;
  stage.join(1, 3, 10s);
  CHECK(stage.rendezvous.waiting_as("start", 0) == first);
  CHECK(!stage.rendezvous.waiting_as("start", 2));
  stage.rendezvous.leave(first);
  CHECK(stage.rendezvous.next_failure() == stage.now + 10s);
  CHECK(stage.rendezvous.take_failed(stage.now + 1s).empty());
}

TEST_CASE("The clients of a full round are known before it ends") {
  RendezvousStage stage;
  stage.join(0, 2);
  CHECK(stage.rendezvous.in_full_rounds().empty());
  stage.join(1, 2);
  CHECK(stage.rendezvous.in_full_rounds() == std::vector<Rendezvous::Client>{1, 2});
}

TEST_CASE("A round that all ranks have left is over, and the next one may have another world") {
  RendezvousStage stage;
  stage.join(0, 2, 1s);
  stage.rendezvous.leave(stage.client);
  CHECK(stage.rendezvous.next_failure().is_never());
  CHECK(stage.join(0, 3) == "");
}

TEST_CASE("The next round begins at once, and rounds are counted by name") {
  RendezvousStage stage;
  for (const std::uint64_t number : {1U, 2U}) {
    stage.join(0, 1);
    CHECK(stage.rendezvous.take_full().at(0).number == number);
  }
  stage.join(0, 1, 10s, "other");
  CHECK(stage.rendezvous.take_full().at(0).number == 1);
  stage.join(0, 2, 1s);
  CHECK(stage.rendezvous.take_failed(stage.now + 1s).at(0).number == 3);
}

TEST_CASE("An unlimited number of names takes a limited amount of memory") {
  RendezvousStage stage;
  for (std::size_t i = 0; i <= Rendezvous::kMaxNames; ++i) {
    stage.now = stage.now + 1s;
    stage.join(0, 1, 10s, "epoch-" + std::to_string(i));
    CHECK(stage.rendezvous.take_full().size() == 1);
  }
  stage.join(0, 1, 10s, "epoch-1");  // the oldest that is known
  CHECK(stage.rendezvous.take_full().at(0).number == 2);
  stage.join(0, 1, 10s, "epoch-0");  // forgotten
  CHECK(stage.rendezvous.take_full().at(0).number == 1);
}

TEST_CASE("A wrong join fails with the reason and changes no round") {
  RendezvousStage stage;
  stage.join(1, 3);
  CHECK(stage.join(1, 3) == "rank 1 has joined rendezvous 'start' already (pid 101)");
  CHECK(stage.join(0, 4) == "the world is 4: the ranks that wait in rendezvous 'start' gave 3");
  CHECK(stage.join(3, 3) == "the rank is 3: expected 0 to 2");
  CHECK(stage.join(-1, 3) == "the rank is -1: expected 0 to 2");
  CHECK(stage.join(0, 0) == "the world is 0: expected 1 to 64 ranks");
  CHECK(stage.join(0, 1, 1s, "") == "the rendezvous' name has 0 bytes: expected 1 to 255");
  CHECK(stage.join(0, 1, 1s, std::string(256, 'x')) ==
        "the rendezvous' name has 256 bytes: expected 1 to 255");
  CHECK(stage.join(0, 3) == "");
  CHECK(stage.join(2, 3) == "");
  CHECK(stage.rendezvous.take_full().size() == 1);
}
