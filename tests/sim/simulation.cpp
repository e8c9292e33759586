// SPDX-License-Identifier: MIT
#include "tests/sim/simulation.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/board.hpp"
#include "common/json_fields.hpp"
#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "tests/sim/worker.hpp"

int timer_server_main(int argc, char** argv);  // main() of the server

namespace filetimer::sim {
namespace {

using Record = simdjson::dom::object;  // of the log

constexpr int kWorkers = 4;
constexpr int kScopes = 3;
constexpr pid_t kFirstPid = 1'000;
constexpr pid_t kFirstServerPid = 90'000;
// The history goes on without adversities for this long, so that every deadline and kill ends.
constexpr Nanos kQuiet = 40 * kSecond;
constexpr Nanos kBetween = 3 * kMs;  // operations, so that the checker can tell their times apart
constexpr Nanos kStop = 20 * kSecond;
constexpr Nanos kSlow = 15 * kSecond;      // after a failure, in which a kill may be late
constexpr Nanos kReleaseAfter = 50 * kMs;  // that a worker takes to act on a signal that it catches
constexpr Nanos kTick = 10 * kMs;          // in which the starts of processes are counted
// A verdict, a signal or an answer comes within; and with evidence.
constexpr Nanos kTurn = kMs / 10;  // of the server
constexpr Nanos kPrompt = 300 * kMs;
constexpr Nanos kStopLimit = 2 * kSecond + kPrompt;  // after SIGTERM, whatever a worker does
constexpr Nanos kPromptWithEvidence = 3 * kSecond;
constexpr Nanos kAnswer = 8 * kSecond;  // the wait of a question, and the end of the server
constexpr Nanos kClientLook = kSecond;  // between two looks of a client at its files
constexpr const char* kHalts[] = {"stop", "freeze", "trace"};

// The options of the server that a history may set, each to one of these values.
struct Setting {
  const char* option;
  std::vector<const char*> values;
};
const std::array<Setting, 11> kSettings{{
    {"--max-timeout", {"500ms", "1500ms"}},
    {"--max-interval", {"1s", "3s", "10s", "10s"}},
    {"--grace", {"off", "1500ms", "1ms"}},
    {"--dry-run", {""}},
    {"--evidence", {"proc", "proc", "proc", "proc"}},
    {"--kill", {"process", "tree", "tree", "tree"}},
    {"disk", {"", "", "", ""}},  // no option: the log is on one, and may hang
    {"--warn-at", {"0.5"}},
    {"--on-expiry", {"true", "true"}},
    {"--metrics", {"metrics", "metrics"}},
    {"--evidence-command", {"true"}},
}};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool has_field(const Record& record, std::string_view key) {
  return record.at_key(key).error() == simdjson::SUCCESS;
}
std::int64_t number_in(const Record& record, std::string_view key) {
  return integer_at(record, key).value_or(0);
}

// The signals that were sent to a server that is gone.
void forget_signals() {
  const timespec at_once{};
  sigset_t all;
  ::sigfillset(&all);
  while (::sigtimedwait(&all, nullptr, &at_once) > 0) {
  }
}

struct Span {
  Nanos from = 0;
  Nanos to = kNever;
};
bool overlap(const Span& a, const Span& b) {
  return a.from <= b.to && b.from <= a.to;
}

// A scope that a worker has opened.
struct Scope {
  std::string key;
  std::string name;
  Process* process = nullptr;
  bool on_page = false;
  bool is_refused = false;  // by a server that watches no new scopes
  Terms terms;
  PageScope place;
  Nanos timeout = kNever;
  Span open;
};

// An idle timeout of a worker.
struct Idle {
  const Process* process = nullptr;
  Nanos timeout = 0;
  Span on;
};

// What open scopes may not be watched any more, as a file that has them was removed or a call
// failed.
struct Loss {
  Span when;
  bool of_pages = false;
  bool of_lines = false;
  const Process* process = nullptr;  // null: of all
  bool is_of_ends = false;           // only of scopes that were opened or left in that time
};

class Simulation {
 public:
  Simulation(const std::string& dir, bool is_verbose)
      : kernel_(dir + "/root"),
        dir_(dir + "/run"),
        log_(dir_ + "/expired.jsonl"),
        old_log_(log_ + ".1"),
        is_verbose_(is_verbose),
        settings_{{"--evidence", "none"}} {
    std::filesystem::create_directory(dir_);
    std::filesystem::permissions(dir_, std::filesystem::perms::owner_all);
    kernel_.log_path = log_;
    kernel_.shows_messages = is_verbose;
    kernel_.on_signal = [this](Process& process, int signal) { on_signal(process, signal); };
    kernel_.on_caught = [this](Process& process) { on_caught(process); };
    kernel_.on_end = [this](Process& process) { on_end(process); };
    kernel_.on_failure = [this] {
      // Pages are looked at again at the next sweep; what lines say may be lost.
      disturbed_ = slow_.emplace_back(Span{kernel_.now, kernel_.now + interval() + 3 * kSecond}).to;
      unannounced_.push_back({kernel_.now - kBetween, disturbed_});
      if (!kernel_.on_ready) {  // a start that fails loses none
        losses_.push_back({{kernel_.now, kernel_.now}, false, true, nullptr});
      }
      log_trouble_.push_back({kernel_.now, kernel_.now + kSecond});
      call_failed_ = kernel_.now;
    };
    kernel_.on_server_end = [this](int status) { on_server_end(status); };
    kernel_.owner_of_page = [this](ino_t page) {
      const auto found = std::ranges::find_if(workers_, [page](const Made& made) {
        return made.client && made.client->holds_lock_of(page);
      });
      return found == workers_.end() ? pid_t{0} : found->process->pid;
    };
  }

