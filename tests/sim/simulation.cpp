// SPDX-License-Identifier: MIT
#include "tests/sim/simulation.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/posix.hpp"
#include "tests/chaos/checker.hpp"
#include "tests/sim/model.hpp"

int timer_server_main(int argc, char** argv);  // main() of the server

namespace filetimer::sim {
namespace {

constexpr int kWorkers = 4;
constexpr pid_t kFirstPid = 1'000;
constexpr pid_t kFirstServerPid = 90'000;
// The history goes on without adversities for this long, so that every deadline and kill ends.
constexpr Nanos kQuiet = 40 * kSecond;
constexpr Nanos kBetween = 3 * kMs;  // operations, so that the checker can tell their times apart
constexpr Nanos kStop = 20 * kSecond;
constexpr Nanos kReleaseAfter = 50 * kMs;  // that a worker takes to act on a signal that it catches

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The signals that were sent to a server that is gone.
void forget_signals() {
  sigset_t pending;
  for (::sigpending(&pending); ::sigismember(&pending, SIGTERM) == 1; ::sigpending(&pending)) {
    int taken = 0;
    ::sigwait(&pending, &taken);
  }
}

class Simulation {
 public:
  Simulation(std::string dir, const std::set<std::string>& excused, bool is_verbose);
  std::vector<std::string> run(const Operations& operations);

 private:
  struct Made {
    std::string name;
    MadeProcess* process = nullptr;
    std::unique_ptr<Worker> client;
    int programs = 0;
  };

