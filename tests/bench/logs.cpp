// The speed of `timer_client log` on a long log, beside a Python loop over its lines, and of
// `timer_client report` on a hang of 1,024 ranks. The logs are generated: incidents of eight ranks
// and of a whole job, with all records that servers write about them.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/duration_buckets.hpp"
#include "tests/bench/processes.hpp"
#include "tests/bench/samples.hpp"
#include "tests/bench/sections.hpp"

namespace filetimer::bench {
namespace {

constexpr double kTargetJson = 5;  // times faster than Python
constexpr double kTargetTable = 2.5;
constexpr double kTargetSuggest = 0.5;  // of the speed of log --json
constexpr int kBucketsSeen = 24;        // of the durations of one scope name
constexpr int kRanksLogged = 8;
constexpr int kHostLogged = 7;
constexpr int kHangHosts = 64;
constexpr int kHangRanks = 16;  // of each host
constexpr int kHungRank = 17;   // of the job
constexpr int kEndedLogged = 15;
constexpr int kThreadsSeen = 6;
constexpr const char* kPythonLoop =
    "import json, sys\n"
    "with open(sys.argv[1], 'rb') as log:\n"
    "    for line in log:\n"
    "        json.loads(line)\n";

// The common values of the records of one incident on one host.
class Incident {
 public:
  Incident(int number, int host, int ranks) : number_(number), host_(host), ranks_(ranks) {}

  // Returns the records of an incident: rank 0 hangs and is killed, the others wait for it.
  [[nodiscard]] std::string records() const {
    std::string text;
    text += record("warned", 0,
                   worker(0) + R"(,"scope":"load","timeout_s":30,"elapsed_s":24.000031,)"
                               R"("reason":"soft deadline","doing":"waiting in futex_wait_queue")");
    text += expired(0, 0) + incident(0, {0}, {}) + evidence(0, 0) + killed(0, 0);
    for (int rank = 1; rank < ranks_; ++rank) {
      text += record("left_open", 16'500'000 + rank,
                     fmt::format(R"({},"scope":"exchange","timeout_s":30,"elapsed_s":39.912004,)"
                                 R"("acquired_mono_ns":{},"reason":"the worker exited")",
                                 worker(rank), mono_ns(-23'400'000)));
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      text += record("worker_ended", 17'000'000 + rank,
                     fmt::format(R"({},"dir":"/dev/shm/filetimer-1000","scopes":[{},{},{}],)"
                                 R"("omitted":0)",
                                 worker(rank), statistics("exchange"), statistics("forward"),
                                 statistics("load")));
    }
    return text;
  }

  // Returns the records of this host of a hang in which all ranks of a job expire. Rank `of_job` is
  // in `load`; the others entered `exchange` 0.6 s later and wait for it there.
  [[nodiscard]] std::string records_of_a_whole_job(int of_job) const {
    const int hung = of_job - first_rank();
    const bool is_here = hung >= 0 && hung < ranks_;
    std::vector<int> others;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != hung) {
        others.push_back(rank);
      }
    }
    std::string text;
    if (is_here) {
      text += expired(hung, hung) + incident(hung, {hung}, ended_scopes()) + evidence(hung, hung);
    }
    for (const int rank : others) {
      text += expired(rank, hung);
    }
    if (!is_here) {
      text += incident(hung, others, ended_scopes());
    }
    for (const int rank : others) {
      text += evidence(rank, hung);
    }
    text += is_here ? killed(hung, hung) : "";
    for (const int rank : others) {
      text += killed(rank, hung);
    }
    return text;
  }

