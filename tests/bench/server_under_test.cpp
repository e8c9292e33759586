// SPDX-License-Identifier: MIT
#include "tests/bench/server_under_test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <simdjson.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <unordered_map>

#include "common/clock.hpp"

namespace filetimer::bench {
namespace {

// The poll interval of a pipe that is being drained; far below the measured times.
constexpr std::chrono::microseconds kDrainLook{50};

std::vector<std::string> command_line(const std::string& program, const std::string& dir,
                                      const std::string& log,
                                      const std::vector<std::string>& more_args) {
  std::vector<std::string> argv{program, "--dir", dir, "--log", log};
  argv.insert(argv.end(), more_args.begin(), more_args.end());
  return argv;
}

// Calls `visit` with every record of the log.
template <class Visit>
void for_each_record(const std::string& path, Visit&& visit) {
  simdjson::dom::parser parser;
  simdjson::dom::document_stream records;
  // A record may have over a megabyte.
  const auto error = parser.load_many(path, std::size_t{16} << 20).get(records);
  if (error) {
    fail(fmt::format("cannot read '{}': {}", path, simdjson::error_message(error)));
  }
  for (auto record : records) {
    simdjson::dom::element element;
    if (const auto bad = record.get(element)) {
      fail(fmt::format("'{}' holds a bad line: {}", path, simdjson::error_message(bad)));
    }
    visit(element);
  }
}

template <class Value = std::string_view>
Value get(simdjson::dom::element record, const char* key) {
  Value value{};
  if (record[key].get(value)) {
    fail(fmt::format("a record lacks '{}'", key));
  }
  return value;
}

}  // namespace

std::string request_line(pid_t pid, std::string_view scope, double expiration_time, int signal) {
  return fmt::format(
      R"({{"version": 1, "pid": {}, "scope_id": "{}", "expiration_time": {}, "signal": {}}})"
      "\n",
      pid, scope, expiration_time, signal);
}

double unix_in(std::chrono::nanoseconds lead) {
  return static_cast<double>(ClockReading::now().wall_ns + lead.count()) / 1e9;
}

ServerUnderTest::ServerUnderTest(const std::string& program, const std::string& dir,
                                 const std::string& log, const std::vector<std::string>& more_args)
    : log_(log.empty() ? dir + "/expired.jsonl" : log),
      err_((::mkdir(dir.c_str(), 0700),
            ::open((dir + "/stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600))),
      out_(make_pipe()),
      child_(spawn(command_line(program, dir, log_, more_args), -1, out_.write.get(), err_.get())) {
  out_.write.reset();  // so that the exit of the server ends the wait for its line
  const std::string ready = read_line(out_.read.get());
  if (!ready.starts_with("ready ")) {
    fail(fmt::format("expected the ready line, got '{}'", ready));
  }
  fifo_ = dir + "/requests";
  pipe_.reset(::open(fifo_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!pipe_) {
    fail_errno("cannot open the server's pipe");
  }
}

void ServerUnderTest::settle() const {
  // A pipe keeps its order, so all earlier requests were read when this worker is dead.
  Child marker = fork_idle();
  send(request_line(marker.pid(), "marker", unix_in(std::chrono::seconds(0))));
  marker.wait();
}

double ServerUnderTest::resident_at_rest() const {
  settle();
  wait_until_quiet(pid());
  return static_cast<double>(resident_bytes(pid()));
}

LastWords ServerUnderTest::stop() {
  ::kill(child_.pid(), SIGTERM);
  const int status = child_.wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(fmt::format("the server ended with wait status {}", status));
  }
  LastWords words;
  for_each_record(log_, [&](simdjson::dom::element record) {
    if (get(record, "event") == "server_stopped") {
      words.requests = get<std::uint64_t>(record, "requests");
      words.rejected = get<std::uint64_t>(record, "rejected");
    }
  });
  return words;
}

std::vector<LoggedKill> ServerUnderTest::kills() const {
  std::unordered_map<std::string, LoggedKill> expired;
  std::vector<LoggedKill> kills;
  for_each_record(log_, [&](simdjson::dom::element record) {
    simdjson::dom::element first_signal;
    if (get(record, "event") == "expired") {
      expired[std::string(get(record, "id"))] = {get<std::int64_t>(record, "deadline_mono_ns"), 0};
    } else if (get(record, "event") == "killed" && !record["signals"].at(0).get(first_signal)) {
      LoggedKill kill = expired[std::string(get(record, "id"))];
      kill.signal_ns = get<std::int64_t>(first_signal, "mono_ns");
      kills.push_back(kill);
    }
  });
  return kills;
}

std::vector<double> ServerUnderTest::verdict_delays(std::string_view scope) const {
  std::vector<double> delays;
  for_each_record(log_, [&](simdjson::dom::element record) {
    double ms = 0;
    if (get(record, "event") == "expired" && get(record, "scope") == scope &&
        record["overdue_ms"].get(ms) == simdjson::SUCCESS) {
      delays.push_back(ms);
    }
  });
  return delays;
}

void wait_until_drained(int fd) {
  for (std::chrono::microseconds waited{0}; waited < kBound; waited += kDrainLook) {
    int held = 0;
    if (::ioctl(fd, FIONREAD, &held) != 0) {
      fail_errno("cannot ask a pipe what it holds");
    }
    if (held == 0) {
      return;
    }
    sleep_for(kDrainLook);
  }
  fail("a pipe was not drained");
}

}  // namespace filetimer::bench
