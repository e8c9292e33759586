// Who hung first, where it is easy to be wrong: several jobs on one host, a job that hangs again,
// records that are missing, clocks that deceive. Nobody may be blamed for what is not known.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

using Workers = std::vector<MadeWorker>;

// The records of one host's log beside those of others.
struct Logs {
  TempFolder folder;

  explicit Logs(const std::vector<HostLog>& logs) {
    for (std::size_t i = 0; i < logs.size(); ++i) {
      folder.write(fmt::format("log{}.jsonl", i), logs[i].text());
    }
  }

  // What `log` says below its table.
  [[nodiscard]] std::string pages() const {
    const Ran ran = run_command({"log", folder.path()});
    CHECK(ran.code == 0);
    CHECK(ran.errors.empty());
    const std::size_t begin = ran.output.find("\nWho hung first");
    return begin == ran.output.npos ? "" : unwrapped(ran.output.substr(begin + 1));
  }
  [[nodiscard]] std::string show(const std::string& id) const {
    const Ran ran = run_command({"show", id, folder.path()});
    CHECK(ran.code == 0);
    return unwrapped(ran.output);
  }
};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) {
    ++count;
  }
  return count;
}

// --- several jobs ------------------------------------------------------------------------------

// All of job a is in `exchange`, and on n0 job b has been in `eval` for a second.
std::vector<HostLog> with_a_healthy_neighbour(int rank_of_b, const IncidentFields& fields = {}) {
  HostLog n0("n0");
  HostLog n1("n1");
  Workers a;
  for (int rank = 0; rank < 8; ++rank) {
    a.push_back({1000 + rank, rank, "a", "exchange", rank < 4 ? 100.0 : 102.0});
  }
  const MadeWorker b{2000, rank_of_b, "b", "eval", 129};
  add_incident(n0, 130, "n0-i1", {a[0], a[1], a[2], a[3], b}, fields);
  add_expiry(n0, "n0-1", "n0-i1", a[0]);
  add_incident(n1, 132, "n1-i1", {a[4], a[5], a[6], a[7]}, fields);
  add_expiry(n1, "n1-1", "n1-i1", a[4]);
  return {n0, n1};
}

TEST_CASE("the host whose first worker expired first hung first, whenever its last one did") {
  HostLog n0("n0");
  HostLog n1("n1");
  const Workers a{{1000, 0, "a", "exchange", 100},
                  {1001, 1, "a", "exchange", 104},
                  {1002, 2, "a", "exchange", 102}};
  add_incident(n0, 130, "n0-i1", {a[0], a[1]});
  add_expiry(n0, "n0-1", "n0-i1", a[0]);
  add_expiry(n0, "n0-2", "n0-i1", a[1]);
  add_incident(n1, 132, "n1-i1", {a[2]});
  add_expiry(n1, "n1-1", "n1-i1", a[2]);
  const std::string pages = Logs({n0, n1}).pages();
  CAPTURE(pages);
  CHECK(contains(pages,
                 "  rank 0 (pid 1000, t) on n0, in `exchange`: the first to expire, 2 s before "
                 "rank 2 (pid 1002, t) on n1."));
}

TEST_CASE("a worker of another job on the same host is not the odd one out") {
  const Logs logs(with_a_healthy_neighbour(0));
  const std::string pages = logs.pages();
  CAPTURE(pages);
  CHECK(contains(pages,
                 "  rank 0 (pid 1000, t) on n0, in `exchange`: the first to expire, 2 s before "
                 "rank 4 (pid 1004, t) on n1. No worker was elsewhere than the others.\n"
                 "  ranks 0-7 in `exchange` for 28 s to 30 s\n"
                 "  Order and times are those of the hosts' clocks, which may differ.\n"
                 "  2 workers on 2 hosts expired; "));
  const std::string page = logs.show("n0-1");
  CAPTURE(page);
  CHECK_FALSE(contains(page, "eval"));
  CHECK_FALSE(contains(page, "odd one"));
}

TEST_CASE("where no record tells jobs, two of one rank are of two jobs perhaps: nobody is odd") {
  const IncidentFields untold{.tells_jobs = false};
  const Logs shared(with_a_healthy_neighbour(0, untold));
  CAPTURE(shared.pages());
  CHECK(
      contains(shared.pages(), "  rank 0 (pid 1000, t) on n0, in `exchange`: the first to expire"));
  CHECK(contains(shared.pages(),
                 "  Two workers have one rank, and no record says which job they are of: none is "
                 "called the odd one out.\n"));
  CHECK_FALSE(contains(shared.pages(), "elsewhere"));
  // Of a job of nine it would be.
  CHECK(contains(Logs(with_a_healthy_neighbour(8, untold)).pages(),
                 "rank 8 (pid 2000, t) on n0, in `eval`: the odd one out. rank 0 "));
}

