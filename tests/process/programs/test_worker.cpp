// A small program that the process tests watch, kill and run as COMMAND, with one mode for each
// run. Prints "ready" when the mode is set up. No process of it outlives a test: it dies with its
// parent or, if it must not, by an alarm.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using Arguments = std::vector<std::string>;

constexpr unsigned kLastResortSeconds = 100;

[[noreturn]] void wait_for_ever() {
  for (;;) {
    ::pause();
  }
}

void say(const std::string& line) {
  const std::string bytes = line + "\n";  // one write: several processes may share the output
  if (::write(STDOUT_FILENO, bytes.data(), bytes.size()) < 0) {
    ::_exit(90);
  }
}

int block(const Arguments&) {
  say("ready");
  wait_for_ever();
}

// A fork that outlives its parent, but no test.
template <class Body>
pid_t fork_off(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(kLastResortSeconds);
    body();
    wait_for_ever();
  }
  return pid;
}

// An orphan that does this, from a parent that has ended.
template <class Body>
void fork_orphan(Body&& body) {
  const pid_t between = ::fork();
  if (between == 0) {
    fork_off([&, parent = ::getpid()] {
      while (::getppid() == parent) {
        ::sched_yield();
      }
      body();
    });
    ::_exit(0);
  }
  ::waitpid(between, nullptr, 0);
}

// A worker with descendants in its own and in other process groups and sessions.
int tree(const Arguments&) {
  const pid_t child = fork_off([] {});
  const pid_t group = fork_off([] {});
  ::setpgid(group, group);
  fork_off([&] {
    ::setsid();
    fork_off([&, session = ::getpid()] {
      ::setsid();
      say("ready child=" + std::to_string(child) + " group=" + std::to_string(group) +
          " session=" + std::to_string(session) + " grandchild=" + std::to_string(::getpid()));
    });
  });
  wait_for_ever();
}

// UID: a worker with two children, of which one is that user's.
int foreign_child(const Arguments& args) {
  const auto user = static_cast<uid_t>(std::stoul(args.at(0)));
  const pid_t own = fork_off([] {});
  fork_off([&] {
    if (::setuid(user) != 0) {
      ::_exit(97);
    }
    say("ready own=" + std::to_string(own) + " foreign=" + std::to_string(::getpid()));
  });
  wait_for_ever();
}

// COUNT: a worker with so many children, all of which ignore SIGTERM.
int family(const Arguments& args) {
  std::signal(SIGTERM, SIG_IGN);
  for (int i = 0; i < std::stoi(args.at(0)); ++i) {
    fork_off([] { ::prctl(PR_SET_PDEATHSIG, SIGKILL); });
  }
  say("ready");
  wait_for_ever();
}

// FIFO: starts children as fast as it can, each of which waits with the FIFO open.
int fork_storm(const Arguments& args) {
  constexpr int kMaxChildren = 3000;
  if (::open(args.at(0).c_str(), O_WRONLY) < 0) {
    return 92;
  }
  say("ready");
  for (int i = 0; i < kMaxChildren; ++i) {
    fork_off([] {});
  }
  wait_for_ever();
}

// COUNT: as COMMAND, ignores SIGTERM, and has a worker that makes orphans: their parent has ended
// when they report their pids.
int orphans(const Arguments& args) {
  std::signal(SIGTERM, SIG_IGN);
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < std::stoi(args.at(0)); ++i) {
      fork_orphan([] { say("orphan=" + std::to_string(::getpid())); });
    }
    wait_for_ever();
  }
  say("pid=" + std::to_string(::getpid()));
  wait_for_ever();
}

// Has a child that leads a session, in which a process is that has lost its parent.
int session_leader(const Arguments&) {
  fork_off([] {
    ::setsid();
    fork_orphan([] {
      say("ready leader=" + std::to_string(::getsid(0)) + " lost=" + std::to_string(::getpid()));
    });
  });
  wait_for_ever();
}