 private:
  [[nodiscard]] int first_rank() const { return host_ * ranks_; }
  [[nodiscard]] int pid(int rank) const { return 4711 + first_rank() + rank; }
  [[nodiscard]] std::string id() const { return fmt::format("k{:05x}", number_); }
  // Incidents are three minutes apart.
  [[nodiscard]] std::int64_t mono_ns(std::int64_t us) const {
    return 1'000'000'000'000 + (number_ * 180'000'000LL + us) * 1000;
  }
  [[nodiscard]] std::string record(const std::string& event, std::int64_t us,
                                   const std::string& fields) const {
    constexpr std::int64_t kBegin = 1'795'230'000;  // a night in November 2026
    return fmt::format(R"({{"schema":1,"event":"{}","time":"{}","mono_ns":{},"host":"node{:02}",)"
                       R"("boot_id":"5d2c0a1e-7f57-4c4e-9a57-0b8f8f0c2a11","server_pid":24497,{}}})"
                       "\n",
                       event, rfc3339(kBegin * 1'000'000'000 + mono_ns(us)), mono_ns(us), host_,
                       fields);
  }
  [[nodiscard]] std::string worker(int rank) const {
    return fmt::format(R"("pid":{},"start_time":{},"uid":1000,"comm":"python3",)"
                       R"("cmdline":"python3 train.py --data /scratch/tokens --batch 64",)"
                       R"("rank":{},"local_rank":{},"job_id":"8812","step_id":"0")",
                       pid(rank), 1'185'022 + rank, first_rank() + rank, rank);
  }
  static std::string statistics(const char* name) {
    std::string histogram;
    for (std::size_t i = 0; i < kBucketsSeen; ++i) {
      histogram += fmt::format("{}[{},{}]", i == 0 ? "" : ",", bucket_begin(120 + i), 1 + i * 7);
    }
    return fmt::format(
        R"({{"scope":"{}","count":1956,"total_s":63.112093817,"longest_s":0.118293887,)"
        R"("last_s":0.031002931,"smallest_margin_s":29.881706113,"first_s":0.118293887,)"
        R"("timeout_s":30,"histogram_ns":[{}]}})",
        name, histogram);
  }
  [[nodiscard]] std::string scope(int rank, const char* name, double elapsed_s,
                                  int timeout_s) const {
    return fmt::format(R"({{"pid":{},"rank":{},"comm":"python3","job_id":"8812","scope":"{}",)"
                       R"("elapsed_s":{:.6f},"timeout_s":{},"remaining_s":{:.6f},"tid":{}}})",
                       pid(rank), first_rank() + rank, name, elapsed_s, timeout_s,
                       timeout_s - elapsed_s, pid(rank));
  }
  static const char* scope_of(int rank, int hung) { return rank == hung ? "load" : "exchange"; }
  // Microseconds after the soft deadline of the rank that hangs.
  static std::int64_t entered_us(int rank, int hung) {
    return rank == hung ? -24'000'000 : -23'400'000;
  }
  static std::int64_t deadline_us(int rank, int hung) {
    return entered_us(rank, hung) + 30'000'000;
  }
  [[nodiscard]] std::string open_scopes(int rank, int hung, std::int64_t at_us) const {
    constexpr std::int64_t kEpochUs = -145'200'000;
    const auto since = [&](std::int64_t us) { return static_cast<double>(at_us - us) / 1e6; };
    return scope(rank, "epoch", since(kEpochUs), 600) + "," +
           scope(rank, scope_of(rank, hung), since(entered_us(rank, hung)), 30);
  }
  [[nodiscard]] std::string ended_scopes() const {
    std::string ended;
    for (int rank = 0; rank < ranks_; ++rank) {
      ended += fmt::format(R"({}{{"pid":{},"rank":{},"comm":"python3","scope":"forward","ended":[)",
                           rank == 0 ? "" : ",", pid(rank), first_rank() + rank);
      for (int step = 0; step < kEndedLogged; ++step) {
        ended += fmt::format("{}[{:.6f},0.250114]", step == 0 ? "" : ",",
                             30.3 + 0.31 * (kEndedLogged - step));
      }
      ended += "]}";
    }
    return fmt::format(R"(,"ended_scopes":[{}],"ended_omitted":0)", ended);
  }
  [[nodiscard]] std::string expired(int rank, int hung) const {
    const std::int64_t at_us = deadline_us(rank, hung);
    return record("expired", at_us + rank,
                  fmt::format(R"({},"id":"{}-{}","incident":"{}-i1","scope":"{}","timeout_s":30,)"
                              R"("elapsed_s":30.000113,"overdue_ms":0.113000,)"
                              R"("acquired_mono_ns":{},"deadline_mono_ns":{},"tid":{},)"
                              R"("signal":15,"grace_s":10,"dir":"/dev/shm/filetimer-1000",)"
                              R"("open_scopes":[{}],"omitted":0)",
                              worker(rank), id(), rank + 1, id(), scope_of(rank, hung),
                              mono_ns(entered_us(rank, hung)), mono_ns(at_us), pid(rank),
                              open_scopes(rank, hung, at_us)));
  }
  [[nodiscard]] std::string incident(int hung, const std::vector<int>& expiries,
                                     const std::string& more) const {
    const std::int64_t at_us = deadline_us(expiries.front(), hung) + 100;
    std::string scopes;
    for (int rank = 0; rank < ranks_; ++rank) {
      scopes += (rank == 0 ? "" : ",") + open_scopes(rank, hung, at_us);
    }
    std::string ids;
    for (const int rank : expiries) {
      ids += fmt::format(R"({}"{}-{}")", ids.empty() ? "" : ",", id(), rank + 1);
    }
    return record("incident", at_us,
                  fmt::format(R"("incident":"{}-i1","expired":[{}],"workers":{},)"
                              R"("open_scopes":[{}],"in_no_scope":[],"omitted":0{})",
                              id(), ids, ranks_, scopes, more));
  }
  [[nodiscard]] std::string killed(int rank, int hung) const {
    const std::int64_t at_us = deadline_us(rank, hung);
    return record(
        "killed", at_us + 10'020'000 + rank,
        fmt::format(R"({0},"id":"{1}-{2}","incident":"{1}-i1","scope":"{3}","verdict":"dead",)"
                    R"("signals":[{{"signal":15,"name":"SIGTERM","mono_ns":{4},"pids":[{6}]}},)"
                    R"({{"signal":9,"name":"SIGKILL","mono_ns":{5},"pids":[{6}]}}],)"
                    R"("dead_after_ms":10004.112000,"cancelled":["epoch"])",
                    worker(rank), id(), rank + 1, scope_of(rank, hung), mono_ns(at_us + 10'000),
                    mono_ns(at_us + 10'011'000), pid(rank)));
  }
  [[nodiscard]] std::string evidence(int rank, int hung) const {
    std::string threads;
    for (int thread = 0; thread < kThreadsSeen; ++thread) {
      threads += fmt::format(
          R"json({}{{"tid":{},"comm":"python3","state":"S","wchan":"futex_wait_queue",)json"
          R"json("syscall":"futex","cpu_s":{}.25,"doing":"waiting in futex_wait_queue",)json"
          R"json("stack":["futex_wait_queue+0x60/0x90","futex_wait+0x185/0x270",)json"
          R"json("do_futex+0x106/0x1b0","__x64_sys_futex+0x8e/0x1d0","do_syscall_64+0x5b/0xc0"],)json"
          R"json("native_stack":["pthread_cond_wait (libc.so.6)","c10::wait (libtorch_cpu.so)",)json"
          R"json("PyEval_EvalFrame (python3.11)","Py_RunMain (python3.11)"]}})json",
          thread == 0 ? "" : ",", pid(rank) + thread, thread);
    }
    return record(
        "evidence", deadline_us(rank, hung) + 9000 + rank,
        fmt::format(
            R"({},"id":"{}-{}","state":"S","state_name":"sleeping","wchan":"futex_wait_queue",)"
            R"("syscall":"futex","cpu_user_s":812.4,"cpu_system_s":20.1,"rss_bytes":2621440000,)"
            R"("threads":[{}],"threads_omitted":0,"python_threads":[{{"ident":"0x7f01","name":)"
            R"("MainThread","frames":["train.py:112 in load","train.py:140 in <module>"]}}],)"
            R"("children":[],"devices":["/dev/nvidia0"],"gathered_ms":8.9)",
            worker(rank), id(), rank + 1, threads));
  }

  int number_;
  int host_;
  int ranks_;
};

double seconds_of(const std::vector<std::string>& argv, const std::string& out, Report& report) {
  const UniqueFd file(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const Instant begin = Instant::now();
  Child child = spawn(argv, -1, file.get(), -1);
  const int status = child.wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    report.fault(fmt::format("'{}' failed over the log", argv[0]));
  }
  return std::chrono::duration<double>(Instant::now() - begin).count();
}

std::size_t lines_in(const std::string& path) {
  std::ifstream file(path);
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
}

// Both read each record. The output of `log` goes to /dev/null.
void measure_suggest(const std::string& path, double megabytes, int rounds, Report& report) {
  report.section(fmt::format("timeouts from a log of {:.0f} MB", megabytes),
                 "timer_client log --json");
  Samples suggest_rates;
  Samples json_rates;
  for (int round = 0; round < rounds; ++round) {
    suggest_rates.add(megabytes /
                      seconds_of({FILETIMER_CLIENT, "suggest", path}, "/dev/null", report));
    json_rates.add(megabytes /
                   seconds_of({FILETIMER_CLIENT, "log", "--json", path}, "/dev/null", report));
  }
  report.add({.measure = "timer_client suggest",
              .unit = "MB/s",
              .value = suggest_rates.median(),
              .base = json_rates.median(),
              .target = Target::ratio_at_least(kTargetSuggest)});
}

// Measures `timer_client report` on a hang of a whole job, from the logs of its hosts, which also
// have older incidents.
void measure_report(const Plan& plan, Report& report) {
  const std::string folder = plan.memory_dir + "/logs-of-hosts";
  const std::string page = plan.memory_dir + "/hang.html";
  std::filesystem::create_directory(folder);
  std::size_t bytes = 0;
  for (int host = 0; host < kHangHosts; ++host) {
    const std::string path = fmt::format("{}/node{:02}.jsonl", folder, host);
    std::ofstream log(path);
    for (int number = 0; number < plan.older_incidents; ++number) {
      log << Incident(number, host, kHangRanks).records();
    }
    log << Incident(plan.older_incidents, host, kHangRanks).records_of_a_whole_job(kHungRank);
    log.close();
    bytes += std::filesystem::file_size(path);
  }
  const std::vector<std::string> draw{FILETIMER_CLIENT, "report", "last", folder, "-o", page};
  const std::vector<std::string> json{FILETIMER_CLIENT, "log", "--json", folder};
  seconds_of(draw, "/dev/null", report);
  const auto html_bytes = static_cast<double>(std::filesystem::file_size(page));
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), {}};
  const int ranks = kHangHosts * kHangRanks;
  if (html.find(fmt::format("<summary>{} workers</summary>", ranks)) == html.npos ||
      html.find(fmt::format("The odd one out: rank {}, in `load`.", kHungRank)) == html.npos) {
    report.fault("report does not show all ranks and the one that hung");
  }
  Samples draw_ms;
  Samples json_ms;
  for (int round = 0; round < plan.log_rounds; ++round) {
    draw_ms.add(seconds_of(draw, "/dev/null", report) * 1e3);
    json_ms.add(seconds_of(json, "/dev/null", report) * 1e3);
  }
  report.section(fmt::format("a hang of {} ranks, {} logs of {:.0f} MB in all", ranks, kHangHosts,
                             static_cast<double>(bytes) / 1e6),
                 "timer_client log --json of the same files");
  report.add({.measure = "timer_client report",
              .unit = "ms",
              .value = draw_ms.median(),
              .base = json_ms.median()});
  report.add({.measure = "its HTML file", .unit = "KiB", .value = html_bytes / 1024});
  std::filesystem::remove_all(folder);
  std::filesystem::remove(page);
}

}  // namespace