  void carry_out(const Operation& operation);
  void act(const Operation& operation);
  void set(int option, int value);
  void spawn(int index, bool reuses_pid);
  void open_on_page(int index, int scope, const Terms& terms);
  void open_by_line(int index, int scope, const Terms& terms);
  void end_scope(ModelScope& scope, End end);
  void end_scopes_of(const MadeProcess& process);
  ModelScope* open_scope(int index, int scope, bool on_page);
  void release(int index, int scope, bool on_page);
  void release_all(int index);
  void halt(int index, int how);
  void go(int index);
  void start_server();
  void stop_halt_of_server(Nanos when);
  void on_signal(MadeProcess& process, int signal);
  void on_caught(const MadeProcess& process);
  void on_server_end(int status);
  void lose(bool pages, bool lines, int index = -1);
  void remove(int what, int index);
  void fail(int call, int error);
  void note_odd_clock();
  void on_failure(Call call);
  void lose_unread_lines();
  void excuse();
  void ask(int what);
  void quiet();
  template <class... Args>
  void violation(fmt::format_string<Args...> text, Args&&... args) {
    model_.violations.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  // The lines of the history for the checker.
  int begin(std::string_view who, std::string_view op, std::string_view fields);
  void finish(std::string_view who, int n, std::string_view fields = "");

  Kernel kernel_;
  const std::string dir_;
  const std::string log_;
  const bool is_verbose_;
  Model model_;
  std::vector<std::string> arguments_;
  std::array<Made, kWorkers> workers_;
  chaos::History history_;
  MadeProcess* server_ = nullptr;
  pid_t next_pid_ = kFirstPid;
  int calls_ = 0;
  int keys_ = 0;
  int incarnations_ = 0;
  int servers_ = 0;
  bool has_lost_records_ = false;  // the server was killed while it could not write its log
  bool has_cut_pages_ = false;
  bool has_lost_lines_ = false;  // the server cannot save what it reads, until the next one
  bool may_end_ = false;         // the server was asked to end, or a call of its start failed
  std::vector<UniqueFd> replies_;
};

Simulation::Simulation(std::string dir, const std::set<std::string>& excused, bool is_verbose)
    : dir_(std::move(dir)), log_(dir_ + "/expired.jsonl"), is_verbose_(is_verbose) {
  model_.excused = excused;
  arguments_ = {"timer_server", "--dir",       dir_,
                "--evidence",   "none",        "--kill-wait",
                "5s",           "--log-level", is_verbose ? "debug" : "error"};
  kernel_.log_path = log_;
  kernel_.shows_messages = is_verbose;
  kernel_.on_signal = [this](MadeProcess& process, int signal) { on_signal(process, signal); };
  kernel_.on_caught = [this](MadeProcess& process, int) { on_caught(process); };
  kernel_.on_end = [this](MadeProcess& process) { end_scopes_of(process); };
  kernel_.on_failure = [this](int kind) { on_failure(static_cast<Call>(kind)); };
  kernel_.on_server_end = [this](int status) { on_server_end(status); };
  kernel_.owner_of_page = [this](ino_t page) {
    for (const Made& made : workers_) {
      if (made.client && made.client->holds_lock_of(page)) {
        return made.process->pid;
      }
    }
    return pid_t{0};
  };
}

int Simulation::begin(std::string_view who, std::string_view op, std::string_view fields) {
  history_.add_line("sim.history", fmt::format(R"({{"t":{},"who":"{}","n":{},"op":"{}"{}}})",
                                               kernel_.now, who, ++calls_, op, fields));
  return calls_;
}

void Simulation::finish(std::string_view who, int n, std::string_view fields) {
  history_.add_line("sim.history", fmt::format(R"({{"t":{},"who":"{}","n":{},"end":true{}}})",
                                               kernel_.now, who, n, fields));
}

std::vector<std::string> Simulation::run(const Operations& operations) {
  for (int i = 0; i < kWorkers; ++i) {
    spawn(i, false);
  }
  std::size_t next = 0;
  for (; next < operations.size() && operations[next].name == "set"; ++next) {
    act(operations[next]);
  }
  start_server();
  kernel_.run_until(kernel_.now + 10 * kMs);
  for (; next < operations.size() && !kernel_.has_spun; ++next) {
    carry_out(operations[next]);
    kernel_.run_until(kernel_.now + kBetween);
  }
  quiet();
  if (kernel_.has_spun) {
    violation("spins: the server has used the processor for a whole second");
  }
  judge(model_, log_);
  excuse();
  history_.add_log(log_);
  for (const chaos::Violation& found : chaos::check(history_)) {
    // Known: of a line that is read late the timeout is what is left.
    if (found.promise != "not-early" || !model_.excused.contains("F2")) {
      model_.violations.push_back(found.text());
    }
  }
  if (is_verbose_) {
    fmt::print(stderr, "{}", read_file(log_));
  }
  return model_.violations;
}

void Simulation::carry_out(const Operation& operation) {
  if (is_verbose_) {
    fmt::print(stderr, "[{:.6f}] {}\n", static_cast<double>(kernel_.now) / 1e9,
               text_of({operation}));
  }
  if (operation.at_call > 0) {
    kernel_.at_call(operation.at_call, [this, operation] { act(operation); });
  } else if (operation.name == "wait") {
    kernel_.run_until(kernel_.now + operation.argument(0) * kMs);
  } else {
    act(operation);
  }
}

// Carries out an operation that takes no time.
void Simulation::act(const Operation& operation) {
  const auto& [name, at_call, arguments] = operation;
  const int first = operation.argument(0);
  const int second = operation.argument(1);
  const int index = std::clamp(first, 0, kWorkers - 1);
  Made& made = workers_[static_cast<std::size_t>(index)];
  const bool can_run = made.process->can_run();
  if (name == "set") {
    set(first, second);
  } else if (name == "spawn") {
    spawn(index, second != 0);
  } else if (name == "start") {
    start_server();
  } else if (name == "crash" && server_ != nullptr) {
    const int n = begin("driver", "kill_server", fmt::format(R"(,"subject":"s{}")", servers_));
    finish("driver", n);
    stop_halt_of_server(kernel_.now);
    lose_unread_lines();
    has_lost_records_ = has_lost_records_ || kernel_.log_errno != 0 || kernel_.log_hangs_until > 0;
    kernel_.drop_server();
    forget_signals();
    kernel_.end(*std::exchange(server_, nullptr), -SIGKILL);
    model_.servers.back().to = kernel_.now;
  } else if (name == "term" && server_ != nullptr) {
    may_end_ = true;
    model_.stops.push_back(kernel_.now);
    const int n = begin("driver", "stop_server", fmt::format(R"(,"subject":"s{}")", servers_));
    finish("driver", n);
    ::raise(SIGTERM);
  } else if (name == "starve") {
    if (server_ != nullptr && !kernel_.is_server_halted) {
      kernel_.is_server_halted = true;
      if (kernel_.on_ready) {  // a server that starts notices nothing
        model_.trouble.push_back({kernel_.now, kernel_.now + first * kMs + kSecond});
      }
      auto& spans = kernel_.on_ready ? model_.away_at_start : model_.away;
      spans.push_back({kernel_.now, kNever, kernel_.planned_wake()});
      const int n =
          begin("driver", "halt", fmt::format(R"(,"subject":"s{}","how":"stop")", servers_));
      finish("driver", n);
      kernel_.at(kernel_.now + first * kMs, [this] { stop_halt_of_server(kernel_.now); });
    }
  } else if (name == "suspend") {
    note_odd_clock();
    kernel_.suspended += first * kMs;
    model_.suspends.push_back({kernel_.now, kernel_.now + first * kMs});
  } else if (name == "wall") {
    note_odd_clock();
    kernel_.wall_offset += first * kMs;
  } else if (name == "logfail") {
    kernel_.log_errno = second == 0 ? ENOSPC : EIO;
    const int n = begin("driver", "log_trouble", "");
    model_.trouble.push_back({kernel_.now, kernel_.now + first * kMs + kSecond});
    model_.log_trouble.push_back(model_.trouble.back());
    kernel_.at(kernel_.now + first * kMs, [this, n] {
      kernel_.log_errno = 0;
      finish("driver", n);
    });
  } else if (name == "loghang" && kernel_.is_log_on_disk) {
    kernel_.log_hangs_until = kernel_.now + first * kMs;
    const int n = begin("driver", "log_trouble", "");
    model_.trouble.push_back({kernel_.now, kernel_.log_hangs_until + kSecond});
    model_.log_trouble.push_back(model_.trouble.back());
    kernel_.at(kernel_.log_hangs_until, [this, n] { finish("driver", n); });
  } else if (name == "prochang") {
    kernel_.proc_hangs_until = kernel_.now + first * kMs;
    model_.trouble.push_back({kernel_.now, kernel_.proc_hangs_until + 3 * kSecond});
  } else if (name == "fail") {
    fail(first, second);
  } else if (name == "remove") {
    remove(first, std::clamp(second, 0, kWorkers - 1));
  } else if (name == "ask") {
    ask(first);
  } else if (name == "halt" && made.process->is_alive) {
    halt(index, second);
  } else if (name == "go") {
    go(index);
  } else if (name == "react") {
    made.process->reaction = static_cast<Reaction>(std::clamp(second, 0, 3));
  } else if (!can_run) {
    return;  // the rest is what the worker does itself
  } else if (name == "acq" || name == "line") {
    Terms terms;
    constexpr std::uint32_t kGraces[] = {kServersGrace, 0, 300, kNoSigkill};
    constexpr int kSignals[] = {SIGKILL, SIGTERM, 0, SIGUSR1};
    const int flags = operation.argument(3);
    terms.timeout = operation.argument(2) == 0 ? kNever : operation.argument(2) * kMs;
    terms.grace_ms = kGraces[flags & 3];
    terms.signal = kSignals[operation.argument(4) & 3];
    terms.spare_if_left = (flags & 4) != 0 && terms.signal == SIGUSR1;
    terms.is_torch = (flags & 16) != 0;
    if (terms.is_torch) {
      terms.spare_if_left = false;
      terms.grace_ms = kServersGrace;
    }
    name == "acq" ? open_on_page(index, second, terms) : open_by_line(index, second, terms);
  } else if (name == "rel" || name == "unline") {
    release(index, second, name == "rel");
  } else if (name == "renew" || name == "pause" || name == "resume") {
    ModelScope* const scope = open_scope(index, second, true);
    if (scope == nullptr) {
      return;
    }
    Sign last = scope->signs.back();
    const Nanos asked = name == "renew" ? operation.argument(2) * kMs : last.timeout;
    const int n =
        begin(scope->worker, name,
              name == "renew" ? fmt::format(R"(,"key":"{}","timeout_ns":{})", scope->key, asked)
                              : fmt::format(R"(,"key":"{}")", scope->key));
    Worker& client = *made.client;
    bool is_done = false;
    Sign sign{kernel_.now, std::min(asked, client.max_timeout()), false};
    if (name == "renew") {
      is_done = client.renew(scope->number, asked);
      sign.is_paused = last.is_paused;
    } else if (name == "pause") {
      is_done = client.pause(scope->number);
      sign.timeout = last.timeout == kNever ? kNever : std::max<Nanos>(last.due() - kernel_.now, 1);
      sign.is_paused = true;
    } else {
      is_done = client.resume(scope->number);
      sign.timeout = last.timeout;
    }
    finish(scope->worker, n, fmt::format(R"(,"ok":{})", is_done));
    if (is_done) {
      scope->signs.push_back(sign);
    } else if (name == "renew") {
      end_scope(*scope, End::kLate);
    }
  } else if (name == "idle") {
    made.client->begin_idle_timeout(second * kMs);
  } else if (name == "fork" || name == "bystander") {
    MadeProcess* const parent = name == "fork" ? made.process : nullptr;
    const std::string child = fmt::format("c{}", ++incarnations_);
    const int n =
        begin(name == "fork" ? made.name : "driver", name == "fork" ? "fork" : "spawn",
              name == "fork" ? "" : fmt::format(R"(,"subject":"{}","role":"bystander")", child));
    MadeProcess& process = kernel_.start(++next_pid_, parent, child);
    process.reaction = Reaction::kDies;
    finish(name == "fork" ? made.name : "driver", n,
           name == "fork" ? fmt::format(R"(,"child":"{}")", child)
                          : fmt::format(R"(,"pid":{},"start":{})", process.pid, process.start));
    if (name == "fork") {
      const int spawned =
          begin("driver", "spawn",
                fmt::format(R"(,"subject":"{}","role":"child","parent":"{}")", child, made.name));
      finish("driver", spawned, fmt::format(R"(,"pid":{},"start":{})", process.pid, process.start));
    }
  } else if (name == "exec") {
    const int n = begin(made.name, "exec", "");
    finish(made.name, n);
    for (ModelScope& scope : model_.scopes) {
      if (scope.process == made.process && scope.end == End::kNone && scope.on_page) {
        end_scope(scope, End::kWorker);
      }
    }
    made.process->stack += 0x100;
    made.client = std::make_unique<Worker>(*made.process, dir_);
  } else if (name == "exit") {
    const int n = begin(made.name, "exit", R"(,"code":0)");
    finish(made.name, n);
    kernel_.end(*made.process, 0);
  }
}

void Simulation::set(int option, int value) {
  const auto add = [this](std::initializer_list<const char*> words) {
    arguments_.insert(arguments_.end(), words.begin(), words.end());
  };
  Options& options = model_.options;
  switch (option) {
    case 0:
      options.max_timeout = value == 0 ? 500 * kMs : value == 1 ? 1'500 * kMs : kNever;
      if (value < 2) {
        add({"--max-timeout", value == 0 ? "500ms" : "1500ms"});
      }
      break;
    case 1:
      options.max_interval = value == 0 ? kSecond : value == 1 ? 3 * kSecond : 10 * kSecond;
      add({"--max-interval", value == 0 ? "1s" : value == 1 ? "3s" : "10s"});
      break;
    case 2:
      options.has_grace = value < 3;
      options.grace = value == 0 ? kNever : value == 1 ? 1'500 * kMs : kMs;
      if (options.has_grace) {
        add({"--grace", value == 0 ? "off" : value == 1 ? "1500ms" : "1ms"});
      }
      break;
    case 3:
      options.is_dry_run = value == 0;
      if (value == 0) {
        add({"--dry-run"});
      }
      break;
    case 4:
      options.has_evidence = true;
      std::ranges::replace(arguments_, std::string("none"), std::string("proc"));
      break;
    case 5:
      options.kill = value == 0 ? 'p' : 't';
      add({"--kill", value == 0 ? "process" : "tree"});
      break;
    case 6:
      kernel_.is_log_on_disk = true;
      break;
    case 7:
      if (value == 0) {
        add({"--warn-at", "0.5"});
      }
      break;
    default:
      break;
  }
}

// --- workers ---

void Simulation::spawn(int index, bool reuses_pid) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  if (made.process != nullptr && made.process->is_alive) {
    return;
  }
  const pid_t pid =
      reuses_pid && made.process != nullptr && kernel_.find(made.process->pid) == nullptr
          ? made.process->pid
          : ++next_pid_;
  made.client.reset();
  made.name = fmt::format("w{}.{}", index, ++incarnations_);
  const int n =
      begin("driver", "spawn", fmt::format(R"(,"subject":"{}","role":"worker")", made.name));
  made.process = &kernel_.start(pid, nullptr, made.name);
  made.client = std::make_unique<Worker>(*made.process, dir_);
  finish("driver", n, fmt::format(R"(,"pid":{},"start":{})", pid, made.process->start));
}

ModelScope* Simulation::open_scope(int index, int scope, bool on_page) {
  const MadeProcess* const process = workers_[static_cast<std::size_t>(index)].process;
  const std::string name = fmt::format("{}{}", on_page ? "page" : "line", scope);
  for (ModelScope& each : model_.scopes) {
    if (each.process == process && each.name == name && each.end == End::kNone) {
      return &each;
    }
  }
  return nullptr;
}

void Simulation::end_scope(ModelScope& scope, End end) {
  scope.end = end;
  scope.ended_at = kernel_.now;
}

void Simulation::end_scopes_of(const MadeProcess& process) {
  for (Made& made : workers_) {
    if (made.process == &process) {
      const int n = begin("driver", "ended",
                          fmt::format(R"(,"subject":"{}","status":{},"before":{})", made.name,
                                      process.ended_by, kernel_.now));
      finish("driver", n);
    }
  }
  if (process.comm.starts_with("c")) {
    const int n = begin("driver", "ended",
                        fmt::format(R"(,"subject":"{}","status":{},"before":{})", process.comm,
                                    process.ended_by, kernel_.now));
    finish("driver", n);
  }
  for (ModelScope& scope : model_.scopes) {
    if (scope.process == &process && scope.end == End::kNone) {
      // A line of a process that has ended opens no scope.
      scope.may_be_lost = scope.may_be_lost ||
                          (!scope.on_page && scope.signs.front().when >= kernel_.all_read_at());
      end_scope(scope, End::kWorker);
    }
  }
}

std::string fields_of(const ModelScope& scope, std::string_view via) {
  const Terms& terms = scope.terms;
  return fmt::format(
      R"(,"key":"{}","scope":"{}","via":"{}","signal":{}{}{})", scope.key, scope.name, via,
      terms.signal,
      terms.timeout == kNever ? "" : fmt::format(R"(,"timeout_ns":{})", terms.timeout),
      terms.grace_ms >= kNoSigkill ? "" : fmt::format(R"(,"grace_ns":{})", terms.grace_ms * kMs));
}

void Simulation::open_on_page(int index, int number, const Terms& terms) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  if (open_scope(index, number, true) != nullptr) {
    return;
  }
  ModelScope scope{fmt::format("k{}", ++keys_),
                   made.name,
                   made.process,
                   fmt::format("page{}", number),
                   true,
                   -1,
                   terms,
                   {},
                   kNever,
                   End::kNone,
                   false};
  const int n = begin(made.name, "open", fields_of(scope, "page"));
  scope.number = made.client->open(scope.name, terms);
  finish(made.name, n, scope.number < 0 ? R"(,"watched":false)" : "");
  // Known: a client does not notice that its page was removed.
  scope.may_be_lost = model_.excused.contains("F6") && made.client->is_page_gone();
  if (scope.number >= 0) {
    scope.signs.push_back(
        {kernel_.now, std::min(terms.timeout, made.client->max_timeout()), false});
    model_.scopes.push_back(std::move(scope));
  }
}

void Simulation::open_by_line(int index, int number, const Terms& terms) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  ModelScope* const replaced = open_scope(index, number, false);
  const int released = replaced == nullptr ? 0
                                           : begin(made.name, "release",
                                                   fmt::format(R"(,"key":"{}")", replaced->key));
  ModelScope scope{fmt::format("k{}", ++keys_),
                   made.name,
                   made.process,
                   fmt::format("line{}", number),
                   false,
                   -1,
                   terms,
                   {},
                   kNever,
                   End::kNone,
                   false};
  scope.may_be_lost = has_lost_lines_;
  const int n = begin(made.name, "open", fields_of(scope, terms.is_torch ? "torch" : "pipe"));
  const bool is_sent = made.client->acquire_by_line(scope.name, terms);
  finish(made.name, n, is_sent ? "" : R"(,"watched":false)");
  if (replaced != nullptr) {
    finish(made.name, released, fmt::format(R"(,"ok":{})", is_sent));
    if (is_sent) {
      end_scope(*replaced, End::kUnknown);
    }
  }
  if (is_sent) {
    scope.signs.push_back(
        {kernel_.now, std::min(terms.timeout, model_.options.max_timeout), false});
    model_.scopes.push_back(std::move(scope));
  }
}

