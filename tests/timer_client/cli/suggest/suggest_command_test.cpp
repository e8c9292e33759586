// `timer_client suggest` over logs of made-up hosts.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <simdjson.h>

#include <string>
#include <vector>

#include "common/duration_buckets.hpp"
#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

// The fields of one scope in a `worker_ended` record: all but the first took `each_s`.
std::string scope_fields(const std::string& name, int count, double each_s, double first_s,
                         double timeout_s) {
  const auto begin = [](double s) {
    return bucket_begin(bucket_of(static_cast<std::int64_t>(s * 1e9)));
  };
  return fmt::format(
      R"({{"scope":"{}","count":{},"total_s":1,"longest_s":{},"last_s":{},"smallest_margin_s":1,)"
      R"("first_s":{},"timeout_s":{},"histogram_ns":[[{},{}],[{},1]]}})",
      name, count, std::max(each_s, first_s), each_s, first_s, timeout_s, begin(each_s), count - 1,
      begin(first_s));
}

void add_worker_ended(HostLog& log, int pid, const std::vector<std::string>& scopes) {
  log.add("worker_ended", pid * kSecondUs,
          fmt::format(R"(,"pid":{},"dir":"/tmp/job","scopes":[{}],"omitted":0)", pid,
                      fmt::join(scopes, ",")));
}

void add_dry_expiry(HostLog& log, int number, const std::string& scope, double late_s) {
  const auto at = (100 + number) * kSecondUs;
  const std::string key =
      fmt::format(R"(,"pid":10,"id":"x-{0}","incident":"x-i{0}","scope":"{1}")", number, scope);
  log.add("expired", at, key + R"(,"timeout_s":2)");
  log.add("killed", at + 1000, key + R"(,"verdict":"spared","reason":"dry run","signals":[])");
  log.add("released_late", at + 2000,
          fmt::format(R"(,"pid":10,"id":"x-{}","scope":"{}","late_ms":{})", number, scope,
                      late_s * 1000));
}

struct JobOfTwoHosts {
  TempFolder folder;

  JobOfTwoHosts() {
    HostLog a{"node01"};
    HostLog b{"node02"};
    for (int i = 0; i < 2; ++i) {
      add_worker_ended(
          i == 0 ? a : b, 10 + i,
          {scope_fields("forward", 301, 0.5, 20, 60), scope_fields("eval", 12, 3, 3, 5),
           scope_fields("load", 101, 0.001, 0.001, 0.5)});
    }
    add_dry_expiry(a, 1, "load", 1.2);
    add_dry_expiry(a, 2, "load", 4);
    add_dry_expiry(a, 3, "load", 2);
    testing::write_file(folder.path("a.jsonl"), a.text());
    testing::write_file(folder.path("b.jsonl"), b.text());
  }
  [[nodiscard]] Ran suggest(std::vector<std::string> words) const {
    words.insert(words.begin(), {"suggest", folder.path("")});
    return run_command(words);
  }
};

TEST_CASE("suggest combines the workers of all hosts") {
  const JobOfTwoHosts job;
  const Ran ran = job.suggest({"--format", "json"});
  CHECK(ran.code == 0);
  CHECK(ran.errors.empty());
  const std::vector<std::string> lines = lines_of(ran.output);
  REQUIRE(lines.size() == 3);
  simdjson::dom::parser parser;
  simdjson::dom::object eval;
  REQUIRE(parser.parse(lines[0]).get_object().get(eval) == simdjson::SUCCESS);
  CHECK(text_at(eval, "scope") == "eval");
  CHECK(integer_at(eval, "count") == 22);
  CHECK_FALSE(number_at(eval, "suggested_s"));
  CHECK(text_at(eval, "why") == "too few samples (22 of 100)");
  simdjson::dom::object forward;
  REQUIRE(parser.parse(lines[1]).get_object().get(forward) == simdjson::SUCCESS);
  CHECK(text_at(forward, "scope") == "forward");
  CHECK(integer_at(forward, "count") == 600);
  CHECK(integer_at(forward, "firsts") == 2);
  CHECK(number_at(forward, "first_s") == 20);
  CHECK(number_at(forward, "timeout_s") == 60);
  // Three times half a second, and an eighth for the width of the bucket.
  CHECK(number_at(forward, "suggested_s").value_or(0) >= 1.5);
  CHECK(number_at(forward, "suggested_s").value_or(0) <= 1.7);
  CHECK(number_at(forward, "suggested_first_s") == 60);
  simdjson::dom::object load;
  REQUIRE(parser.parse(lines[2]).get_object().get(load) == simdjson::SUCCESS);
  CHECK(number_at(load, "suggested_s") == 1);
  CHECK(integer_at(load, "spared") == 3);
  simdjson::dom::object late;
  REQUIRE(load.at_key("released_late").get_object().get(late) == simdjson::SUCCESS);
  CHECK(integer_at(late, "count") == 3);
  CHECK(number_at(late, "least_s") == 1.2);
  CHECK(number_at(late, "longest_s") == 4);
}

