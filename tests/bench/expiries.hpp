// Lets workers expire under one or several killers in turn, and observes each death through a
// pidfd. A killer is a Subject: timer_server, PyTorch's server, or a bare loop that only wakes at
// the deadline and sends the signal.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "tests/bench/processes.hpp"
#include "tests/bench/report.hpp"
#include "tests/bench/server_under_test.hpp"

namespace filetimer::bench {

// One point in time on both clocks. `unix_s` is the value on the wire, and decides whether a kill
// is early.
struct Deadline {
  Instant mono;
  double unix_s = 0;
};

// What kills the workers.
struct Subject {
  std::string name;
  // Requests that `worker` is killed at `deadline`.
  std::function<void(pid_t worker, const Deadline& deadline)> arm;
  // Milliseconds from the deadline to the death, as the bench observed it.
  Samples deaths{};
};

Subject subject_of(const std::string& name, const ServerUnderTest& server);
// Opens, writes and closes the pipe for each request, as PyTorch's client does, because its server
// does not judge while a writer holds the pipe open.
Subject torch_subject(const std::string& fifo);

// A process with an epoll loop of timerfd, clock and pidfd_send_signal only. With a file, also
// appends a record and calls fdatasync before the signal.
class BareSubject : public Subject {
 public:
  enum class Scheduling { kOrdinary, kRealtime };
  explicit BareSubject(Scheduling scheduling = Scheduling::kOrdinary,
                       const std::string& record_file = {});
  BareSubject(const BareSubject&) = delete;
  BareSubject& operator=(const BareSubject&) = delete;
  // Returns the milliseconds from deadline to signal of all requests so far. Called once.
  Samples signals();

 private:
  Pipe orders_;
  Pipe results_;
  std::size_t armed_ = 0;
  Child child_;
};

struct ExpiryPlan {
  int count = 0;                         // for each subject
  std::chrono::microseconds lead;        // from the request to its deadline
  std::chrono::microseconds spacing{0};  // from one request to the next at least
  std::size_t at_once = 1;               // workers that wait for their deadlines at a time
};

// Measures the subjects in turn. A worker that dies before its deadline is a fault.
void run_expiries(const std::vector<Subject*>& subjects, const ExpiryPlan& plan, Report& report);

// Stops the server, and returns the milliseconds from deadline to signal in its log. A signal
// before its deadline is a fault.
Samples logged_signals(ServerUnderTest& server, Report& report);

}  // namespace filetimer::bench