void Simulation::release(int index, int number, bool on_page) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  ModelScope* const scope = open_scope(index, number, on_page);
  if (scope == nullptr) {
    return;
  }
  const int n = begin(made.name, "release", fmt::format(R"(,"key":"{}")", scope->key));
  if (on_page) {
    const bool in_time = made.client->release(scope->number);
    finish(made.name, n, fmt::format(R"(,"in_time":{})", in_time));
    end_scope(*scope, in_time ? End::kInTime : End::kLate);
  } else {
    const bool is_sent = made.client->release_by_line(fmt::format("line{}", number));
    finish(made.name, n, fmt::format(R"(,"ok":{})", is_sent));
    if (is_sent) {
      end_scope(*scope, End::kUnknown);
    }
  }
}

void Simulation::release_all(int index) {
  for (int scope = 0; scope < 3; ++scope) {
    release(index, scope, true);
    release(index, scope, false);
  }
}

void Simulation::on_caught(const MadeProcess& process) {
  for (int i = 0; i < kWorkers; ++i) {
    if (workers_[static_cast<std::size_t>(i)].process == &process) {
      kernel_.at(kernel_.now + kReleaseAfter, [this, i, &process] {
        if (workers_[static_cast<std::size_t>(i)].process == &process && process.can_run()) {
          release_all(i);
        }
      });
    }
  }
}