TEST_CASE("the table has a row for each name and a line for missed deadlines") {
  const JobOfTwoHosts job;
  const Ran ran = job.suggest({});
  CHECK(ran.code == 0);
  const std::vector<std::string> lines = lines_of(ran.output);
  REQUIRE(lines.size() == 6);
  CHECK(lines[0].starts_with("SCOPE"));
  CHECK(lines[1].ends_with("  too few"));
  CHECK(lines[2].ends_with("  60 s  3 x P99.9"));
  CHECK(contains(lines[2], "3 x P99.9"));
  CHECK(contains(lines[3], "the floor"));
  CHECK(lines[4].empty());
  CHECK(lines[5] == "load: would have been killed 3 times; all were released 1.20 s to 4 s late");
  for (const std::string& line : lines) {
    CHECK(line.size() <= 80);
  }
}

TEST_CASE("the TOML has a table for each suggestion and comments for the others") {
  const JobOfTwoHosts job;
  const Ran ran = job.suggest({"--format", "toml"});
  CHECK(ran.code == 0);
  CHECK(contains(ran.output, "# \"eval\": too few samples (22 of 100)\n"));
  CHECK(contains(ran.output, "\n[\"forward\"]\ntimeout = \"1."));
  CHECK(contains(ran.output, "\nfirst_timeout = \"60s\"\n"));
  CHECK(contains(ran.output, "\n[\"load\"]\ntimeout = \"1s\"\n"));
  CHECK(ran.output.starts_with("# Timeouts that `timer_client suggest` computed from 2 ended "));
}

TEST_CASE("every format has the suggestion that keeps the order of today, and the reason") {
  TempFolder folder;
  HostLog log{"node01"};
  add_worker_ended(log, 1,
                   {scope_fields("exchange", 201, 0.001, 0.001, 10),
                    scope_fields("forward", 201, 0.001, 0.001, 5)});
  testing::write_file(folder.path("a.jsonl"), log.text());
  const auto suggest = [&](const char* format) {
    return run_command({"suggest", folder.path("a.jsonl"), "--format", format}).output;
  };
  CHECK(contains(suggest("table"), "  1.50 s  1.5 x forward\n"));
  CHECK(contains(suggest("toml"), "\n# 1.5 x forward: 200 scopes: "));
  CHECK(contains(suggest("toml"), "\n[\"exchange\"]\ntimeout = \"1.5s\"\n"));
  CHECK(contains(suggest("json"), R"("suggested_s":1.500000000)"));
  CHECK(contains(suggest("json"), R"("why":"1.5 x forward")"));
}

TEST_CASE("the timeout of today is that of the worker that ended last") {
  const TempFolder folder;
  HostLog log{"node01"};
  add_worker_ended(log, 1, {scope_fields("step", 201, 0.5, 1, 600)});
  add_worker_ended(log, 2, {scope_fields("step", 201, 0.5, 1, 5)});
  testing::write_file(folder.path("a.jsonl"), log.text());
  const Ran ran = run_command({"suggest", folder.path("a.jsonl"), "--format", "json"});
  CHECK(contains(ran.output, R"("timeout_s":5.000000000,)"));
}