// Prints what a process inherits besides its environment.
int inherited(const Arguments&) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk") || line.starts_with("SigIgn") || line.starts_with("SigCgt")) {
      // Without 32 and 33: they are glibc's own, and its posix_spawn() leaves them ignored.
      const unsigned long long set = std::stoull(line.substr(7), nullptr, 16);
      say(line.substr(0, 7) + std::to_string(set & ~(3ULL << 31)));
    }
  }
  std::string oom;
  std::ifstream("/proc/self/oom_score_adj") >> oom;
  say("oom_score_adj " + oom);
  say("policy " + std::to_string(::sched_getscheduler(0)));
  say("nice " + std::to_string(::getpriority(PRIO_PROCESS, 0)));
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  say("files " + std::to_string(files.rlim_cur) + " " + std::to_string(files.rlim_max));
  int open_files = 0;
  for (int fd = 3; fd < 256; ++fd) {
    open_files += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  }
  say("open files " + std::to_string(open_files));
  return 0;
}

// Prints the number of every signal it gets, and survives all that it can catch.
int catch_signals(const Arguments&) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT}) {
    sigaddset(&set, number);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  say("ready pid=" + std::to_string(::getpid()));
  for (;;) {
    int number = 0;
    if (::sigwait(&set, &number) == 0) {
      say("signal " + std::to_string(number));
    }
  }
}

std::string request(const std::string& scope, double from_now, int signal) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return "{\"version\": 1, \"pid\": " + std::to_string(::getpid()) + ", \"scope_id\": \"" + scope +
         "\", \"expiration_time\": " + (from_now < 0 ? "-1" : std::to_string(now + from_now)) +
         ", \"signal\": " + std::to_string(signal) + "}\n";
}

// FIFO: opens and closes a scope as fast as the pipe takes it, until its standard input ends.
// Prints the number of lines.
int flood(const Arguments& args) {
  const int fd = ::open(args.at(0).c_str(), O_WRONLY);  // blocks where there is no room
  const std::string lines[] = {request("flood", 3600, SIGKILL), request("flood", -1, 0)};
  say("ready");
  long written = 0;
  for (pollfd input{STDIN_FILENO, POLLIN, 0}; ::poll(&input, 1, 0) == 0;) {
    for (const std::string& line : lines) {
      if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
        return 94;
      }
      ++written;
    }
  }
  say(std::to_string(written));
  wait_for_ever();
}

// SCOPE SECONDS: as COMMAND, opens a scope on the passed pipe and hangs in it.
int hang(const Arguments& args) {
  const char* const path = std::getenv("TORCHELASTIC_TIMER_FILE");
  // As PyTorch's client: for this line alone, and the pipe must have a reader.
  const int fd = path == nullptr ? -1 : ::open(path, O_WRONLY | O_NONBLOCK);
  const std::string line = request(args.at(0), std::stod(args.at(1)), SIGKILL);
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return 95;
  }
  ::close(fd);
  wait_for_ever();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(const Arguments&)> modes{{"block", block},
                                                               {"ignore-term", block},
                                                               {"family", family},
                                                               {"session-leader", session_leader},
                                                               {"tree", tree},
                                                               {"foreign-child", foreign_child},
                                                               {"fork-storm", fork_storm},
                                                               {"ignore-term-tree", tree},
                                                               {"orphans", orphans},
                                                               {"inherited", inherited},
                                                               {"catch-signals", catch_signals},
                                                               {"flood", flood},
                                                               {"hang", hang}};
  const auto mode = argc > 1 ? modes.find(argv[1]) : modes.end();
  if (mode == modes.end()) {
    std::cerr << "test_worker: unknown mode\n";
    return 2;
  }
  if (mode->first.starts_with("ignore-term")) {
    std::signal(SIGTERM, SIG_IGN);  // which children inherit
  }
  // Without its parent (a killed test or a killed server) the process is of no use.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  try {
    return mode->second(Arguments(argv + 2, argv + argc));
  } catch (const std::exception& wrong) {
    std::cerr << "test_worker: " << wrong.what() << '\n';
    return 2;
  }
}