void Simulation::halt(int index, int how) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  bool& is_halted = how == 0   ? made.process->is_stopped
                    : how == 1 ? made.process->is_frozen
                               : made.process->is_traced;
  if (is_halted) {
    return;
  }
  is_halted = true;
  constexpr const char* kHow[] = {"stop", "freeze", "trace"};
  const int n =
      begin("driver", "halt", fmt::format(R"(,"subject":"{}","how":"{}")", made.name, kHow[how]));
  finish("driver", n);
  auto& spans = how == 2 ? model_.traces[made.process] : model_.halts[made.process];
  if (spans.empty() || spans.back().to != kNever) {
    spans.push_back({kernel_.now, kNever});
  }
}

void Simulation::go(int index) {
  Made& made = workers_[static_cast<std::size_t>(index)];
  MadeProcess& process = *made.process;
  constexpr const char* kHow[] = {"stop", "freeze", "trace"};
  bool* const halts[] = {&process.is_stopped, &process.is_frozen, &process.is_traced};
  for (std::size_t how = 0; how < 3; ++how) {
    if (*halts[how] && process.is_alive) {
      const int n = begin("driver", "resume",
                          fmt::format(R"(,"subject":"{}","how":"{}")", made.name, kHow[how]));
      finish("driver", n);
    }
    *halts[how] = false;
  }
  for (auto* spans : {&model_.halts[&process], &model_.traces[&process]}) {
    for (Span& span : *spans) {
      span.to = std::min(span.to, kernel_.now);
    }
  }
  kernel_.resumed(process);
}