  std::vector<std::string> run(const Operations& operations) {
    for (int i = 0; i < kWorkers; ++i) {
      spawn(workers_[static_cast<std::size_t>(i)], i, false);
    }
    std::size_t next = 0;
    for (; next < operations.size() && operations[next].name == "set"; ++next) {
      const Setting& chosen = kSettings.at(static_cast<std::size_t>(operations[next].argument(0)));
      const auto value = static_cast<std::size_t>(operations[next].argument(1));
      if (value < chosen.values.size()) {
        settings_[chosen.option] = chosen.values[value];
      }
    }
    arguments_ = {"timer_server",
                  "--dir",
                  dir_,
                  "--kill-wait",
                  "5s",
                  "--log-level",
                  is_verbose_ ? "debug" : "error"};
    for (const auto& [option, value] : settings_) {
      if (option != "disk") {
        arguments_.push_back(option);
      }
      if (!value.empty()) {
        arguments_.push_back(option == "--metrics" ? dir_ + ".metrics" : value);
      }
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
    excuse_all();
    judge_records();
    note("driver", "prompt",
         fmt::format(R"(,"ns":{})",
                     setting("--evidence") == "proc" ? kPromptWithEvidence : kPrompt));
    std::ofstream(dir_ + "/../sim.history") << history_;
    if (is_verbose_) {
      fmt::print(stderr, "{}", read_file(log_));
    }
    return violations_;
  }

 private:
  struct Made {
    Process* process = nullptr;
    std::unique_ptr<Worker> client;
  };

  [[nodiscard]] std::string server() const { return fmt::format("s{}", servers_); }
  [[nodiscard]] std::string setting(const std::string& option) const {
    const auto found = settings_.find(option);
    return found == settings_.end() ? std::string() : found->second;
  }
  // Returns a time that may be set, such as 500ms, 3s or off.
  [[nodiscard]] Nanos time_of(const std::string& option, Nanos unless_set) const {
    const std::string text = setting(option);
    const Nanos unit = text.ends_with("ms") ? kMs : kSecond;
    return text.empty() ? unless_set : std::atoi(text.c_str()) * unit;
  }
  [[nodiscard]] Nanos interval() const { return time_of("--max-interval", 10 * kSecond); }
  // Lines that the server has not read.
  [[nodiscard]] Loss unread_lines() const {
    return {{kernel_.all_read_at(), kernel_.now}, false, true, nullptr, true};
  }

  template <class... Args>
  void violation(fmt::format_string<Args...> text, Args&&... args) {
    violations_.push_back(fmt::format(text, std::forward<Args>(args)...) + '\n');
  }

  // The lines of the history for the checker. `fields` begin with a comma.
  int begin(std::string_view who, std::string_view op, std::string_view fields) {
    history_ += fmt::format(R"({{"t":{},"who":"{}","n":{},"op":"{}"{}}})", kernel_.now, who,
                            ++calls_, op, fields) +
                '\n';
    return calls_;
  }

  void finish(std::string_view who, int n, std::string_view fields = "", Nanos when = 0) {
    history_ += fmt::format(R"({{"t":{},"who":"{}","n":{},"end":true{}}})",
                            std::max(when, kernel_.now), who, n, fields) +
                '\n';
  }
  void note(std::string_view who, std::string_view op, std::string_view fields,
            std::string_view result = "") {
    finish(who, begin(who, op, fields), result);
  }
  // Likewise of what happens to a process.
  void tell(std::string_view op, std::string_view subject, std::string_view fields = "",
            std::string_view result = "") {
    note("driver", op, fmt::format(R"(,"subject":"{}"{})", subject, fields), result);
  }
  void tell_of_start(const Process& process, std::string_view subject, std::string_view fields) {
    tell("spawn", subject, fields,
         fmt::format(R"(,"pid":{},"start":{})", process.pid, process.start));
  }
  void tell_of_end(std::string_view subject, int status) {
    tell("ended", subject, fmt::format(R"(,"status":{},"before":{})", status, kernel_.now));
  }
  void tell_of_halt(std::string_view op, std::string_view subject, int how = 0) {
    tell(op, subject, fmt::format(R"(,"how":"{}")", kHalts[how]));
  }
  void excuse(std::string_view promise, std::string_view field, std::string_view of) {
    note("driver", "excuse", fmt::format(R"(,"promise":"{}","{}":"{}")", promise, field, of));
  }

  void carry_out(const Operation& operation) {
    if (is_verbose_) {
      fmt::print(stderr, "[{:.6f}] {}\n", static_cast<double>(kernel_.now) / 1e9,
                 testing::text_of({operation}));
    }
    if (operation.at_call > 0) {
      kernel_.at_call(operation.at_call, [this, operation] {
        // A server that starts has set its handler in the process of the workers.
        struct sigaction of_server {};
        ::sigaction(SIGBUS, servers_ > 1 ? &of_workers_ : nullptr, &of_server);
        act(operation);
        if (servers_ > 1 && kernel_.on_ready) {
          ::sigaction(SIGBUS, &of_server, &of_workers_);
        }
      });
    } else if (operation.name == "wait") {
      kernel_.run_until(kernel_.now + operation.argument(0) * kMs);
    } else {
      act(operation);
    }
  }

  // Carries out an operation that takes no time. One that is not possible does nothing.
  void act(const Operation& operation) {
    const std::string& name = operation.name;
    const int index = std::clamp(operation.argument(0), 0, kWorkers - 1);
    const int second = operation.argument(1);
    Made& made = workers_[static_cast<std::size_t>(index)];
    if (name == "spawn") {
      spawn(made, index, second != 0);
    } else if (name == "bystander") {
      start_child(fmt::format("c{}", ++names_), nullptr);
    } else if (name == "halt" && made.process->is_alive) {
      halt(*made.process, std::clamp(second, 0, 2));
    } else if (name == "go") {
      go(*made.process);
    } else if (name == "react") {
      made.process->reaction = static_cast<Reaction>(std::clamp(second, 0, 3));
    } else if (name == "remove") {
      remove(operation.argument(0),
             workers_[static_cast<std::size_t>(std::clamp(second, 0, kWorkers - 1))]);
    }
    act_on_server(operation);
    act_on_kernel(operation);
    if (made.process->can_run()) {
      act_as_worker(made, operation);
    }
  }

  void act_on_server(const Operation& operation) {
    const std::string& name = operation.name;
    if (name == "start") {
      start_server();
    } else if (server_ == nullptr) {
      return;
    } else if (name == "crash") {
      crash();
    } else if (name == "term") {
      terminate();
    } else if (name == "signal") {
      signal_server(std::clamp(operation.argument(0), 0, 6));
    } else if (name == "starve" && !kernel_.is_server_halted) {
      starve(operation.argument(0) * kMs);
    } else if (name == "ask") {
      ask(std::clamp(operation.argument(0), 0, 7));
    }
  }

  void act_on_kernel(const Operation& operation) {
    const std::string& name = operation.name;
    const Nanos time = operation.argument(0) * kMs;
    if (name == "suspend" || name == "wall") {
      losses_.push_back(unread_lines());  // their deadlines are of the wall clock as it was
      if (std::ranges::any_of(scopes_, [&](const Scope& scope) {
            return !scope.on_page && scope.open.from >= kernel_.all_read_at();
          })) {
        general_.insert({"record-terms", "released-in-time"});  // they may seem to be another scope
      }
      (name == "suspend" ? kernel_.suspended : kernel_.wall_offset) += time;
      has_moved_clock_ = true;
      if (name == "suspend") {  // the checker does not know of it
        general_.insert({"hang-is-judged", "hang-is-killed", "deferred-has-halt", "not-early"});
      }
    } else if (name == "logfail") {
      kernel_.log_errno = operation.argument(1) == 0 ? ENOSPC : EIO;
      trouble_log(kernel_.now + time);
      kernel_.at(kernel_.now + time, [this] { kernel_.log_errno = 0; });
    } else if (name == "loghang" && settings_.contains("disk")) {
      kernel_.log_hangs_until = kernel_.now + time;
      trouble_log(kernel_.log_hangs_until);
    } else if (name == "prochang") {
      kernel_.proc_hangs_until = kernel_.now + time;
      slow_.push_back({kernel_.now, kernel_.proc_hangs_until + 3 * kSecond});
    } else if (name == "fail") {
      const int call = std::clamp(operation.argument(0), 0, kCalls);  // kCalls: the present one
      fail(call == kCalls ? static_cast<int>(kernel_.present) : call, operation.argument(1));
    }
  }

  void act_as_worker(Made& made, const Operation& operation) {
    const std::string& name = operation.name;
    Process& process = *made.process;
    if (name == "acq" || name == "line") {
      open(made, operation);
    } else if (name == "rel" || name == "unline") {
      const char* const kind = name == "rel" ? "page" : "line";
      release(made, open_scope(made, fmt::format("{}{}", kind, operation.argument(1))));
    } else if (name == "renew" || name == "pause" || name == "resume") {
      change(made, operation);
    } else if (name == "fork") {
      const std::string child = fmt::format("c{}", ++names_);
      note(process.name, "fork", "", fmt::format(R"(,"child":"{}")", child));
      start_child(child, &process);
    } else if (name == "idle") {
      const Nanos timeout = std::max(operation.argument(1), 100) * kMs;
      const bool has_one = std::ranges::any_of(idles_, [&](const Idle& idle) {
        return idle.process == &process && idle.on.to == kNever;
      });
      if (!has_one && made.client->begin_idle_timeout(timeout)) {
        idles_.push_back({&process, timeout, {kernel_.now, kNever}});
      }
    } else if (name == "exec") {
      note(process.name, "exec", "");
      leave(process, false);
      process.stack += 0x100;
      has_kept_files_ = true;
      made.client = std::make_unique<Worker>(process, dir_);
    } else if (name == "exit") {
      note(process.name, "exit", R"(,"code":0)");
      kernel_.end(process, 0);
    }
  }

  // --- workers ---

  void spawn(Made& made, int index, bool reuses_pid) {
    if (made.process != nullptr && made.process->is_alive) {
      return;
    }
    const bool is_reused =
        reuses_pid && made.process != nullptr && kernel_.find(made.process->pid) == nullptr;
    const pid_t pid = is_reused ? made.process->pid : ++next_pid_;
    const std::string name = fmt::format("w{}.{}", index, ++names_);
    if (is_reused && std::ranges::any_of(scopes_, [&](const Scope& scope) {
          return scope.process == made.process && scope.terms.is_torch &&
                 scope.open.from >= kernel_.all_read_at() &&
                 (has_moved_clock_ || scope.timeout > kernel_.now - scope.open.from - kTick);
        })) {
      excuse("known-scopes", "subject", name);  // the line says nothing but its deadline
    }
    made.process = &kernel_.start(pid, nullptr, name);
    made.client = std::make_unique<Worker>(*made.process, dir_);
    tell_of_start(*made.process, name, R"(,"role":"worker")");
  }

  // A child, or a bystander.
  void start_child(const std::string& name, Process* parent) {
    const Process& process = kernel_.start(++next_pid_, parent, name);
    tell_of_start(
        process, name,
        fmt::format(R"(,"role":"{}","parent":"{}")", parent != nullptr ? "child" : "bystander",
                    parent != nullptr ? parent->name : ""));
  }

  Scope* open_scope(const Made& made, const std::string& name) {
    const auto found = std::ranges::find_if(scopes_, [&](const Scope& scope) {
      return scope.process == made.process && scope.name == name && scope.open.to == kNever;
    });
    return found == scopes_.end() ? nullptr : &*found;
  }

  // Returns the grace period that the scope has; 0: no SIGKILL follows.
  Nanos grace(const Terms& terms) const {
    if (terms.grace_ms != kServersGrace) {
      return terms.grace_ms == kNoSigkill ? 0 : terms.grace_ms * kMs;
    }
    return time_of("--grace", terms.is_torch ? 0 : 10 * kSecond);
  }

  void open(Made& made, const Operation& operation) {
    constexpr std::uint32_t kGraces[] = {kServersGrace, 0, 300, kNoSigkill};
    constexpr int kSignals[] = {SIGKILL, SIGTERM, 0, SIGUSR1};
    const int flags = operation.argument(3);
    Scope scope;
    scope.on_page = operation.name == "acq";
    scope.name = fmt::format("{}{}", scope.on_page ? "page" : "line", operation.argument(1));
    scope.process = made.process;
    Terms& terms = scope.terms;
    terms.timeout = operation.argument(2) == 0 ? kNever : operation.argument(2) * kMs;
    terms.signal = kSignals[operation.argument(4) & 3];
    terms.is_torch = (flags & 16) != 0 && !scope.on_page;
    terms.grace_ms = terms.is_torch ? kServersGrace : kGraces[flags & 3];
    terms.signal_first = (flags & 4) != 0 && terms.signal == SIGUSR1 && !terms.is_torch;
    scope.timeout = terms.timeout;
    Scope* const replaced = open_scope(made, scope.name);
    if (replaced != nullptr && scope.on_page) {
      return;
    }
    scope.key = fmt::format("k{}", ++keys_);
    const std::string& who = made.process->name;
    std::string fields = fmt::format(
        R"(,"key":"{}","scope":"{}","via":"{}","signal":{},"grace_ns":{})", scope.key, scope.name,
        scope.on_page    ? "page"
        : terms.is_torch ? "torch"
                         : "pipe",
        terms.signal, grace(terms));
    fields += terms.signal_first ? R"(,"spare":true)" : "";
    if (terms.timeout != kNever) {
      fields += fmt::format(R"(,"timeout_ns":{})", terms.timeout);
    }
    bool is_open = false;
    if (scope.on_page) {
      scope.place = made.client->open(scope.name, terms);
      is_open = scope.place.slot != nullptr;
    } else {
      is_open = made.client->acquire_by_line(scope.name, terms);
    }
    if (replaced != nullptr) {  // by the line
      note(who, "release", fmt::format(R"(,"key":"{}")", replaced->key),
           fmt::format(R"(,"ok":{})", is_open));
      replaced->open.to = is_open ? kernel_.now : replaced->open.to;
      // The checker does not know when a line of PyTorch was written, or which of two came first.
      if (terms.is_torch || replaced->terms.is_torch ||
          kernel_.now - replaced->open.from < kBetween) {
        losses_.push_back(unread_lines());
        excuse("record-times", "key", scope.key);
        excuse("record-times", "key", replaced->key);
      }
    }
    if (!scope.on_page && !is_open) {
      return;  // the line was not written: a scope before it stays open
    }
    note(who, "open", fields, is_open ? "" : R"(,"watched":false)");
    if (is_open) {
      scope.open.from = kernel_.now;
      scope.is_refused = !scope.on_page && is_closed_;
      if (scope.is_refused) {
        losses_.push_back({scope.open, false, true, made.process});
      }
      scopes_.push_back(std::move(scope));
    }
  }

  // Renews, pauses or resumes a scope.
  void change(Made& made, const Operation& operation) {
    Scope* const scope = open_scope(made, fmt::format("page{}", operation.argument(1)));
    if (scope == nullptr) {
      return;
    }
    const std::string& name = operation.name;
    std::string fields = fmt::format(R"(,"key":"{}")", scope->key);
    bool is_open = false;
    if (name == "renew") {
      const Nanos timeout = std::max(operation.argument(2), 1) * kMs;
      fields += fmt::format(R"(,"timeout_ns":{})", timeout);
      is_open = made.client->renew(scope->place, timeout);
      scope->open.to = is_open ? kNever : kernel_.now;
      scope->timeout = is_open ? timeout : scope->timeout;
    } else {
      is_open = made.client->pause(scope->place, name == "pause");
      excuse("record-terms", "key", scope->key);  // it may have the timeout of the pause
    }
    note(made.process->name, name, fields, fmt::format(R"(,"ok":{})", is_open));
  }

  void release(const Made& made, Scope* scope) {
    if (scope == nullptr) {
      return;
    }
    std::string result;
    if (scope->on_page) {
      result = fmt::format(R"(,"in_time":{})", made.client->release(scope->place));
    } else {
      const bool is_sent = made.client->release_by_line(scope->name);
      result = fmt::format(R"(,"ok":{})", is_sent);
      if (!is_sent) {
        losses_.push_back({scope->open, false, true, made.process});
      }
    }
    scope->open.to = kernel_.now;
    note(made.process->name, "release", fmt::format(R"(,"key":"{}")", scope->key), result);
  }

  void on_caught(const Process& process) {
    kernel_.at(kernel_.now + kReleaseAfter, [this, &process] {
      for (const Made& made : workers_) {
        for (int scope = 0; made.process == &process && process.can_run() && scope < kScopes;
             ++scope) {
          release(made, open_scope(made, fmt::format("page{}", scope)));
          release(made, open_scope(made, fmt::format("line{}", scope)));
        }
      }
    });
  }

  void on_end(const Process& process) {
    if (process.name == "timer_server" || process.name == kServersChild) {
      return;
    }
    tell_of_end(process.name, process.ended_by);
    // If the server has not ended it, a line that is read now opens no scope.
    if (!kernel_.is_inside()) {
      losses_.push_back(unread_lines());
      losses_.back().process = &process;
    }
    leave(process, true);
  }

  // Ends the idle timeout of a process and its scopes, perhaps without those of the pipe.
  void leave(const Process& process, bool leaves_lines) {
    const auto end = [&](const Process* whose, Span& span) {
      span.to = whose == &process ? std::min(span.to, kernel_.now) : span.to;
    };
    for (Idle& idle : idles_) {
      end(idle.process, idle.on);
    }
    for (Scope& scope : scopes_) {
      if (scope.on_page || leaves_lines) {
        end(scope.process, scope.open);
      }
    }
  }

  void halt(Process& process, int how) {
    if (std::exchange(process.is_halted[how], true)) {
      return;
    }
    tell_of_halt("halt", process.name, how);
    if (how == 0) {
      stopped_.insert(&process);
    }
  }

  void go(Process& process) {
    stopped_.erase(&process);
    for (int how = 0; how < 3; ++how) {
      if (std::exchange(process.is_halted[how], false) && process.is_alive) {
        tell_of_halt("resume", process.name, how);
      }
    }
    kernel_.resumed(process);
  }

  // --- the server ---

  void start_server() {
    if (server_ != nullptr) {
      return;
    }
    const pid_t pid = kFirstServerPid + ++servers_;
    server_ = &kernel_.start(pid, nullptr, "timer_server");
    is_closed_ = false;
    disturbed_ = kernel_.now;
    stops_ = 0;
    stopping_ = kNever;
    may_end_ = std::ranges::any_of(kernel_.failing, [](int error) { return error != 0; }) ||
               kernel_.log_errno != 0;
    tell_of_start(*server_, server(), R"(,"role":"server")");
    const int n =
        begin("driver", "server",
              fmt::format(R"(,"subject":"{}","dir":"{}","log":"{}")", server(), dir_, log_));
    ::sigaction(SIGBUS, nullptr, &of_workers_);
    kernel_.on_ready = [this, n] {
      finish("driver", n);
      if (servers_ > 1) {
        ::sigaction(SIGBUS, &of_workers_, nullptr);
      }
    };
    kernel_.start_server(pid, [this] {
      std::vector<char*> words;
      for (std::string& argument : arguments_) {
        words.push_back(argument.data());
      }
      words.push_back(nullptr);
      return timer_server_main(static_cast<int>(arguments_.size()), words.data());
    });
  }

  // Returns whether the server was still starting. The handler of the workers is in place again.
  bool end_start() {
    const bool was_starting = std::exchange(kernel_.on_ready, nullptr) != nullptr;
    if (was_starting && servers_ > 1) {
      ::sigaction(SIGBUS, &of_workers_, nullptr);
    }
    return was_starting;
  }

  void crash() {
    disturbed_ = kernel_.now;
    const bool was_starting = end_start();
    tell("kill_server", server());
    stop_halt_of_server();
    losses_.push_back(unread_lines());  // a pipe without a reader loses what it has
    // The record of a scope that was left open was not in the log yet.
    losses_.push_back({{kernel_.now - kBetween, kernel_.now}, true, true, nullptr, true});
    if (was_starting) {
      general_.insert("one-verdict");
    }
    const Span now{kernel_.now, kernel_.now};
    if (kernel_.log_hangs_until > 0 ||
        std::ranges::any_of(log_trouble_, [&](const Span& span) { return overlap(span, now); })) {
      general_.insert("one-verdict");  // records of scopes that were left open waited in memory
    }
    if (stops_ > 0) {
      general_.insert("signals");  // no record says that the grace periods were cut short
    }
    kernel_.drop_server();
    forget_signals();
    kernel_.end(*std::exchange(server_, nullptr), -SIGKILL);
  }

  void starve(Nanos time) {
    if (std::exchange(kernel_.is_server_halted, true)) {
      return;
    }
    disturbed_ = kernel_.now + time;
    if (kernel_.on_ready) {  // a server that starts notices nothing
      slow_.push_back({kernel_.now, kernel_.now + time + kSecond});
    }
    const int n = begin("driver", "halt", fmt::format(R"(,"subject":"{}","how":"stop")", server()));
    finish("driver", n, "", kernel_.on_ready ? kernel_.now + time : kernel_.now);
    kernel_.at(kernel_.now + time, [this] { stop_halt_of_server(); });
    if (settings_.contains("disk")) {  // a record in the hand of the thread has had its time
      log_trouble_.push_back({kernel_.now, kernel_.now + time + kSecond});
    }
  }

  void stop_halt_of_server() {
    if (std::exchange(kernel_.is_server_halted, false)) {
      tell_of_halt("resume", server());
      if (!log_trouble_.empty()) {  // a log that failed before is tried again now
        log_trouble_.push_back({kernel_.now, kernel_.now + kSecond});
      }
    }
  }

  // 0: a log rotator has moved the log away before.
  void signal_server(int which) {
    constexpr int kSignals[] = {SIGHUP, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGQUIT, SIGINT};
    if (which == 0 && ::access(old_log_.c_str(), F_OK) != 0) {
      (void)std::rename(log_.c_str(), old_log_.c_str());
    }
    if (kSignals[which] == SIGINT) {
      ask_to_stop();
    }
    ::raise(kSignals[which]);
  }

  void ask_to_stop() {
    may_end_ = true;
    is_closed_ = true;
    ++stops_;
    tell("stop_server", server());
  }

  void terminate() {
    ask_to_stop();
    stopping_ = std::min(stopping_, kernel_.now);
    ::raise(SIGTERM);
  }

  void on_server_end(int status) {
    tell_of_end(server(), status);
    if (!may_end_) {
      violation("server-life: the server has ended by itself with status {}", status);
    }
    if (end_start()) {  // which has failed
      losses_.push_back(unread_lines());
    }
    if (kernel_.now - stopping_ > kStopLimit && disturbed_ < stopping_) {
      violation("liveness: the server has ended {:.3f} s after SIGTERM",
                static_cast<double>(kernel_.now - stopping_) / 1e9);
    }
    forget_signals();
    disturbed_ = kernel_.now;
    Process* const server = std::exchange(server_, nullptr);
    kernel_.at(kernel_.now, [this, server, status] { kernel_.end(*server, status); });
  }

  void ask(int what) {
    static constexpr const char* kQuestions[] = {
        R"("request":"status")",
        R"("request":"ping")",
        R"("request":"drain")",
        R"("request":"drain","off":true)",
        R"("request":"shutdown")",
        R"("request":"shutdown","force":true)",
        R"("request":"shutdown","graceful":"scopes")",
        R"("request":"shutdown","graceful":"scopes","force":true)"};
    const auto address = ControlAddress::in(dir_);
    const UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int fd = ::fcntl(made.get(), F_DUPFD_CLOEXEC, kFirstOfWorld);
    connections_.emplace_back(fd);
    if (::connect(fd, address->get(), ControlAddress::size()) != 0) {
      return;
    }
    if (what >= 4) {
      ask_to_stop();
    }
    is_closed_ = is_closed_ || what >= 2;
    withdrawn_ = what == 3 ? kernel_.now : withdrawn_;
    const std::string packet =
        fmt::format(R"({{"version": 1, {}, "wait_s": 3}})", kQuestions[what]);
    (void)::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
    const Nanos asked = kernel_.now;
    kernel_.at(asked + kAnswer, [this, what, asked, fd] { judge_answer(what, asked, fd); });
  }

  // The answer has come, and says what was done.
  void judge_answer(int what, Nanos asked, int fd) {
    const auto folder = removed_.find(dir_ + "/control");
    if (disturbed_ >= asked || (folder != removed_.end() && folder->second >= asked)) {
      return;
    }
    char answer[4096] = "";
    const ssize_t got = ::recv(fd, answer, sizeof answer - 1, 0);
    const std::string_view text(answer, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    const auto says = [text](std::string_view word) { return text.find(word) != text.npos; };
    const std::string paths = fmt::format(R"("fifo":"{}/requests","log":"{}")", dir_, log_);
    const bool is_right = what == 0   ? says(paths)
                          : what == 1 ? says("done")
                          : what == 2 ? says(R"("draining":true)")
                          : what == 3 ? says(R"("draining":)") || says("refused")
                                      : says("granted") || (what == 4 && says("refused"));
    if (!is_right) {
      violation("liveness: the answer to question {} is '{}'", what, text);
    }
    const bool is_free = std::ranges::none_of(
        scopes_, [&](const Scope& scope) { return scope.open.to >= asked - kSecond; });
    if (server_ != nullptr && withdrawn_ < asked &&
        (what == 5 || what == 7 || (what >= 4 && is_free))) {
      violation("liveness: the server has not ended after question {}", what);
    }
  }

  // --- adversities ---

  void fail(int call, int error) {
    constexpr int kErrors[] = {EMFILE, ENOSPC, EIO, ENOMEM, EINTR, kShort};
    const Call what = static_cast<Call>(call);
    // The last calls cannot fail. A signal to a live process does not fail for a moment.
    if (call >= kCalls || what == Call::kSignal) {
      return;
    }
    error = kErrors[std::clamp(error, 0, 5)];
    if (error == kShort && what != Call::kWrite && what != Call::kPwrite && what != Call::kRead) {
      error = ENOMEM;  // these transfer bytes
    }
    if (error == EINTR && what != Call::kOpen && what != Call::kWrite && what != Call::kPwrite) {
      error = ENOMEM;  // only these calls can be interrupted
    }
    if (what == Call::kProc || what == Call::kOpenProcess || what == Call::kOpen) {
      error = error == ENOMEM || error == EINTR ? error : EMFILE;
    }
    kernel_.failing[call] = error;
    has_kept_files_ = has_kept_files_ || what == Call::kUnlink;
    cannot_cut_ = cannot_cut_ || what == Call::kTruncate;
    has_short_writes_ = has_short_writes_ || (error == kShort && what == Call::kWrite);
    if (has_short_writes_ && cannot_cut_) {
      general_.insert("whole-lines");  // half a line in the log that cannot be cut off
    }
    if (what == Call::kProc) {
      general_.insert("deferred-has-halt");  // a halt that is not seen once is another one then
    }
    may_end_ = may_end_ || kernel_.on_ready;
  }

  void trouble_log(Nanos until) {
    const int n = begin("driver", "log_trouble", "");
    disturbed_ = std::max(disturbed_, until + kSecond);
    slow_.push_back({kernel_.now, until + kSecond});
    log_trouble_.push_back(slow_.back());
    kernel_.at(until, [this, n] { finish("driver", n); });
  }

  void remove(int what, const Made& made) {
    constexpr const char* kFiles[] = {
        "", "server", "requests", "scopes", "scopes/.owners", "scopes/server", "control"};
    const bool is_page = what == 0 || what == 7;
    const std::string page = made.client->page_path();
    if (what < 0 || what > 7 || (is_page && page.empty())) {
      return;
    }
    std::error_code ec;
    note("driver", "files", fmt::format(R"(,"what":"{}")", what));
    may_end_ = may_end_ || kernel_.on_ready;
    if (what == 7) {
      (void)!::truncate(page.c_str(), 0);
      general_.insert({"record-times", "one-to-one"});  // a page that is cut short shows zeroes
    } else {
      std::filesystem::remove_all(is_page ? page : fmt::format("{}/{}", dir_, kFiles[what]), ec);
    }
    if (const std::string path = fmt::format("{}/{}", dir_, kFiles[what % 7]); !is_page) {
      // A sweep makes it again.
      const Nanos removed = kernel_.now;
      removed_[path] = removed;
      kernel_.at(removed + interval() + kSecond, [this, path, removed] {
        const std::string folder = path.substr(0, path.rfind('/'));
        if (server_ != nullptr && disturbed_ < removed && removed_[path] == removed &&
            removed_[folder] <= removed && ::access(path.c_str(), F_OK) != 0) {
          violation("liveness: '{}' was removed, and not made again", path);
        }
      });
    }
    if (what == 1 || what == 2) {
      slow_.push_back({kernel_.now, kernel_.now + interval()});
      unannounced_.push_back(slow_.back());
    }
    Nanos from = kernel_.all_read_at();
    for (const Span& span : slow_) {  // in which a page may be waiting for the next look at it
      from = span.from <= kernel_.now && span.to > kernel_.now ? std::min(from, span.from) : from;
    }
    if (is_page || what == 3 || what == 4) {
      losses_.push_back(
          {{from, kernel_.now + kClientLook}, true, false, is_page ? made.process : nullptr});
      for (const Made& each : workers_) {
        if (!is_page || &each == &made) {  // its statistics are gone with the page
          excuse("counts", "subject", each.process->name);
        }
      }
    }
    if (what == 2 || what == 3 || what == 5) {
      const Nanos sweep = what == 2 ? 0 : interval() + kSecond;
      losses_.push_back({{from, kernel_.now + sweep}, false, true, nullptr});
    }
  }

  // The reason is on record before the signal: a verdict on a scope of the process or an ancestor.
  // Or the process is in a scope that is signalled first.
  void on_signal(Process& process, int signal) {
    if (is_verbose_) {
      fmt::print(stderr, "[{:.6f}] signal {} to {} {}\n", static_cast<double>(kernel_.now) / 1e9,
                 signal, process.pid, process.name);
    }
    if (settings_.contains("--dry-run")) {
      violation("signals: signal {} to {} in a dry run", signal, process.name);
    }
    if (process.reaction != Reaction::kDies) {
      survivors_.insert(&process);
    }
    if (signal == SIGCONT && stopped_.erase(&process) > 0) {
      tell_of_halt("resume", process.name);
    }
    if (signal == SIGKILL && setting("--kill") != "process") {
      for (const auto& each : kernel_.processes) {
        if (each->parent == &process && each->is_alive) {
          doomed_.push_back(each.get());
        }
      }
    }
    if (kernel_.now - call_failed_ < kSecond ||  // that of its kill file, perhaps
        std::ranges::any_of(scopes_, [&](const Scope& scope) {
          return scope.process == &process && scope.terms.signal_first &&
                 scope.terms.signal == signal && due(scope) - grace_first(scope) <= kernel_.now &&
                 (!scope.on_page || scope.open.to >= kernel_.now - kTurn);
        })) {
      return;
    }
    std::string log = read_file(old_log_) + read_file(log_);
    std::error_code no_folder;
    for (const auto& file : std::filesystem::directory_iterator(dir_ + "/kills", no_folder)) {
      log += read_file(file.path().string());
    }
    for (const Process* each = &process; each != nullptr; each = each->parent) {
      const std::string who = fmt::format("\"pid\":{},\"start_time\":{},", each->pid, each->start);
      for (std::size_t at = 0; (at = log.find(who, at)) != log.npos; ++at) {
        const std::size_t line = log.rfind('\n', at) + 1;
        if (log.substr(line, at - line).find("\"event\":\"expired\"") != log.npos) {
          signalled_.insert(&process);
          return;
        }
      }
    }
    if (signal == SIGCONT && signalled_.contains(&process)) {
      return;  // its ancestor has ended since
    }
    violation("signals: signal {} to {} (pid {}), no scope of which has a verdict", signal,
              process.name, process.pid);
  }

  // Returns whether the server may not know the scope, or not know that it has ended.
  bool may_be_lost(const Scope& scope) const {
    return std::ranges::any_of(losses_, [&](const Loss& loss) {
      return (scope.on_page ? loss.of_pages : loss.of_lines) &&
             (loss.process == nullptr || loss.process == scope.process) &&
             overlap(loss.when, scope.open) &&
             (!loss.is_of_ends || scope.open.from >= loss.when.from ||
              scope.open.to <= loss.when.to);
    });
  }

  // Writes the exceptions that the adversities have to the history.
  void excuse_all() {
    if (settings_.contains("--dry-run")) {
      general_.insert("hang-is-killed");
    }
    for (const std::string& promise : general_) {
      excuse(promise, "reason", "adversity");
    }
    for (const Scope& scope : scopes_) {
      const std::string& worker = scope.process->name;
      for (const Span& span : slow_) {
        if (!overlap(span, scope.open)) {
          continue;
        }
        excuse("hang-is-judged", "key", scope.key);
        excuse("record-links", "key", scope.key);  // its page is looked at again at a sweep
        if (scope.open.to <= span.to + kSlow) {
          excuse("hang-is-killed", "key", scope.key);
        }
      }
      // A halt that began before the server knew the scope is not seen.
      if (std::ranges::any_of(unannounced_, [&](const Span& span) {
            return overlap(span, {scope.open.from, scope.open.from});
          })) {
        excuse("not-early", "key", scope.key);
      }
      if (may_be_lost(scope)) {
        for (const char* promise :
             {"hang-is-judged", "hang-is-killed", "one-verdict", "released-in-time", "record-terms",
              "not-early", "record-links", "one-to-one"}) {
          excuse(promise, "key", scope.key);
        }
        excuse("known-scopes", "subject", worker);
      }
      if (scope.process->is_stuck) {
        excuse("hang-is-killed", "subject", worker);
        excuse("hang-is-judged", "subject", worker);
      }
    }
  }

  // Returns when the worker has left a scope for the last time; 0: it has not.
  Nanos last_left(const Process& process, Nanos before) const {
    Nanos last = 0;
    for (const Scope& scope : scopes_) {
      const Nanos end = scope.on_page ? scope.open.to : std::min(scope.open.to, due(scope));
      if (scope.process == &process && end <= before &&
          (scope.on_page || (!scope.is_refused && !may_be_lost(scope)))) {
        last = std::max(last, end);
      }
    }
    return last;
  }

  // Returns the time from the signal of a scope that is signalled first to its deadline; else 0.
  Nanos grace_first(const Scope& scope) const {
    return scope.terms.signal_first ? grace(scope.terms) : 0;
  }

  Nanos due(const Scope& scope) const {
    const Nanos timeout = std::min(scope.timeout, time_of("--max-timeout", kNever));
    return timeout == kNever ? kNever : scope.open.from + timeout + grace_first(scope);
  }

  // A verdict ends a scope of the pipe.
  bool is_inside(const Process& process, Nanos when, bool is_on_pipe = true,
                 bool is_sure = false) const {
    return std::ranges::any_of(scopes_, [&](const Scope& scope) {
      const bool is_due = when >= due(scope);
      return scope.process == &process && !scope.is_refused && scope.open.from < when &&
             scope.open.to > when && (scope.on_page || (is_on_pipe && !is_due)) &&
             !(is_sure && may_be_lost(scope));
    });
  }

  // What the checker does not know: the options of this history and idle timeouts.
  void judge_records() {
    std::deque<simdjson::dom::parser> parsers;  // have the memory of the records
    std::vector<Record> records;
    std::istringstream log(read_file(old_log_) + read_file(log_));
    std::set<std::string> known;  // a line that was written again counts once
    for (std::string line; std::getline(log, line);) {
      Record record;
      if (known.insert(line).second &&
          parsers.emplace_back().parse(line).get(record) == simdjson::SUCCESS) {
        records.push_back(record);
      }
    }
    const auto has = [&](const auto& wanted) { return std::ranges::any_of(records, wanted); };
    for (const Record& record : records) {
      const bool is_expired = text_at(record, "event") == "expired";
      if (text_at(record, "reason").find("could not be carried out") != std::string_view::npos) {
        violation("server-lives: {}", text_at(record, "reason"));
      }
      if (is_expired && text_at(record, "scope") == "(idle)") {
        // A signal ends the scopes of the pipe, whether or not the worker survives it.
        judge_idle(record, has([&](const Record& killed) {
                     return text_at(killed, "event") == "killed" &&
                            !objects_at(killed, "signals").empty() &&
                            number_in(killed, "pid") == number_in(record, "pid") &&
                            number_in(killed, "mono_ns") < number_in(record, "mono_ns");
                   }));
        for (const Record& killed : records) {
          if (text_at(killed, "event") == "killed" &&
              text_at(killed, "id") == text_at(record, "id")) {
            judge_idle_kill(killed, number_in(record, "deadline_mono_ns"));
          }
        }
      }
    }
    for (const Scope& scope : scopes_) {
      const bool is_paused =
          scope.on_page && slot_word::is_paused(scope.place.slot->slot->deadline.load());
      const bool may_be_cancelled = !scope.on_page && survivors_.contains(scope.process);
      if (scope.open.to == kNever && due(scope) < kNever && scope.process->can_run() &&
          !is_paused && !may_be_cancelled && !scope.is_refused && !may_be_lost(scope) &&
          !has([&](const Record& record) {
            return text_at(record, "event") == "expired" &&
                   text_at(record, "scope") == scope.name &&
                   number_in(record, "pid") == scope.process->pid &&
                   number_in(record, "mono_ns") > scope.open.from;
          })) {
        violation("hang-is-judged: {} of {} is open at the end", scope.name, scope.process->name);
      }
    }
    const pid_t last = kFirstServerPid + servers_;
    if (stops_ == 1 && has([last](const Record& record) {
          return text_at(record, "event") == "server_stopped" &&
                 text_at(record, "reason") != "SIGTERM" && number_in(record, "server_pid") == last;
        })) {
      violation("record-fields: the reason of the stop is not SIGTERM");
    }
    if (settings_.contains("--metrics")) {
      judge_metrics(records);
    }
  }

  void judge_idle(const Record& record, bool was_signalled) {
    const Nanos judged = number_in(record, "mono_ns");
    const auto idle = std::ranges::find_if(idles_, [&](const Idle& each) {
      return each.process->pid == number_in(record, "pid") && each.on.from < judged &&
             each.on.to >= judged;
    });
    const bool is_page_lost = std::ranges::any_of(losses_, [&](const Loss& loss) {
      return loss.of_pages && loss.process != nullptr &&
             loss.process->pid == number_in(record, "pid");
    });
    // In a directory that is made again a worker has a second page, which does not have the ends of
    // the scopes of the first.
    if (is_page_lost || removed_.contains(dir_ + "/server") ||
        removed_.contains(dir_ + "/scopes")) {
      return;
    }
    if (idle == idles_.end() || is_inside(*idle->process, judged - kTurn, !was_signalled, true) ||
        judged < last_left(*idle->process, judged) + idle->timeout) {
      violation("not-early: {} of pid {}, which was not idle for so long", text_at(record, "id"),
                number_in(record, "pid"));
    }
  }

  // A worker that has been in a scope since its idle timeout gets no signal.
  void judge_idle_kill(const Record& killed, Nanos deadline) {
    const auto signals = objects_at(killed, "signals");
    for (const Scope& scope : scopes_) {
      if (!signals.empty() && scope.process->pid == number_in(killed, "pid") &&
          scope.open.from > deadline && !scope.is_refused &&
          scope.open.to < number_in(signals.front(), "mono_ns") - kTurn && !may_be_lost(scope)) {
        violation("signals: {}, and it has been in {} since", text_at(killed, "id"), scope.name);
      }
    }
  }

  // The counters of the last server are those of its records.
  void judge_metrics(const std::vector<Record>& records) {
    std::map<std::string, std::int64_t> counted;
    std::istringstream file(read_file(dir_ + ".metrics"));
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with('#')) {
        const bool is_of_halt = line.find("worker_halted") != line.npos;
        counted[line.substr(0, line.find('{')) + (is_of_halt ? "_halted" : "")] +=
            std::atoll(line.c_str() + line.rfind(' '));
      }
    }
    std::map<std::string, std::int64_t> recorded;
    for (const Record& record : records) {
      const std::string event = text_at(record, "event");
      if (number_in(record, "server_pid") == kFirstServerPid + servers_) {
        recorded["filetimer_expired_total"] += event == "expired" ? 1 : 0;
        recorded["filetimer_rejected_total"] +=
            event == "rejected" ? number_in(record, "count") : 0;
        recorded["filetimer_deferred_total"] +=
            event == "deferred" && has_field(record, "given_s") ? 1 : 0;
        recorded["filetimer_deferred_total_halted"] +=
            event == "deferred" && has_field(record, "pid") ? 1 : 0;
        recorded["filetimer_warned_total"] +=
            event == "warned" && has_field(record, "id") ? 1 + number_in(record, "omitted") : 0;
        recorded["filetimer_released_late_total"] += event == "released_late" ? 1 : 0;
        recorded["filetimer_killed_total"] += number_in(record, "killed");
        recorded["filetimer_verdict_lateness_seconds_count"] += event == "expired" ? 1 : 0;
        recorded["filetimer_requests_total"] += number_in(record, "requests");
      }
    }
    for (const auto& [name, count] : recorded) {
      if (counted[name] != count) {
        violation("counts: {} is {}, the records say {}", name, counted[name], count);
      }
    }
  }