TEST_CASE("a worker of several threads has as many first scopes") {
  const TempFolder folder;
  HostLog log{"node01"};
  std::string scope = scope_fields("step", 400, 0.5, 20, 60);
  const auto begin = [](double s) {
    return bucket_begin(bucket_of(static_cast<std::int64_t>(s * 1e9)));
  };
  scope.replace(scope.find(R"("histogram_ns")"), std::string::npos,
                fmt::format(R"("histogram_ns":[[{0},396],[{1},4]],)"
                            R"("first_histogram_ns":[[{0},1],[{1},4]]}})",
                            begin(0.5), begin(20)));
  add_worker_ended(log, 1, {scope});
  testing::write_file(folder.path("a.jsonl"), log.text());
  const Ran ran = run_command({"suggest", folder.path("a.jsonl"), "--format", "json"});
  CHECK(contains(ran.output, R"("count":395,"firsts":5,)"));
  CHECK(contains(ran.output, R"("first_s":20.000000000,)"));
  CHECK(contains(ran.output, R"("suggested_s":1.500000000,)"));
}

TEST_CASE("names are quoted and cannot leave their line") {
  TempFolder folder;
  HostLog log{"node01"};
  add_worker_ended(log, 1, {scope_fields(R"(a\"] \n[b\u007f)", 201, 0.5, 1, 60)});
  testing::write_file(folder.path("a.jsonl"), log.text());
  const Ran ran = run_command({"suggest", folder.path("a.jsonl"), "--format", "toml"});
  CHECK(ran.code == 0);
  CHECK(contains(ran.output, R"(["a\"] \n[b\u007f"])"));
}

TEST_CASE("an expiry whose worker was killed is no late release") {
  TempFolder folder;
  HostLog log{"node01"};
  const std::string key = R"(,"pid":10,"id":"x-1","incident":"x-i1")";
  log.add("expired", kSecondUs, key + R"(,"scope":"step")");
  log.add("expired", kSecondUs, R"(,"pid":10,"id":"x-2","incident":"x-i1","scope":"load")");
  log.add("killed", 2 * kSecondUs, key + R"(,"scope":"step","verdict":"dead","signals":[])");
  log.add("killed", 2 * kSecondUs,
          R"(,"pid":10,"id":"x-2","incident":"x-i1","scope":"load","verdict":"dead","signals":[])");
  log.add("expired", 3 * kSecondUs, R"(,"pid":10,"id":"x-3","incident":"x-i2","scope":"tail")");
  log.add("killed", 3 * kSecondUs,
          R"(,"pid":10,"id":"x-3","incident":"x-i2","scope":"tail","verdict":"already_gone")");
  log.add("warned", 2 * kSecondUs, R"(,"pid":10,"id":"x-w1","scope":"load")");
  log.add("warned", 2 * kSecondUs, R"(,"pid":10,"scope":"load","asked_s":9,"granted_s":5)");
  log.add("warning_ended", 2 * kSecondUs, R"(,"pid":10,"id":"x-w1","scope":"load","after_s":1.5)");
  testing::write_file(folder.path("a.jsonl"), log.text());
  const Ran ran = run_command({"suggest", folder.path("a.jsonl")});
  CHECK(ran.code == 0);
  CHECK(contains(ran.output, "step: 1 expired and ended in a kill\n"));
  CHECK(contains(ran.output, "tail: 1 "));
  CHECK_FALSE(contains(ran.output, "tail: 1 expired and ended in a kill"));
  CHECK(contains(ran.output,
                 "load: 1 expired and ended in a kill; 1 had a warning; 1 was released 1.50 s "
                 "after the warning\n"));
}

TEST_CASE("a copy of a log counts once") {
  const JobOfTwoHosts job;
  testing::write_file(job.folder.path("copy.jsonl"),
                      testing::read_file(job.folder.path("a.jsonl")));
  const Ran ran = job.suggest({"--format", "json"});
  CHECK(ran.code == 0);
  CHECK(contains(ran.errors, "copy.jsonl' is a copy of '"));
  CHECK(ran.output == JobOfTwoHosts().suggest({"--format", "json"}).output);
}

TEST_CASE("without any duration suggest prints no empty table, and says who keeps durations") {
  const TempFolder folder;
  HostLog log{"node01"};
  add_dry_expiry(log, 1, "load", 1.2);
  testing::write_file(folder.path("a.jsonl"), log.text());
  const auto suggest = [&](const char* format) {
    return run_command({"suggest", folder.path("a.jsonl"), "--format", format});
  };
  const std::vector<std::string> lines = lines_of(suggest("table").output);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with("no scope has a duration: workers write theirs when they exit"));
  CHECK(lines[1].empty());
  CHECK(lines[2] == "load: would have been killed once; 1 was released 1.20 s late");
  CHECK(suggest("table").errors.empty());
  CHECK(lines_of(suggest("toml").output)[1] == "# " + lines[0]);
  CHECK(contains(suggest("toml").output,
                 "# \"load\": too few samples (0 of 100)\n"
                 "# would have been killed once; 1 was released 1.20 s late\n"));
  CHECK(suggest("toml").errors.empty());
  CHECK(lines_of(suggest("json").output).size() == 1);
  CHECK(contains(suggest("json").errors, lines[0]));
}