TEST_CASE("a worker whose job is not told is not taken for one of the job") {
  HostLog n0("n0");
  HostLog n1("n1");
  const MadeWorker rank_0{1000, 0, "a", "exchange", 100};
  const MadeWorker rank_1{1001, 1, "a", "exchange", 100};
  const MadeWorker rank_2{1002, 2, "a", "exchange", 102};
  add_incident(n0, 130, "n0-i1", {rank_0, rank_1, {3000, 7, "", "copy", 129}});
  add_expiry(n0, "n0-1", "n0-i1", rank_0);
  add_incident(n1, 132, "n1-i1", {rank_2});
  add_expiry(n1, "n1-1", "n1-i1", rank_2);
  const std::string pages = Logs({n0, n1}).pages();
  CAPTURE(pages);
  CHECK(contains(pages, "the first to expire, 2 s before rank 2 (pid 1002, t) on n1.\n"));
  CHECK(contains(pages, "  1 more workers, of which the record says no more\n"));
  CHECK_FALSE(contains(pages, "copy"));
}

// Both hang at once, their ranks 0 on n0.
std::vector<HostLog> two_jobs_that_hang(const IncidentFields& fields) {
  HostLog n0("n0");
  HostLog n1("n1");
  const Workers near = {{1000, 0, "a", "load", 100},
                        {2000, 0, "b", "save", 100.5},
                        {1001, 1, "a", "exchange", 104},
                        {2001, 1, "b", "exchange", 104}};
  const Workers far = {{1002, 2, "a", "exchange", 104}, {2002, 2, "b", "exchange", 104.5}};
  add_incident(n0, 130, "n0-i1", near, fields);
  add_expiry(n0, "n0-1", "n0-i1", near[0]);
  add_expiry(n0, "n0-2", "n0-i1", near[1]);
  add_incident(n1, 134, "n1-i1", far, fields);
  add_expiry(n1, "n1-1", "n1-i1", far[0]);
  add_expiry(n1, "n1-2", "n1-i1", far[1]);
  return {n0, n1};
}

TEST_CASE("two jobs that expire in one incident are two hangs, each with its own workers") {
  const Logs logs(two_jobs_that_hang({}));
  const std::string pages = logs.pages();
  CAPTURE(pages);
  CHECK(count_of(pages, "Who hung first") == 2);
  CHECK(contains(pages,
                 "Who hung first, job a, 2026-11-21 03:02:10 UTC\n"
                 "  rank 0 (pid 1000, t) on n0, in `load`: the odd one out, and the first to "
                 "expire, 4 s before rank 2 (pid 1002, t) on n1.\n"
                 "  rank 0 in `load` for 30 s, the odd one out\n"
                 "  ranks 1, 2 in `exchange` for 26 s\n"
                 "  Order and times are those of the hosts' clocks, which may differ.\n"
                 "  2 workers on 2 hosts expired; `timer_client show n0-1` "));
  CHECK(contains(pages,
                 "Who hung first, job b, 2026-11-21 03:02:10 UTC\n"
                 "  rank 0 (pid 2000, t) on n0, in `save`: the odd one out, and the first to "
                 "expire, 4 s before rank 2 (pid 2002, t) on n1.\n"
                 "  rank 0 in `save` for 29.5 s, the odd one out\n"
                 "  ranks 1, 2 in `exchange` for 25.5 s to 26 s\n"
                 "  Order and times are those of the hosts' clocks, which may differ.\n"
                 "  2 workers on 2 hosts expired; `timer_client show n0-2` "));
  const std::string page = logs.show("n0-2");
  CAPTURE(page);
  CHECK(contains(page, "  First to expire: rank 0 (pid 2000, t), this one, the odd one out.\n"));
  CHECK(contains(page, "  Expired, too: rank 2 (pid 2002, t) on n1, n1-2.\n"));
}

TEST_CASE("whose job an incident does not tell, other records may") {
  const std::string page = Logs(two_jobs_that_hang({.tells_jobs = false})).show("n0-1");
  CAPTURE(page);
  CHECK_FALSE(contains(page, "save"));
  CHECK_FALSE(contains(page, "2002"));
}

// --- one hang, or two --------------------------------------------------------------------------

