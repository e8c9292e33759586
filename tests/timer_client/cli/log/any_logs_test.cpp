// What holds of any logs: made-up jobs of several hosts, drawn from seeds, are read in any order
// and division, with torn lines and repeated records, and by clocks that differ.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/log/reader.hpp"

namespace filetimer::cli {
namespace {

constexpr unsigned kSeeds = 12;

// A record, and what options choose it by.
struct MadeLine {
  std::string event;
  std::string host;
  std::int64_t at_us = 0;
  int pid = 0;  // 0: none
  std::optional<int> rank{};
  std::string scope{};
  std::string id{};
  std::string text{};  // with its newline
};
using MadeLines = std::vector<MadeLine>;

std::string text_of(const MadeLines& lines) {
  std::string text;
  for (const MadeLine& line : lines) {
    text += line.text;
  }
  return text;
}

class Draw {
 public:
  explicit Draw(unsigned seed) : bits_(seed) {}
  int below(std::size_t end) { return static_cast<int>(bits_() % end); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937 bits_;
};

// The log of one host: records of all that concerns a scope, at times that differ by more than a
// microsecond, in the order of their times.
class MadeHost {
 public:
  explicit MadeHost(const std::string& host) : host_(host), log_(host) {}

  void add(const std::string& event, std::int64_t at_us, const MadeWorker& worker,
           const std::string& id, const std::string& fields) {
    log_.add(event, at_us,
             fmt::format(R"({},"scope":"{}","id":"{}","incident":"{}-i"{})", fields_of(worker),
                         worker.scope, id, id.substr(0, id.find('-')), fields));
    note({event, host_, at_us, worker.pid, worker.rank, worker.scope, id, {}});
  }
  // One of the records that name no worker's scope.
  void add(const std::string& event, std::int64_t at_us, const std::string& fields) {
    log_.add(event, at_us, fields);
    note({event, host_, at_us});
  }
  [[nodiscard]] const MadeLines& lines() const { return lines_; }

 private:
  // Notes the record that was added last.
  void note(MadeLine line) {
    line.text = log_.text().substr(noted_bytes_);
    noted_bytes_ = log_.text().size();
    lines_.push_back(std::move(line));
  }

  std::string host_;
  HostLog log_;
  MadeLines lines_;
  std::size_t noted_bytes_ = 0;
};

// Expiries and warnings of the scopes of a few workers, one after the other.
MadeLines busy_host(Draw& draw, const std::string& host) {
  MadeHost made(host);
  std::int64_t at = kSecondUs + draw.below(1000);
  const auto next = [&] { return at += 1000 + draw.below(2'000'000); };
  made.add("server_started", at, R"(,"version":"0.1.0")");
  for (int number = 1; number <= 12; ++number) {
    const MadeWorker worker{.pid = 100 + draw.below(4),
                            .rank = draw.chance(70) ? std::optional(draw.below(3)) : std::nullopt,
                            .job = draw.chance(50) ? "j1" : "j2",
                            .scope = draw.chance(50) ? "forward" : "load"};
    const std::string id = fmt::format("{}-{}", host, number);
    switch (draw.below(4)) {
      case 0:
        made.add("warned", next(), worker, id, R"(,"elapsed_s":1,"timeout_s":3)");
        break;
      case 1:
        made.add("worker_ended", next(), worker, id,
                 fmt::format(
                     R"(,"scopes":[{{"scope":"{}","count":{},"total_s":9,"longest_s":1,)"
                     R"("last_s":1,"first_s":1,"timeout_s":{},"histogram_ns":[[1000000000,{}]]}}])",
                     worker.scope, 50 * number, number, 50 * number));
        break;
      case 2:
        made.add("rejected", next(), R"(,"count":2,"reason":"no number")");
        break;
      default: {
        made.add("expired", next(), worker, id, R"(,"timeout_s":2,"overdue_ms":1)");
        const bool is_spared = draw.chance(50);
        if (is_spared && draw.chance(70)) {
          made.add("released_late", next(), worker, id, R"(,"late_ms":1200)");
        }
        made.add("killed", next(), worker, id,
                 is_spared ? R"(,"verdict":"spared","reason":"dry run")" : R"(,"verdict":"dead")");
      }
    }
  }
  made.add("server_stopped", next(), R"(,"expired":1,"killed":1)");
  return made.lines();
}

// What each command that reads logs prints of a folder with these files, given by name.
struct Printed {
  TempFolder folder;
  Ran log;
  Ran json;
  Ran shown;
  Ran suggested;