TEST_CASE("--since leaves earlier records out") {
  const JobOfTwoHosts job;
  const Ran ran = job.suggest({"--since", "1m"});
  CHECK(ran.code == 0);
  CHECK(ran.output.empty());
  CHECK(contains(ran.errors, "no statistics of scopes in 0 ended workers in "));
}

// The third minute of the logs begins between the beginning and the end of what they tell.
TEST_CASE("--since counts the end of an expiry or a warning only with its beginning") {
  TempFolder folder;
  HostLog log{"node01"};
  const auto key = [](int number) {
    return fmt::format(R"(,"pid":10,"id":"x-{}","scope":"load")", number);
  };
  const std::int64_t limit = 120 * kSecondUs;
  log.add("expired", limit - 20, key(1));
  log.add("expired", limit - 20, key(2));
  log.add("warned", limit - 20, key(3));
  log.add("expired", limit + 10, key(4));
  log.add("killed", limit + 20, key(1) + R"(,"verdict":"spared")");
  log.add("killed", limit + 20, key(2) + R"(,"verdict":"dead")");
  log.add("killed", limit + 20, key(4) + R"(,"verdict":"spared")");
  log.add("released_late", limit + 30, key(1) + R"(,"late_ms":1000)");
  log.add("warning_ended", limit + 30, key(3) + R"(,"result":"released","after_s":1)");
  log.add("released_late", limit + 30, key(4) + R"(,"late_ms":2000)");
  testing::write_file(folder.path("a.jsonl"), log.text());
  const std::string path = folder.path("a.jsonl");
  const Ran all = run_command({"suggest", path});
  CHECK(contains(all.output,
                 "load: 2 expired and were spared, 1 expired and ended in a kill; "
                 "2 were released 1 s to 2 s late; 1 had a warning; "
                 "1 was released 1 s after the warning\n"));
  const Ran late = run_command({"suggest", path, "--since", "2026-11-21T03:02:00Z"});
  CHECK(contains(late.output, "load: 1 expired and was spared; 1 was released 2 s late\n"));
}

TEST_CASE("the release of a scope before its kill is late, whichever record comes first") {
  TempFolder folder;
  HostLog log{"node01"};
  for (const int number : {1, 2}) {
    const std::string key = fmt::format(R"(,"pid":10,"id":"x-{}","scope":"load")", number);
    const std::string outcome = key + R"(,"verdict":"spared")";
    log.add("expired", number * kSecondUs, key);
    if (number == 1) {
      log.add("killed", number * kSecondUs + 1, outcome);
    }
    log.add("released_late", number * kSecondUs + 2, key + R"(,"late_ms":1000)");
    if (number == 2) {
      log.add("killed", number * kSecondUs + 3, outcome);
    }
  }
  testing::write_file(folder.path("a.jsonl"), log.text());
  CHECK(contains(run_command({"suggest", folder.path("a.jsonl")}).output,
                 "load: 2 expired and were spared; all were released 1 s late\n"));
}

TEST_CASE("a scope that was renewed after its warning was not released") {
  TempFolder folder;
  HostLog log{"node01"};
  for (const char* result : {"renewed", "renewed", "released"}) {
    const std::string key = R"(,"pid":10,"id":"x-w1","scope":"heart")";
    log.add("warned", kSecondUs, key);
    log.add("warning_ended", 2 * kSecondUs,
            key + fmt::format(R"(,"result":"{}","after_s":3)", result));
  }
  testing::write_file(folder.path("a.jsonl"), log.text());
  CHECK(contains(run_command({"suggest", folder.path("a.jsonl")}).output,
                 "heart: 3 had a warning; 1 was released 3 s after the warning\n"));
}