// --- the server ---

void Simulation::start_server() {
  if (server_ != nullptr) {
    return;
  }
  const pid_t pid = kFirstServerPid + ++servers_;
  server_ = &kernel_.start(pid, nullptr, "timer_server");
  has_lost_lines_ = false;
  may_end_ = std::ranges::any_of(kernel_.failing, [](int error) { return error != 0; }) ||
             kernel_.log_errno != 0;
  model_.servers.push_back({kernel_.now, kNever});
  std::string args;
  for (const std::string& argument : arguments_) {
    args += fmt::format("{}\"{}\"", args.empty() ? "" : ",", argument);
  }
  const int spawned =
      begin("driver", "spawn", fmt::format(R"(,"subject":"s{}","role":"server")", servers_));
  finish("driver", spawned, fmt::format(R"(,"pid":{},"start":{})", pid, server_->start));
  const int n = begin("driver", "server",
                      fmt::format(R"(,"subject":"s{}","dir":"{}","log":"{}","args":[{}])", servers_,
                                  dir_, log_, args));
  kernel_.on_ready = [this, n] { finish("driver", n, fmt::format(R"(,"pid":{})", server_->pid)); };
  kernel_.start_server(pid, [this] {
    std::vector<char*> words;
    for (std::string& argument : arguments_) {
      words.push_back(argument.data());
    }
    words.push_back(nullptr);
    return timer_server_main(static_cast<int>(arguments_.size()), words.data());
  });
}

