// A hang as it is told afterwards: real ranks, a real server, and what `timer_client show` makes of
// the log.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>
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

TEST_CASE("the record of an incident has what its workers did before, and report draws it") {
  const TempFolder temp;
  const Server server(temp);
  const auto hung = client_worker(server.dir());
  const auto other = client_worker(server.dir());
  for (int step = 0; step < 3; ++step) {
    for (const auto* const worker : {&hung, &other}) {
      CHECK((*worker)->ask("open forward 3600000") == "yes");
      CHECK((*worker)->ask("release forward") == "yes");
    }
  }
  CHECK(other->ask("open exchange 3600000") == "yes");
  hung->tell("open load 200");
  CHECK(hung->status() == killed_by(SIGKILL));
  const std::string id = server.wait_for("killed", hung->pid()).text("id");

  const Record incident = server.wait_for("incident");
  std::vector<std::int64_t> pids;
  for (const simdjson::dom::object entry : incident.array("ended_scopes")) {
    CHECK(std::string_view(entry["scope"]) == "forward");
    pids.push_back(std::int64_t{entry["pid"]});
    double last_ago_s = std::numeric_limits<double>::infinity();
    std::size_t count = 0;
    for (const simdjson::dom::array scope : simdjson::dom::array{entry["ended"]}) {
      const double ago_s{scope.at(0)};
      const double took_s{scope.at(1)};
      CHECK(ago_s > 0.2);  // before the scope that has expired was opened
      CHECK(ago_s < last_ago_s);
      CHECK(took_s > 0);
      last_ago_s = ago_s;
      ++count;
    }
    CHECK(count == 3);
  }
  std::ranges::sort(pids);
  std::vector<std::int64_t> expected{hung->pid(), other->pid()};
  std::ranges::sort(expected);
  CHECK(pids == expected);
  CHECK(incident.integer("ended_omitted") == 0);

  const std::string path = temp.path("hang.html");
  CHECK(output_of({"report", id, "--dir", server.dir(), "-o", path}) == path + "\n");
  const std::string html = read_file(path);
  CHECK(contains(html, fmt::format("<h1>pid {}", hung->pid())));
  CHECK(contains(html, "<g class=expired><title>load: "));
  CHECK(contains(html, "<g class=open><title>exchange: "));
  CHECK(contains(html, "<g class=ended><title>forward: "));
}