// A job of which rank 2 hangs in `forward` while ranks 0 and 1 wait for it in `exchange`, within
// `epoch`. Another job shares the host.
struct JobWithHang {
  HostLog log{"node01"};
  MadeWorker hung{
      .pid = 12, .rank = 2, .job = "8812", .scope = "forward", .entered_s = 10, .timeout_s = 5};
  MadeWorker first{
      .pid = 10, .rank = 0, .job = "8812", .scope = "exchange", .entered_s = 10, .timeout_s = 10};
  MadeWorker second{.pid = 11,
                    .rank = 1,
                    .job = "8812",
                    .scope = "exchange",
                    .entered_s = 10.001,
                    .timeout_s = 10};
  MadeWorker other{.pid = 13, .rank = 0, .job = "77", .scope = "sync", .entered_s = 10};

  JobWithHang() {
    add_expiry(log, "x-1", "x-i1", hung);
    add_incident(log, 15.0001, "x-i1", {hung, first, second, other});
  }
  // All scopes of a worker took a hundredth of a second, but for these.
  void end_worker(int pid, const std::string& scope, const std::vector<double>& others_s) {
    std::string histogram = fmt::format("[{},200]", bucket_begin(bucket_of(10'000'000)));
    double longest_s = 0.01;
    for (const double s : others_s) {
      histogram +=
          fmt::format(",[{},1]", bucket_begin(bucket_of(static_cast<std::int64_t>(s * 1e9))));
      longest_s = std::max(longest_s, s);
    }
    log.add("worker_ended", 16 * kSecondUs,
            fmt::format(R"(,"pid":{},"dir":"/tmp/job","scopes":[{{"scope":"{}","count":{},)"
                        R"("longest_s":{},"first_s":0.01,"timeout_s":10,"histogram_ns":[{}]}}])",
                        pid, scope, 200 + others_s.size(), longest_s, histogram));
  }
  [[nodiscard]] Ran suggest(const std::string& format = "table") const {
    const TempFolder folder;
    testing::write_file(folder.path("a.jsonl"), log.text());
    return run_command({"suggest", folder.path("a.jsonl"), "--format", format});
  }
  // Returns a number of the row of a scope.
  [[nodiscard]] double number(const std::string& scope, const std::string& key) const {
    simdjson::dom::parser parser;
    for (const std::string& line : lines_of(suggest("json").output)) {
      simdjson::dom::object row;
      REQUIRE(parser.parse(line).get_object().get(row) == simdjson::SUCCESS);
      if (text_at(row, "scope") == scope) {
        return number_at(row, key).value_or(-1);
      }
    }
    return -1;
  }
};

TEST_CASE("the wait of healthy ranks for one that expired is not counted") {
  JobWithHang job;
  job.end_worker(10, "exchange", {5.1});
  job.end_worker(11, "exchange", {0.5, 5.1});
  CHECK(job.number("exchange", "waits_left_out") == 2);
  CHECK(job.number("exchange", "count") == 399);
  CHECK(job.number("exchange", "longest_s") == doctest::Approx(0.5).epsilon(1.0 / 16));
  const std::string text =
      "exchange: 2 scopes are left out: they were open when another worker of their job expired\n";
  CHECK(contains(job.suggest().output, "\n\n" + text));
  CHECK(contains(job.suggest("toml").output,
                 "\n# 2 scopes are left out: they were open when another worker of their job "
                 "expired\n"));
}

TEST_CASE("the wait of a worker of another job is counted") {
  JobWithHang job;
  job.end_worker(13, "sync", {5.1});
  CHECK(job.number("sync", "waits_left_out") == 0);
  CHECK(job.number("sync", "longest_s") == 5.1);
}

TEST_CASE("workers without a job id and a rank do not wait for each other") {
  JobWithHang job;
  job.hung.pid = 20;
  job.hung.rank.reset();
  job.hung.job.clear();
  job.other = job.hung;
  job.other.pid = 21;
  job.other.scope = "serve";
  add_expiry(job.log, "x-2", "x-i2", job.hung);
  add_incident(job.log, 15.0002, "x-i2", {job.hung, job.other});
  job.end_worker(21, "serve", {300});
  CHECK(job.number("serve", "waits_left_out") == 0);
  CHECK(job.number("serve", "longest_s") == 300);
}