TEST_CASE("a job that is started again and hangs again within a minute has hung twice") {
  HostLog n0("n0");
  HostLog n1("n1");
  const Workers first = {{1000, 0, "a", "load", 100},
                         {1001, 1, "a", "exchange", 104},
                         {1002, 2, "a", "exchange", 104},
                         {1003, 3, "a", "exchange", 104}};
  const Workers second = {{2000, 0, "a", "exchange", 149},
                          {2001, 1, "a", "exchange", 149},
                          {2002, 2, "a", "save", 145},
                          {2003, 3, "a", "exchange", 149}};
  add_incident(n0, 130, "n0-i1", {first[0], first[1]});
  add_expiry(n0, "n0-1", "n0-i1", first[0]);
  add_incident(n1, 134, "n1-i1", {first[2], first[3]});
  add_expiry(n1, "n1-1", "n1-i1", first[2]);
  add_incident(n1, 175, "n1-i2", {second[2], second[3]});
  add_expiry(n1, "n1-2", "n1-i2", second[2]);
  add_incident(n0, 179, "n0-i2", {second[0], second[1]});
  add_expiry(n0, "n0-2", "n0-i2", second[0]);
  const auto check = [](const Logs& logs) {
    const std::string pages = logs.pages();
    CAPTURE(pages);
    CHECK(count_of(pages, "Who hung first") == 2);
    CHECK(
        contains(pages, "rank 0 (pid 1000, t) on n0, in `load`: the odd one out, and the first "));
    CHECK(
        contains(pages, "rank 2 (pid 2002, t) on n1, in `save`: the odd one out, and the first "));
    CHECK(count_of(pages, "  2 workers on 2 hosts expired; ") == 2);
  };
  const Logs logs({n0, n1});
  check(logs);
  CHECK_FALSE(contains(logs.show("n1-2"), "n0-1"));
  // Also when the log goes on.
  for (const int second_after : {240, 300, 1000}) {
    n0.add("rejected", second_after * kSecondUs);
  }
  check(Logs({n0, n1}));
}

TEST_CASE("who waited and expires later on the same host is of the same hang") {
  HostLog n0("n0");
  HostLog n1("n1");
  const MadeWorker culprit{1000, 0, "a", "load", 100};
  const Workers waiting = {{1001, 1, "a", "exchange", 104},
                           {1002, 2, "a", "exchange", 104},
                           {1003, 3, "a", "exchange", 104, -1, 33}};
  add_incident(n0, 130, "n0-i1", {culprit, waiting[0]});
  add_expiry(n0, "n0-1", "n0-i1", culprit);
  add_incident(n0, 134, "n0-i2", {waiting[0]});
  add_expiry(n0, "n0-2", "n0-i2", waiting[0]);
  add_incident(n1, 134, "n1-i1", {waiting[1], waiting[2]});
  add_expiry(n1, "n1-1", "n1-i1", waiting[1]);
  add_incident(n1, 137, "n1-i2", {waiting[2]});
  add_expiry(n1, "n1-2", "n1-i2", waiting[2]);
  const std::string pages = Logs({n0, n1}).pages();
  CAPTURE(pages);
  CHECK(count_of(pages, "Who hung first") == 1);
  CHECK(contains(pages, "rank 0 (pid 1000, t) on n0, in `load`: the odd one out, and the first "));
  CHECK(contains(pages, "  4 workers on 2 hosts expired; "));
}

// --- records that are missing ------------------------------------------------------------------

// The culprit on n0 expires first; what is written of it is the callback's. The others are on n1.
template <class Write>
std::string with_culprit(const Write& write) {
  HostLog n0("n0");
  HostLog n1("n1");
  write(n0, MadeWorker{1000, 0, "a", "load", 100});
  const Workers waiting = {{1001, 1, "a", "exchange", 104},
                           {1002, 2, "a", "exchange", 104},
                           {1003, 3, "a", "exchange", 104}};
  add_incident(n1, 134, "n1-i1", waiting);
  add_expiry(n1, "n1-1", "n1-i1", waiting[0]);
  return Logs({n0, n1}).pages();
}

TEST_CASE(
    "nobody is said to have been elsewhere, or not, where the first one's incident is missing") {
  for (const char* incident : {"n0-i1", ""}) {
    CAPTURE(incident);
    const std::string pages = with_culprit([&](HostLog& log, const MadeWorker& culprit) {
      add_expiry(log, "n0-1", incident, culprit);
    });
    CAPTURE(pages);
    CHECK(contains(pages,
                   "  rank 0 (pid 1000, t) on n0, in `load`: the first to expire, 4 s before "
                   "rank 1 (pid 1001, t) on n1.\n"
                   "  ranks 1-3 in `exchange` for 26.0 s\n"
                   "  The incident records of these hosts are not in these logs: n0.\n"
                   "  Order and times are those of the hosts' clocks, which may differ.\n"
                   "  2 workers on 2 hosts expired; `timer_client show n0-1` "));
  }
}

TEST_CASE("an odd one among those who are listed may not be it where the first one is not listed") {
  HostLog n0("n0");
  HostLog n1("n1");
  add_expiry(n0, "n0-1", "n0-i1", {1000, 0, "a", "load", 100});
  const Workers others = {{1001, 1, "a", "exchange", 104},
                          {1002, 2, "a", "exchange", 104},
                          {1003, 3, "a", "save", 120}};
  add_incident(n1, 134, "n1-i1", others);
  add_expiry(n1, "n1-1", "n1-i1", others[0]);
  const std::string pages = Logs({n0, n1}).pages();
  CAPTURE(pages);
  CHECK(contains(pages, "  rank 0 (pid 1000, t) on n0, in `load`: the first to expire, 4 s"));
  CHECK_FALSE(contains(pages, "odd"));
}