void Simulation::on_server_end(int status) {
  const int n = begin(
      "driver", "ended",
      fmt::format(R"(,"subject":"s{}","status":{},"before":{})", servers_, status, kernel_.now));
  finish("driver", n);
  if (!may_end_) {
    violation("server-life: the server has ended by itself with status {}", status);
  }
  forget_signals();
  model_.servers.back().to = kernel_.now;
  MadeProcess* const server = std::exchange(server_, nullptr);
  kernel_.at(kernel_.now, [this, server, status] { kernel_.end(*server, status); });
}

void Simulation::stop_halt_of_server(Nanos when) {
  if (!kernel_.is_server_halted) {
    return;
  }
  kernel_.is_server_halted = false;
  for (auto* spans : {&model_.away, &model_.away_at_start}) {
    for (Span& span : *spans) {
      span.to = std::min(span.to, when);
    }
  }
  const int n =
      begin("driver", "resume", fmt::format(R"(,"subject":"s{}","how":"stop")", servers_));
  finish("driver", n);
}

void Simulation::fail(int call, int error) {
  constexpr int kErrors[] = {EMFILE, ENOSPC, EIO, ENOMEM, EINTR};
  call = std::clamp(call, 0, kCalls - 1);
  const Call what = static_cast<Call>(call);
  error = kErrors[std::clamp(error, 0, 4)];
  if (error == EINTR && what != Call::kOpen && what != Call::kWrite && what != Call::kPwrite) {
    error = ENOMEM;  // only these calls can be interrupted
  }
  if (what == Call::kProc || what == Call::kOpenProcess || what == Call::kOpen) {
    error = error == ENOMEM || error == EINTR ? error : EMFILE;
  }
  kernel_.failing[call] = error;
  may_end_ =
      may_end_ || (server_ != nullptr && kernel_.now - model_.servers.back().from < 10 * kMs);
}

// A call has failed. Pages are looked at again at the next sweep; what lines say may be lost.
void Simulation::on_failure(Call call) {
  model_.trouble.push_back({kernel_.now, kernel_.now + model_.options.max_interval + 3 * kSecond});
  // Known: after a sync that failed the log counts as broken until the next record.
  const bool is_broken = call == Call::kSync && model_.excused.contains("F17");
  model_.log_trouble.push_back({kernel_.now, is_broken ? kNever : kernel_.now + kSecond});
  lose(false, true);
}

// Lines that the server has not read have deadlines of the wall clock as it was.
void Simulation::note_odd_clock() {
  const Nanos unread = kernel_.all_read_at();
  for (ModelScope& scope : model_.scopes) {
    scope.has_odd_clock =
        scope.has_odd_clock || (!scope.on_page && scope.signs.front().when >= unread);
  }
}