  explicit Printed(const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) {
      folder.write(name, text);
    }
    log = run_command({"log", folder.path()});
    json = run_command({"log", folder.path(), "--json"});
    shown = run_command({"show", "last", folder.path()});
    suggested = run_command({"suggest", folder.path(), "--format", "json"});
  }
  // Whether all output is the same; what is on standard error names files.
  void check_same(const Printed& other) const {
    CHECK(json.output == other.json.output);
    CHECK(log.output == other.log.output);
    CHECK(shown.output == other.shown.output);
    CHECK(suggested.output == other.suggested.output);
  }
};

TEST_CASE("a log is the same in any division, among lines that are none, and with events twice") {
  const std::vector<std::string> foreign{"x\n", "{}\n", "[1,2]\n",
                                         "{\"schema\":2,\"event\":\"killed\"}\n"};
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const MadeLines lines = busy_host(draw, "node01");
    const Printed expected({{"a.jsonl", text_of(lines)}});
    const Draw drawn = draw;
    REQUIRE(expected.json.output == text_of(lines));

    const auto cut = lines.begin() + 1 + draw.below(lines.size() - 1);
    Printed(
        {{"a.jsonl.1", text_of({lines.begin(), cut})}, {"a.jsonl", text_of({cut, lines.end()})}})
        .check_same(expected);

    std::map<std::string, std::string> parts;
    for (const MadeLine& line : lines) {
      parts[fmt::format("{}.jsonl", draw.below(3))] += line.text;
    }
    Printed(parts).check_same(expected);

    // Torn and foreign lines cost themselves, and are counted.
    draw = drawn;
    std::string text;
    int skipped = 0;
    for (const MadeLine& line : lines) {
      if (draw.chance(30)) {
        text += foreign[static_cast<std::size_t>(draw.below(foreign.size()))];
        ++skipped;
      } else if (draw.chance(20)) {
        // A half line, before which and behind which whole records stand.
        text += line.text.substr(0, static_cast<std::size_t>(20 + draw.below(60)));
        ++skipped;
      }
      text += (draw.chance(20) ? " \t" : "") + line.text + (draw.chance(20) ? "\n" : "");
    }
    const Printed read({{"a.jsonl", text}});
    read.check_same(expected);
    CHECK(contains(read.json.errors, "skipped ") == (skipped > 0));
    if (skipped > 1) {
      CHECK(contains(read.json.errors, fmt::format("skipped {} lines", skipped)));
    }

    draw = drawn;
    std::string repeated;
    for (const MadeLine& line : lines) {
      const bool is_twice = !line.id.empty() && draw.chance(40);
      repeated += line.text + (is_twice ? line.text : "");
    }
    Printed({{"a.jsonl", repeated}}).check_same(expected);
  }
}

TEST_CASE("each option of log chooses the records that it says, and several those that all say") {
  struct Option {
    std::vector<std::string> words;
    std::function<bool(const MadeLine&)> admits;
  };
  const std::vector<Option> options{
      {{"--event", "killed"}, [](const MadeLine& line) { return line.event == "killed"; }},
      {{"--event", "expired,worker_ended"},
       [](const MadeLine& line) {
         return line.event == "expired" || line.event == "worker_ended";
       }},
      {{"--scope", "load"}, [](const MadeLine& line) { return line.scope == "load"; }},
      {{"--rank", "0"}, [](const MadeLine& line) { return line.rank == 0; }},
      {{"--pid", "102"}, [](const MadeLine& line) { return line.pid == 102; }},
      {{"--host", "node02"}, [](const MadeLine& line) { return line.host == "node02"; }},
      {{"--since", "2026-11-21T03:00:12Z"},
       [](const MadeLine& line) { return line.at_us >= 12 * kSecondUs; }}};
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    Draw draw(seed);
    const TempFolder folder;
    MadeLines all;
    for (const char* host : {"node01", "node02"}) {
      const MadeLines lines = busy_host(draw, host);
      folder.write(fmt::format("{}.jsonl", host), text_of(lines));
      all.insert(all.end(), lines.begin(), lines.end());
    }
    std::ranges::sort(all, {}, &MadeLine::at_us);
    for (unsigned chosen = 1; chosen < 1U << options.size(); chosen += 1 + seed) {
      CAPTURE(seed);
      CAPTURE(chosen);
      std::vector<std::string> words{"log", folder.path(), "--json"};
      MadeLines expected = all;
      for (std::size_t i = 0; i < options.size(); ++i) {
        if ((chosen >> i & 1) != 0 && (i != 1 || (chosen & 1) == 0)) {  // one --event
          words.insert(words.end(), options[i].words.begin(), options[i].words.end());
          std::erase_if(expected, [&](const MadeLine& line) { return !options[i].admits(line); });
        }
      }
      CHECK(run_command(words).output == text_of(expected));
    }
  }
}

TEST_CASE("a table that is printed before its last row has room for what may come") {
  constexpr int kRowsFitted = 1'000;  // they decide the widths
  HostLog log{"node01"};
  for (int i = 0; i < kRowsFitted; ++i) {
    log.add("hook", i * 1000, R"(,"pid":1,"reason":"r")");
  }
  log.add("released_late", kSecondUs * 60,
          R"(,"pid":654321,"scope":"forward","id":"x-1","reason":"r")");
  const std::vector<std::string> rows = lines_of(run_over(log, {"log"}).output);
  REQUIRE(rows.size() == kRowsFitted + 2);
  CHECK(rows.back().find("654321") + 6 == rows[0].find("PID") + 3);
  CHECK(rows.back().find("forward") == rows[0].find("SCOPE"));
}