TEST_CASE("expiries without any incident are told by their times") {
  HostLog n0("n0");
  HostLog n1("n1");
  add_expiry(n0, "n0-1", "", {1000, 0, "a", "load", 100});
  add_expiry(n1, "n1-1", "", {1001, 1, "a", "exchange", 104});
  const std::string pages = Logs({n0, n1}).pages();
  CAPTURE(pages);
  CHECK(contains(pages,
                 "  rank 0 (pid 1000, t) on n0, in `load`: the first to expire, 4 s before rank "
                 "1 (pid 1001, t) on n1.\n"
                 "  The incident record is not in these logs.\n"
                 "  Order and times are those of the hosts' clocks, which may differ.\n"
                 "  2 workers on 2 hosts expired; "));
}

TEST_CASE("nobody is said not to have been elsewhere where a record has not all") {
  for (const IncidentFields& fields :
       {IncidentFields{.unlisted = 1}, IncidentFields{.omitted = 1}}) {
    HostLog n0("n0");
    HostLog n1("n1");
    const MadeWorker near{1000, 0, "a", "exchange", 100};
    const MadeWorker far{1001, 1, "a", "exchange", 102};
    add_incident(n0, 130, "n0-i1", {near}, fields);
    add_expiry(n0, "n0-1", "n0-i1", near);
    add_incident(n1, 132, "n1-i1", {far});
    add_expiry(n1, "n1-1", "n1-i1", far);
    const std::string pages = Logs({n0, n1}).pages();
    CAPTURE(pages);
    CHECK(contains(pages, "the first to expire, 2 s before rank 1 (pid 1001, t) on n1.\n"));
    CHECK(contains(pages, " more "));
  }
}

// --- clocks ------------------------------------------------------------------------------------

TEST_CASE("of several hosts it is said that their clocks may differ, of one it is not") {
  HostLog n0("n0");
  HostLog n1("n1", 20 * kSecondUs);
  const MadeWorker near{1000, 0, "a", "load", 100};
  const MadeWorker far{1001, 1, "a", "exchange", 104};
  add_incident(n0, 130, "n0-i1", {near});
  add_expiry(n0, "n0-1", "n0-i1", near);
  const std::string sentence =
      "  Order and times are those of the hosts' clocks, which may differ.\n";
  n1.add("rejected", 100 * kSecondUs);
  const std::string alone = Logs({n0, n1}).pages();
  CAPTURE(alone);
  CHECK(contains(alone, "  rank 0 (pid 1000, t) on n0, in `load`: the first to expire.\n"));
  CHECK_FALSE(contains(alone, sentence));
  add_incident(n1, 134, "n1-i1", {far});
  add_expiry(n1, "n1-1", "n1-i1", far);
  const std::string both = Logs({n0, n1}).pages();
  CAPTURE(both);
  CHECK(contains(both, "the first to expire, 24 s before rank 1 (pid 1001, t) on n1.\n"));
  CHECK(contains(both, sentence));
}

// --- names of hosts ----------------------------------------------------------------------------

TEST_CASE(
    "machines that share a name are told apart by their boots, a reboot is no other machine") {
  HostLog one("localhost", 0, "11111111-aaaa");
  HostLog two("localhost", 0, "22222222-bbbb");
  const Workers near = {{1000, 0, "a", "load", 100}, {1001, 1, "a", "exchange", 104}};
  const Workers far = {{1000, 2, "a", "exchange", 104}, {1001, 3, "a", "exchange", 104}};
  add_incident(one, 130, "x-i1", near);
  add_expiry(one, "x-1", "x-i1", near[0]);
  add_incident(two, 134, "y-i1", far);
  add_expiry(two, "y-1", "y-i1", far[0]);
  const std::string pages = Logs({one, two}).pages();
  CAPTURE(pages);
  CHECK(contains(pages,
                 "  rank 0 (pid 1000, t) on localhost (boot 11111111), in `load`: the odd one out, "
                 "and the first to expire, 4 s before rank 2 (pid 1000, t) on localhost (boot "
                 "22222222).\n"));
  CHECK(contains(pages, "  2 workers on 2 hosts expired; "));
  // One host, whose log has what was before and after a reboot: no page.
  HostLog rebooted("localhost", 4000 * kSecondUs, "22222222-bbbb");
  add_expiry(rebooted, "y-1", "", {1000, 2, "a", "exchange", 104});
  CHECK(Logs({one, rebooted}).pages().empty());
}

}  // namespace
}  // namespace filetimer::cli