// A pipe without a reader loses what it has.
void Simulation::lose_unread_lines() {
  for (ModelScope& scope : model_.scopes) {
    const Nanos last = scope.end == End::kUnknown ? scope.ended_at : scope.signs.back().when;
    scope.may_be_lost = scope.may_be_lost || (!scope.on_page && last >= kernel_.all_read_at());
  }
}

// Notes that scopes may not be watched from now on.
void Simulation::lose(bool pages, bool lines, int index) {
  for (ModelScope& scope : model_.scopes) {
    const bool is_of =
        index < 0 || scope.process == workers_[static_cast<std::size_t>(index)].process;
    const bool is_unrecorded =
        scope.end == End::kNone || (scope.end == End::kWorker && server_ == nullptr);
    if (is_unrecorded && is_of && (scope.on_page ? pages : lines)) {
      scope.may_be_lost = true;
    }
  }
}

void Simulation::remove(int what, int index) {
  const Worker& client = *workers_[static_cast<std::size_t>(index)].client;
  std::error_code ec;
  const auto remove_all = [&](const std::string& path) { std::filesystem::remove_all(path, ec); };
  const int n = begin("driver", "files", fmt::format(R"(,"what":"{}")", what));
  switch (what) {
    case 0:
      if (!client.page_path().empty()) {
        remove_all(client.page_path());
        lose(true, false, index);
      }
      break;
    case 1:
      remove_all(dir_ + "/server");
      break;
    case 2:
      remove_all(dir_ + "/requests");
      model_.trouble.push_back({kernel_.now, kernel_.now + model_.options.max_interval});
      lose(false, true);
      break;
    case 3:
      remove_all(dir_ + "/scopes");
      has_lost_lines_ = true;
      lose(true, true);
      break;
    case 4:
      remove_all(dir_ + "/scopes/.owners");
      lose(true, false);
      break;
    case 5:
      remove_all(dir_ + "/scopes/server");
      has_lost_lines_ = true;
      lose(false, true);
      break;
    case 6:
      remove_all(dir_ + "/replies");
      break;
    case 7:
      if (!client.page_path().empty()) {
        has_cut_pages_ = true;
        (void)::truncate(client.page_path().c_str(), 100);
        lose(true, false, index);
      }
      break;
    default:
      break;
  }
  finish("driver", n);
}

