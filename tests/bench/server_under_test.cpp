// SPDX-License-Identifier: MIT
#include "tests/bench/server_under_test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <unordered_map>

#include "common/clock.hpp"
#include "common/json_fields.hpp"

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
  std::ifstream log(path);
  if (!log) {
    fail(fmt::format("cannot read '{}'", path));
  }
  for (std::string line; std::getline(log, line);) {
    simdjson::dom::object record;
    if (const auto bad = parser.parse(line).get_object().get(record)) {
      fail(fmt::format("'{}' holds a bad line: {}", path, simdjson::error_message(bad)));
    }
    visit(record);
  }
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
  for_each_record(log_, [&](simdjson::dom::object record) {
    if (text_at(record, "event") == "server_stopped") {
      words = {integer_at(record, "requests").value(), integer_at(record, "rejected").value()};
    }
  });
  return words;
}

std::vector<LoggedKill> ServerUnderTest::kills() const {
  std::unordered_map<std::string, LoggedKill> expired;
  std::vector<LoggedKill> kills;
  for_each_record(log_, [&](simdjson::dom::object record) {
    const auto signals = objects_at(record, "signals");
    if (text_at(record, "event") == "expired") {
      expired[text_at(record, "id")].deadline_ns = integer_at(record, "deadline_mono_ns").value();
    } else if (text_at(record, "event") == "killed" && !signals.empty()) {
      kills.push_back(expired[text_at(record, "id")]);
      kills.back().signal_ns = integer_at(signals.front(), "mono_ns").value();
    }
  });
  return kills;
}

std::vector<double> ServerUnderTest::verdict_delays(std::string_view scope) const {
  std::vector<double> delays;
  for_each_record(log_, [&](simdjson::dom::object record) {
    if (text_at(record, "event") == "expired" && text_at(record, "scope") == scope) {
      delays.push_back(number_at(record, "overdue_ms").value());
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
