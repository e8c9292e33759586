// `timer_client acquire` and `release`: one request for another process, typically the calling
// shell. The timer must not end with this process, so it is on the pipe.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "common/numbers.hpp"
#include "common/run_folder.hpp"
#include "common/scope_name.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_client/client/scope_terms.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer::cli {
namespace {

using std::chrono::milliseconds;

// How long a request waits for room in a full pipe, which a running server empties soon.
constexpr Duration kPatienceWhenFull = milliseconds{1000};
// How long a request waits for a server that is being restarted. Short, so that a missing server is
// reported soon.
constexpr Duration kPatienceWithoutServer = milliseconds{250};
constexpr Duration kPause = milliseconds{10};

struct AcquireArguments {
  Place place;
  std::string scope;
  std::optional<Duration> after;
  std::optional<Duration> warn_after;
  pid_t pid = 0;  // 0: the parent
  int signal = SIGKILL;
};

constexpr const char* kExits =
    "Exit codes: 0 sent, 1 failed, 2 usage, 4 no server, 6 refused (another user's process; a new\n"
    "timer while the server drains or shuts down; a server in another pid namespace).";

// Returns `given`; 0: the parent process. Fails if no server would watch that process.
Result<pid_t> watched_pid(pid_t given) {
  if (given != 0) {
    return given;
  }
  const pid_t parent = ::getppid();
  if (parent == 1) {
    return failure("the calling process is process 1, which is not watched: expected --pid PID");
  }
  return parent;
}

// The process that a timer is for, and the server that watches it.
struct Target {
  ServerLocation place;
  pid_t pid = 0;
};

// Returns the target. On failure writes a line that the scope is not `not_done` on standard error,
// and returns the exit code.
std::variant<Target, int> find_target(const AcquireArguments& options, std::string_view not_done) {
  Target target{locate_server(options.place.dir, options.place.fifo)};
  const Result<pid_t> pid = watched_pid(options.pid);
  if (!pid) {
    complain(pid.error().message);
    return kExitUsage;
  }
  target.pid = *pid;
  if (const std::string why = why_no_pids(target.place.run_folder);
      !why.empty() && look_for_server(target.place.run_folder).is_there) {
    complain(fmt::format("'{}' is not {}: {}", options.scope, not_done, why));
    return kExitRefused;
  }
  return target;
}

// Sends what `request` returns until it is in the pipe, or no process has read the pipe for too
// long. Sends nothing if the last server of the place is in another pid namespace: the line would
// stay in the pipe until that server is back, and there the pid names another process.
int send_patiently(const ServerLocation& place, const std::function<wire::Request()>& request) {
  const Instant start = Instant::now();
  for (;;) {
    const std::string why_not = why_no_pids(place.run_folder);
    const Sent sent = why_not.empty() ? send_request(place.pipe, request()) : Sent::kNoServer;
    if (sent == Sent::kYes) {
      client_messages::debug("sent to '{}'", place.pipe);
      return kExitDone;
    }
    const bool full = sent == Sent::kBusy;
    if (Instant::now() - start >= (full ? kPatienceWhenFull : kPatienceWithoutServer)) {
      if (full) {
        complain(fmt::format("the server does not read its pipe '{}': it was full for {}",
                             place.pipe, duration_text(kPatienceWhenFull)));
        return kExitFailed;
      }
      const std::string why = why_not.empty() ? why_no_reader(place.pipe) : why_not;
      complain(fmt::format("no timer server at '{}': {}", place.pipe,
                           why.empty() ? "its process ended" : why));
      return kExitNoServer;
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Returns whether the server has the timer already. A server that drains still renews such timers.
bool is_open(const ServerLocation& place, const std::string& id, pid_t pid) {
  const auto reading = read_pages(place.run_folder, kForever, ReadStatistics::kNo);
  return reading && std::ranges::any_of(reading->scopes, [&](const ListedScope& scope) {
           return scope.owner->transport == ServedBy::kPipe && scope.owner->pid == pid &&
                  scope.slot.id == id && !scope.is_expired();
         });
}

int run_acquire(const AcquireArguments& options) {
  if (!options.after) {
    complain("acquire: --timeout is required");
    return kExitUsage;
  }
  if (!is_warn_after(options.warn_after, *options.after)) {
    complain("--warn-after: " + why_no_warn_after(*options.warn_after, *options.after));
    return kExitUsage;
  }
  const auto found = find_target(options, "watched");
  if (const int* const exit_code = std::get_if<int>(&found)) {
    return *exit_code;
  }
  const Target& target = std::get<Target>(found);
  // The server sends no answer to an acquire, so the process is checked here. Signal 0 only checks.
  if (::kill(target.pid, 0) != 0) {
    const bool exists = errno == EPERM;
    complain(fmt::format("process {} {}", target.pid,
                         exists ? "belongs to another user: it can't be watched"
                                : "does not exist: nothing to watch"));
    return exists ? kExitRefused : kExitFailed;
  }
  // The same holds for a drain. The check is as late as possible; a drain may still begin after it.
  const std::string id = bounded_scope_name(valid_utf8(options.scope));
  if (const std::string why = why_no_new_scopes(target.place);
      !why.empty() && !is_open(target.place, id, target.pid)) {
    complain(fmt::format("'{}' is not watched: {}", options.scope, why));
    return kExitRefused;
  }
  return send_patiently(target.place, [&] {
    return acquire_request(
        *options.after, id,
        {.pid = target.pid, .signal = options.signal, .warn_after = options.warn_after});
  });
}

int run_release(const AcquireArguments& options) {
  const auto found = find_target(options, "released");
  if (const int* const exit_code = std::get_if<int>(&found)) {
    return *exit_code;
  }
  const Target& target = std::get<Target>(found);
  const std::string id = bounded_scope_name(valid_utf8(options.scope));
  return send_patiently(target.place, [&] { return release_request(id, target.pid); });
}

void add_pid_option(CLI::App& app, AcquireArguments& options) {
  app.add_option_function<std::string>(
         "--pid",
         [&options](const std::string& word) {
           const auto pid = number_from<pid_t>(word);
           if (!pid || *pid <= 1) {
             throw CLI::ValidationError(
                 "--pid",
                 fmt::format("'{}' is not a process to watch: expected a number over 1", word));
           }
           options.pid = *pid;
         },
         "The watched process [the one that calls timer_client]")
      ->type_name("PID");
}

}  // namespace

Command add_acquire(CLI::App& root) {
  auto options = std::make_shared<AcquireArguments>();
  CLI::App* app =
      root.add_subcommand("acquire", "Start a timer that kills a process unless it is released");
  add_scope_option(*app, options->scope, "The timer's name; acquiring it again renews it")
      ->required();
  add_timeout_option(*app, options->after, "When it expires (inf: never)");
  add_warn_after_option(*app, options->warn_after);
  add_pid_option(*app, *options);
  add_signal_option(*app, options->signal);
  add_place_options(*app, options->place);
  app->footer(
      std::string("Examples:\n"
                  "  timer_client acquire --scope copy --timeout 10m   # in a shell script\n"
                  "  cp -r data /scratch\n"
                  "  timer_client release --scope copy\n\n") +
      kExits);
  return {app, [options] { return run_acquire(*options); }};
}

Command add_release(CLI::App& root) {
  auto options = std::make_shared<AcquireArguments>();
  CLI::App* app = root.add_subcommand("release", "End a timer that `acquire` started");
  add_scope_option(*app, options->scope, "The timer's name")->required();
  add_pid_option(*app, *options);
  add_place_options(*app, options->place);
  app->footer(std::string("Example:\n"
                          "  timer_client release --scope copy --pid 4711\n\n") +
              kExits);
  return {app, [options] { return run_release(*options); }};
}

}  // namespace filetimer::cli