void Simulation::ask(int what) {
  static constexpr const char* kQuestions[] = {
      R"("x_request":"status")",
      R"("x_request":"ping")",
      R"("x_request":"drain")",
      R"("x_request":"drain","x_off":true)",
      R"("x_request":"shutdown")",
      R"("x_request":"shutdown","x_force":true)",
      R"("x_request":"shutdown","x_graceful":"scopes")",
      R"("x_request":"shutdown","x_graceful":"scopes","x_force":true)"};
  what = std::clamp(what, 0, 7);
  const std::string name = fmt::format("q-{}", replies_.size());
  const std::string path = fmt::format("{}/replies/{}", dir_, name);
  if (::mkfifo(path.c_str(), 0600) != 0) {
    return;
  }
  const UniqueFd reply(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  replies_.emplace_back(::fcntl(reply.get(), F_DUPFD_CLOEXEC, kFirstOfWorld));
  const UniqueFd pipe(::open((dir_ + "/requests").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string line = fmt::format(R"({{"version": 1, {}, "x_reply": "{}", "x_wait_s": 3}})"
                                       "\n",
                                       kQuestions[what], name);
  if (pipe) {
    may_end_ = may_end_ || what >= 4;
    if (what >= 4) {
      model_.stops.push_back(kernel_.now);
      const int n = begin("driver", "stop_server", fmt::format(R"(,"subject":"s{}")", servers_));
      finish("driver", n);
    }
    if (what >= 2) {
      model_.has_drained = true;
    }
    (void)!::write(pipe.get(), line.data(), line.size());
  }
}

// Judges each signal when it is sent.
void Simulation::on_signal(MadeProcess& process, int signal) {
  model_.signals.push_back({kernel_.now, &process, signal});
  if (is_verbose_) {
    fmt::print(stderr, "[{:.6f}] signal {} to {} {}\n", static_cast<double>(kernel_.now) / 1e9,
               signal, process.pid, process.comm);
  }
  if (model_.options.is_dry_run) {
    violation("signals: signal {} to {} in a dry run", signal, process.comm);
  }
  if (std::ranges::any_of(model_.log_trouble,
                          [&](const Span& span) { return span.to >= kernel_.now; })) {
    return;
  }
  if (kernel_.is_log_on_disk && !model_.away.empty() &&
      model_.away.back().to > kernel_.now - kSecond) {
    return;  // the record has had its time
  }
  // The reason is on record before the signal: a verdict on a scope of the process or an ancestor.
  const std::string log = read_file(log_);
  for (const MadeProcess* each = &process; each != nullptr; each = each->parent) {
    for (std::size_t at = 0; (at = log.find("\"event\":\"expired\"", at)) != log.npos; ++at) {
      const std::size_t end = log.find('\n', at);
      const std::string_view line(log.data() + at, end - at);
      if (line.find(fmt::format("\"pid\":{},\"start_time\":{},", each->pid, each->start)) !=
          line.npos) {
        return;
      }
    }
  }
  violation("signals: signal {} to {} (pid {}), no scope of which has a verdict", signal,
            process.comm, process.pid);
}

// Tells the checker what the adversities excuse.
void Simulation::excuse() {
  const auto excuse = [this](std::string_view promise, std::string_view field,
                             std::string_view name) {
    const int n = begin("driver", "excuse",
                        fmt::format(R"(,"promise":"{}","{}":"{}")", promise, field, name));
    finish("driver", n);
  };
  if (has_lost_records_) {
    excuse("death-has-record", "reason", "lost records");
    excuse("one-verdict", "reason", "lost records");
  }
  if (!model_.halts.empty() || !model_.traces.empty()) {
    excuse("hang-is-judged", "reason", "halted");  // the model is stricter
  }
  if (has_cut_pages_) {
    excuse("record-times", "reason", "a page that is cut short shows zeroes");
  }
  if (!model_.suspends.empty()) {  // the checker does not know of them
    excuse("hang-is-judged", "reason", "suspended");
    excuse("deferred-has-halt", "reason", "suspended");
  }
  if (model_.options.is_dry_run) {
    excuse("hang-is-killed", "reason", "dry run");
  }
  for (const ModelScope& scope : model_.scopes) {
    if (std::ranges::any_of(scope.signs, &Sign::is_paused)) {
      excuse("record-terms", "key", scope.key);  // with --max-timeout it is that of the pause
    }
    const bool has_trouble = std::ranges::any_of(model_.trouble, [&](const Span& span) {
      return span.from <= scope.ended_at && span.to >= scope.signs.front().when;
    });
    if (has_trouble) {
      excuse("hang-is-judged", "key", scope.key);
      excuse("record-links", "key", scope.key);  // its page is looked at again at a sweep
    }
    if (scope.may_be_lost || model_.has_drained) {
      excuse("hang-is-judged", "key", scope.key);
      excuse("one-verdict", "key", scope.key);
    }
    if (scope.may_be_lost || scope.has_odd_clock) {
      excuse("released-in-time", "key", scope.key);
      excuse("known-scopes", "subject", scope.worker);
      excuse("record-terms", "key", scope.key);
    }
    // Known: of several expiries the first decides, though another one asks for SIGKILL.
    if (scope.process->reaction != Reaction::kDies && model_.excused.contains("weak-signal")) {
      excuse("hang-is-killed", "subject", scope.worker);
    }
    if (scope.process->is_stuck) {
      excuse("hang-is-killed", "subject", scope.worker);
      excuse("hang-is-judged", "subject", scope.worker);
    }
  }
}

void Simulation::quiet() {
  kernel_.forget_actions();
  stop_halt_of_server(kernel_.now);
  kernel_.log_errno = 0;
  kernel_.log_hangs_until = std::min(kernel_.log_hangs_until, kernel_.now);
  kernel_.proc_hangs_until = 0;
  std::ranges::fill(kernel_.failing, 0);
  for (int i = 0; i < kWorkers; ++i) {
    go(i);
  }
  if (kernel_.has_spun) {
    return;
  }
  kernel_.run_until(kernel_.now + 100 * kMs);
  start_server();
  kernel_.run_until(kernel_.now + kQuiet);
  if (server_ == nullptr) {
    start_server();
    kernel_.run_until(kernel_.now + kQuiet);
  }
  for (const auto& process : kernel_.all()) {
    if (process->is_alive && process->is_stopped && !process->is_stuck) {
      violation("signals: {} (pid {}) is left stopped", process->comm, process->pid);
    }
  }
  if (server_ == nullptr) {
    violation("server-life: the server does not start without adversities");
    return;
  }
  may_end_ = true;
  const int n = begin("driver", "stop_server", fmt::format(R"(,"subject":"s{}")", servers_));
  finish("driver", n);
  ::raise(SIGTERM);
  kernel_.run_until(kernel_.now + kStop);
  if (server_ != nullptr) {
    violation("server-life: the server has not ended after SIGTERM");
  }
}

}  // namespace

std::vector<std::string> run_history(const Operations& operations, const std::string& dir,
                                     const std::set<std::string>& excused, bool is_verbose) {
  return Simulation(dir, excused, is_verbose).run(operations);
}

}  // namespace filetimer::sim