// --- clocks ---

struct Hang {
  std::size_t hosts = 0;
  int odd_rank = -1;
  std::vector<double> entered_s;  // by rank; deadlines are half a minute later
};

// Two ranks on each host, all of them in `exchange`, except for the odd one, which is in `load`.
void write_hang(const TempFolder& folder, const Hang& hang,
                const std::vector<std::int64_t>& ahead_us) {
  for (std::size_t host = 0; host < hang.hosts; ++host) {
    HostLog log(fmt::format("node{:02}", host), ahead_us[host]);
    std::vector<MadeWorker> workers;
    for (int i = 0; i < 2; ++i) {
      const int rank = static_cast<int>(2 * host) + i;
      workers.push_back({.pid = 100 + rank,
                         .rank = rank,
                         .job = "j",
                         .scope = rank == hang.odd_rank ? "load" : "exchange",
                         .entered_s = hang.entered_s[static_cast<std::size_t>(rank)]});
    }
    std::ranges::sort(workers, {}, &MadeWorker::entered_s);
    const std::string incident = fmt::format("x{}-i1", host);
    for (const MadeWorker& worker : workers) {
      add_expiry(log, fmt::format("x{}-{}", host, *worker.rank), incident, worker);
    }
    add_incident(log, workers.back().entered_s + 31, incident, workers);
    folder.write(fmt::format("{}.jsonl", host), log.text());
  }
}

// Returns the descriptions of the hang that its expiries give: one, if all give the same.
std::set<std::string> descriptions_of(const TempFolder& folder) {
  const auto each = [&](const std::function<void(const Record&)>& take) {
    OpenedLogs opened = open_logs("", {folder.path()});
    read_merged(opened.logs, [&](const Record& record) {
      take(record);
      return true;
    });
  };
  std::vector<ExpiredWorker> all;
  each([&](const Record& record) {
    if (record.event == "expired") {
      all.push_back(read_expired(record));
    }
  });
  std::set<std::string> descriptions;
  for (const ExpiredWorker& around : all) {
    IncidentRecords records({around.worker.host, around.id, around.worker.pid, around.time_us});
    each([&](const Record& record) { records.take(record); });
    const Incident incident = records.combine(OddWorker::kShown);
    const ExpiredWorker* const from = incident.cause();
    std::string one = fmt::format(
        "rank {} in {}, odd: {}, expired {}, hosts {}:", from->worker.rank.value_or(-1),
        from->scope, incident.has_odd_group(), incident.expired.size(), incident.machines);
    for (const ScopeGroup& group : incident.groups) {
      std::vector<std::int64_t> ranks;
      for (const WorkerName& worker : group.workers) {
        ranks.push_back(worker.rank.value_or(-1));
      }
      std::ranges::sort(ranks);
      one += fmt::format(" {} {}", group.scope, fmt::join(ranks, ","));
    }
    descriptions.insert(std::move(one));
  }
  return descriptions;
}

TEST_CASE("clocks that are up to a second apart change nothing of who is told to have hung") {
  for (unsigned seed = 1; seed <= 4 * kSeeds; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Hang hang{.hosts = static_cast<std::size_t>(2 + draw.below(4)), .entered_s = {}};
    const std::size_t ranks = 2 * hang.hosts;
    const int first = draw.below(ranks);
    hang.odd_rank = draw.chance(60) ? draw.below(ranks) : -1;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      // The first to expire does so more than a second before the others, who came together.
      hang.entered_s.push_back(static_cast<int>(rank) == first ? 60 : 61.2 + draw.below(500) / 1e3);
    }
    const TempFolder right;
    write_hang(right, hang, std::vector<std::int64_t>(hang.hosts));
    const std::set<std::string> expected = descriptions_of(right);
    REQUIRE(expected.size() == 1);
    const int told = hang.odd_rank >= 0 ? hang.odd_rank : first;
    CHECK(expected.begin()->starts_with(fmt::format(
        "rank {} in {}, odd: {}, expired {}, hosts {}:", told,
        hang.odd_rank >= 0 ? "load" : "exchange", hang.odd_rank >= 0, ranks, hang.hosts)));
    std::vector<std::int64_t> ahead_us;
    for (std::size_t host = 0; host < hang.hosts; ++host) {
      ahead_us.push_back(draw.below(1'000'001));
    }
    const TempFolder shifted;
    write_hang(shifted, hang, ahead_us);
    CHECK(descriptions_of(shifted) == expected);
  }
}

}  // namespace
}  // namespace filetimer::cli