TEST_CASE("a kill with the id of a warning is no kill of an expiry") {
  JobWithHang job;
  job.log.add("warned", 16 * kSecondUs, R"(,"pid":10,"id":"x-w1","scope":"exchange")");
  job.log.add("killed", 17 * kSecondUs, R"(,"pid":10,"id":"x-w1","verdict":"dead")");
  job.log.add("released_late", 17 * kSecondUs, R"(,"pid":10,"id":"x-w1","late_ms":100)");
  job.end_worker(10, "exchange", {});
  const std::string output = job.suggest().output;
  CHECK(contains(output, "exchange: 1 had a warning\n"));
}

TEST_CASE("the wait for a worker that was slow and no more is counted") {
  JobWithHang job;
  job.log.add("killed", 15 * kSecondUs + 200, R"(,"pid":12,"id":"x-1","verdict":"spared")");
  job.log.add("released_late", 15 * kSecondUs + 300, R"(,"pid":12,"id":"x-1","late_ms":100)");
  job.end_worker(10, "exchange", {5.1});
  CHECK(job.number("exchange", "waits_left_out") == 0);
  CHECK(job.number("exchange", "longest_s") == 5.1);
}

TEST_CASE("a worker that ended inside its wait has all its other scopes counted") {
  JobWithHang job;
  job.log.add("left_open", 15 * kSecondUs + 500,
              fmt::format(R"(,"pid":10,"scope":"exchange","acquired_mono_ns":{})",
                          job.log.mono_ns(10 * kSecondUs)));
  job.end_worker(10, "exchange", {8});
  CHECK(job.number("exchange", "waits_left_out") == 0);
  CHECK(job.number("exchange", "longest_s") == 8);
}

TEST_CASE("a wait that expired later is counted, and so is that of the next worker of the pid") {
  JobWithHang job;
  job.log.add("killed", 15 * kSecondUs + 200, R"(,"pid":12,"id":"x-1","verdict":"spared")");
  add_expiry(job.log, "x-2", "x-i2", job.first);
  job.log.add("killed", 20 * kSecondUs + 200, R"(,"pid":10,"id":"x-2","verdict":"spared")");
  job.end_worker(10, "exchange", {10.5});
  CHECK(job.number("exchange", "waits_left_out") == 0);
  job.end_worker(11, "exchange", {10.5});
  job.end_worker(11, "exchange", {10.5});
  CHECK(job.number("exchange", "waits_left_out") == 1);
}

TEST_CASE("a wait that two incidents list is left out once") {
  JobWithHang job;
  job.first.timeout_s = 30;
  job.second.timeout_s = 8;
  add_expiry(job.log, "x-2", "x-i2", job.second);
  add_incident(job.log, 18.0011, "x-i2", {job.hung, job.first, job.second});
  job.end_worker(10, "exchange", {8.5, 9.5});
  CHECK(job.number("exchange", "waits_left_out") == 1);
  CHECK(job.number("exchange", "longest_s") == 9.5);
}

TEST_CASE("wrong words of suggest are quoted") {
  const JobOfTwoHosts job;
  CHECK(contains(job.suggest({"--format", "yaml"}).errors, "'yaml': expected table, toml or json"));
  CHECK(
      contains(job.suggest({"--factor", "0.5"}).errors, "'0.5': expected a number from 1 to 1000"));
  CHECK(contains(job.suggest({"--floor", "soon"}).errors, "'soon'"));
}

TEST_CASE("a log that cannot be read is named, and the rest counts") {
  const JobOfTwoHosts job;
  const Ran ran = job.suggest({job.folder.path("none.jsonl")});
  CHECK(ran.code == 1);
  CHECK(contains(ran.errors, "none.jsonl"));
  CHECK(contains(ran.output, "forward"));
}

TEST_CASE("where no log can be read, suggest says so and prints nothing else") {
  const TempFolder folder;
  const std::string none = folder.path("none");
  const std::string empty = folder.path("");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{none}, {empty}, {"--dir", none}, {none, "--format", "toml"}}) {
    std::vector<std::string> command{"suggest"};
    command.insert(command.end(), words.begin(), words.end());
    const Ran ran = run_command(command);
    CHECK(ran.code == 1);
    CHECK(ran.output.empty());
    CHECK(lines_of(ran.errors).size() == 1);
    CHECK(contains(ran.errors, folder.path()));
  }
}

}  // namespace
}  // namespace filetimer::cli