void measure_logs(const Plan& plan, Report& report) {
  const std::string path = plan.memory_dir + "/long.jsonl";
  const std::string printed = plan.memory_dir + "/printed";
  std::size_t incidents = 0;
  std::size_t bytes = 0;
  std::ofstream log(path);
  for (; bytes < static_cast<std::size_t>(plan.log_bytes); ++incidents) {
    const std::string records =
        Incident(static_cast<int>(incidents), kHostLogged, kRanksLogged).records();
    log << records;
    bytes += records.size();
  }
  log.close();
  const std::vector<std::string> json{FILETIMER_CLIENT, "log",     "--json",
                                      "--event",        "expired", path};
  const std::vector<std::string> table{FILETIMER_CLIENT, "log", path};
  seconds_of(json, printed, report);
  if (lines_in(printed) != incidents) {
    report.fault("log --json did not print each expiry once");
  }
  seconds_of(table, printed, report);
  if (lines_in(printed) != incidents * (3 + kRanksLogged - 1) + 1) {
    report.fault("log did not print each record once");
  }
  const double megabytes = static_cast<double>(bytes) / 1e6;
  report.section(fmt::format("reading a log of {:.0f} MB", megabytes),
                 "json.loads of each line in Python");
  Samples json_rates;
  Samples table_rates;
  Samples python_rates;
  for (int round = 0; round < plan.log_rounds; ++round) {
    json_rates.add(megabytes / seconds_of(json, "/dev/null", report));
    table_rates.add(megabytes / seconds_of(table, "/dev/null", report));
#ifdef FILETIMER_BENCH_PYTHON
    python_rates.add(megabytes / seconds_of({FILETIMER_BENCH_PYTHON, "-c", kPythonLoop, path},
                                            "/dev/null", report));
#endif
  }
  const auto row = [&](const char* measure, const Samples& rates, double target) {
    report.add({.measure = measure,
                .unit = "MB/s",
                .value = rates.median(),
                .base = python_rates.empty() ? std::optional<double>{} : python_rates.median(),
                .target = Target::ratio_at_least(target)});
  };
  row("timer_client log --json --event expired", json_rates, kTargetJson);
  row("timer_client log, a table", table_rates, kTargetTable);
  measure_suggest(path, megabytes, plan.log_rounds, report);
  std::filesystem::remove(path);
  std::filesystem::remove(printed);
  measure_report(plan, report);
}

}  // namespace filetimer::bench
