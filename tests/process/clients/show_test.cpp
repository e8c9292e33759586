// A hang as it is told afterwards: real ranks, a real server, and what `timer_client show` makes of
// the log.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 4;

std::string output_of(std::vector<std::string> words) {
  const TempFolder temp;
  words.insert(words.begin(), client_path());
  Child client({.argv = std::move(words), .out = temp.path("out")});
  CHECK(client.status() == exited(0));
  return read_file(temp.path("out"));
}

// Workers with ranks from 0 on, in a scope without end each. The server knows their ranks.
std::vector<std::unique_ptr<Worker>> ranks_in_an_epoch(const Server& server) {
  std::vector<std::unique_ptr<Worker>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<Worker>(
        "block", Worker::Setup{.environment = {{"RANK", std::to_string(rank)}}}));
    server.send(acquire_far(ranks.back()->pid(), "epoch"));
  }
  REQUIRE(wait_until([&] {
    const std::string list = output_of({"list", "--json", "--dir", server.dir()});
    bool all = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      all = all && list.find(fmt::format("\"rank\":{}", rank)) != std::string::npos;
    }
    return all;
  }));
  return ranks;
}

// The page of the last expiry, its line breaks within sentences taken out.
std::string page_of_last(const Server& server) {
  std::string page = output_of({"show", "last", "--dir", server.dir()});
  for (std::size_t at = 0; (at = page.find("\n    ", at)) != std::string::npos;) {
    page.replace(at, 5, 1, ' ');
  }
  return page;
}

}  // namespace

TEST_CASE("of four ranks of which one hangs in `load`, show names that one first") {
  const TempFolder temp;
  const Server server(temp);
  const auto ranks = ranks_in_an_epoch(server);
  for (const int rank : {0, 1, 3}) {
    server.send(acquire_far(ranks[static_cast<std::size_t>(rank)]->pid(), "exchange"));
  }
  server.send(acquire(ranks[2]->pid(), "load", 300ms));
  CHECK(ranks[2]->status() == killed_by(SIGKILL));
  const std::string id = server.wait_for("killed", ranks[2]->pid()).text("id");

  const std::string page = page_of_last(server);
  CAPTURE(page);
  CHECK(page.starts_with(fmt::format("rank 2 (pid {}, ", ranks[2]->pid())));
  const std::size_t odd = page.find("\n  rank 2 in `load` for ");
  const std::size_t others = page.find("\n  ranks 0, 1, 3 in `exchange` for ");
  REQUIRE(odd != std::string::npos);
  REQUIRE(others != std::string::npos);
  CHECK(odd < others);
  CHECK(page.find(", this one, the odd one out\n", odd) < others);
  CHECK(page.find(fmt::format("First to expire: rank 2 (pid {}, ", ranks[2]->pid())) !=
        std::string::npos);
  CHECK(page.find(id) != std::string::npos);
}

TEST_CASE("a rank that is in no scope while the others wait stands out") {
  const TempFolder temp;
  const Server server(temp);
  const auto ranks = ranks_in_an_epoch(server);
  server.send(release(ranks[1]->pid(), "epoch"));
  for (const int rank : {2, 3}) {
    server.send(acquire_far(ranks[static_cast<std::size_t>(rank)]->pid(), "exchange"));
  }
  server.send(acquire(ranks[0]->pid(), "exchange", 300ms));
  server.wait_for("killed", ranks[0]->pid());
  const std::string page = page_of_last(server);
  CAPTURE(page);
  CHECK(page.find("\n  rank 1 in no scope, the odd one out\n  ranks 0, 2, 3 in `exchange` for ") !=
        std::string::npos);
  CHECK(page.find(", this one, not the odd one out.\n") != std::string::npos);
}