  // What a server that has ended in order leaves: a status page that says so, no pipe, and no file
  // of a process that has ended, but for empty files.
  void judge_directory() {
    const auto page = MappedFile::map(dir_ + "/server", MappedFile::Access::kRead, kBoardBytes);
    if (!page) {
      violation("directory: no status page is left: {}", page.error().message);
      return;
    }
    const Board& board = *static_cast<const Board*>(page->data());
    if (board.state != static_cast<std::uint32_t>(ServerState::kStopped) ||
        board.next_wake != kWakeNever || board.announcement != 0) {
      violation("directory: the status page says state {}, next wake-up {}, announcement {}",
                board.state.load(), board.next_wake.load(), board.announcement.load());
    }
    if (std::filesystem::exists(dir_ + "/requests")) {
      violation("directory: the request pipe is left");
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/scopes")) {
      if (entry.is_regular_file() && entry.file_size() > 0 &&
          kernel_.find(std::atoi(entry.path().filename().c_str())) == nullptr) {
        violation("directory: '{}' is left", entry.path().string());
      }
    }
  }

  // The end of the history: all adversities end, a server starts and is asked to stop.
  void quiet() {
    kernel_.forget_actions();
    stop_halt_of_server();
    kernel_.log_errno = 0;
    kernel_.log_hangs_until = std::min(kernel_.log_hangs_until, kernel_.now);
    kernel_.proc_hangs_until = 0;
    std::ranges::fill(kernel_.failing, 0);
    for (const Made& made : workers_) {
      go(*made.process);
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
    for (const auto& process : kernel_.processes) {
      if (process->is_alive && process->is_halted[0] && !process->is_stuck) {
        violation("signals: {} (pid {}) is left stopped", process->name, process->pid);
      }
    }
    for (const Process* process : doomed_) {
      if (process->is_alive && !process->is_stuck && servers_ == 1 && slow_.empty()) {
        violation("targets: {} (pid {}) survives the kill of its parent", process->name,
                  process->pid);
      }
    }
    for (const Idle& idle : idles_) {
      const Nanos left = last_left(*idle.process, kernel_.now);
      const Nanos due = std::max({left, disturbed_, idle.on.from}) + idle.timeout;
      if (idle.process->can_run() && !settings_.contains("--dry-run") && idle.on.to == kNever &&
          left > idle.on.from && !is_inside(*idle.process, kernel_.now) &&
          due < kernel_.now - kQuiet / 2 && losses_.empty()) {
        violation("hang-is-judged: the idle timeout of {} is over", idle.process->name);
      }
    }
    if (server_ == nullptr) {
      violation("server-life: the server does not start without adversities");
      return;
    }
    for (Scope scope : scopes_) {
      scope.open.to = kNever;  // its page may have been lost since
      if (scope.on_page && scope.process->can_run() && !may_be_lost(scope) &&
          scope.place.slot->slot->deadline.load() == slot_word::kReleasedLate) {
        violation("slots: {} of {} was released late, and its slot is kept", scope.name,
                  scope.process->name);
      }
    }
    const bool was_quiet = disturbed_ < kernel_.now - kQuiet / 2;
    terminate();
    kernel_.run_until(kernel_.now + kStop);
    if (server_ != nullptr) {
      violation("server-life: the server has not ended after SIGTERM");
    } else if (was_quiet && !has_kept_files_) {
      judge_directory();
    }
  }

  Kernel kernel_;
  const std::string dir_;
  const std::string log_;
  const std::string old_log_;  // before it was rotated
  Nanos call_failed_ = 0;      // when the last call of the server failed
  const bool is_verbose_;
  std::map<std::string, std::string> settings_;
  std::vector<std::string> arguments_;
  std::array<Made, kWorkers> workers_;
  std::vector<Scope> scopes_;
  std::string history_;  // for history_check
  std::vector<std::string> violations_;

  Process* server_ = nullptr;
  int servers_ = 0;
  bool cannot_cut_ = false;        // a file once
  bool has_short_writes_ = false;  // at least one
  bool may_end_ = false;           // the server was asked to end, or a call of its start failed
  bool is_closed_ = false;         // the server was asked to watch no new scopes
  Nanos withdrawn_ = 0;            // when shutdowns that wait were withdrawn
  std::map<std::string, Nanos> removed_;  // the time at which each path was removed last
  bool has_kept_files_ = false;   // which the server could not remove, or found without an owner
  bool has_moved_clock_ = false;  // the wall clock
  int stops_ = 0;                 // that the server was asked for
  Nanos stopping_ = kNever;       // since when it stops for SIGTERM
  Nanos disturbed_ = 0;           // until then a server may have been unable to do something
  pid_t next_pid_ = kFirstPid;
  int calls_ = 0;
  int keys_ = 0;
  int names_ = 0;
  std::vector<UniqueFd> connections_;

  std::vector<Idle> idles_;
  std::vector<Loss> losses_;
  std::vector<Span> slow_;         // verdicts may be late: a call failed, /proc did not answer
  std::vector<Span> unannounced_;  // in which the wake-up for a new page may be lost
  std::vector<Span> log_trouble_;
  std::set<std::string> general_;   // promises that an adversity suspends for the history
  struct sigaction of_workers_ {};  // which a server replaces, as if it had a process of its own
  std::set<const Process*> signalled_;  // with a verdict on record
  std::set<const Process*> survivors_;  // of a signal
  std::set<const Process*> stopped_;    // by the history, until the server's SIGCONT
  std::vector<const Process*> doomed_;  // children of a worker that was killed
};

}  // namespace

std::string run_history(const Operations& operations, const std::string& dir, bool is_verbose) {
  return fmt::format("{}", fmt::join(Simulation(dir, is_verbose).run(operations), ""));
}

}  // namespace filetimer::sim
