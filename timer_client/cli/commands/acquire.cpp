// `timer_client acquire` and `release`: one request for another process, typically the calling
// shell. The timer must not end with this process, so it is on the pipe.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/scope_pages.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/client/environment.hpp"
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
// The same for the release of an open timer: the next server would kill the process for it.
constexpr Duration kPatienceOfRelease = milliseconds{10'000};
constexpr Duration kPause = milliseconds{10};

constexpr const char* kExits =
    "Exit codes: 0 sent, 1 failed, 2 usage, 4 no server, 6 refused (another user's process, or "
    "one\n"
    "that has started the server; a new timer while the server drains or shuts down; a server in\n"
    "another pid namespace).";

// Sends what `request` returns until it is in the pipe, or no process has read the pipe for too
// long: for kPatienceOfRelease if `is_release_needed` returns true then. Sends nothing if the last
// server of the place is in another pid namespace: the line would stay in the pipe until that
// server is back, and there the pid names another process.
int send_patiently(const ServerLocation& place, const std::function<wire::Request()>& request,
                   const std::function<bool()>& is_release_needed = nullptr) {
  const Instant start = Instant::now();
  Duration patience = kPatienceWithoutServer;
  for (;;) {
    const std::string why_not = why_no_pids(place.run_folder);
    const Sent sent = why_not.empty() ? send_request(place.pipe, request()) : Sent::kNoServer;
    if (sent == Sent::kYes) {
      client_messages::debug("sent to '{}'", place.pipe);
      return kExitDone;
    }
    const Duration waited = Instant::now() - start;
    if (sent == Sent::kBusy && waited >= kPatienceWhenFull) {
      return failed(fmt::format("the server does not read its pipe '{}': it was full for {}",
                                place.pipe, duration_text(kPatienceWhenFull)),
                    kExitFailed);
    }
    if (sent == Sent::kNoServer && waited >= patience) {
      if (patience == kPatienceWithoutServer && is_release_needed && is_release_needed()) {
        patience = kPatienceOfRelease;
        continue;
      }
      const std::string why = why_not.empty() ? why_no_reader(place.pipe) : why_not;
      return failed(fmt::format("no timer server at '{}': {}", place.pipe,
                                why.empty() ? "its process ended" : why),
                    kExitNoServer);
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Returns whether the server has the timer already. A server that drains still renews such timers.
bool is_open(const ServerLocation& place, std::string_view id, pid_t pid) {
  const auto reading = read_pages(place.run_folder, ReadStatistics::kNo);
  return reading && std::ranges::any_of(reading->scopes, [&](const ListedScope& scope) {
           return scope.owner->transport == ServedBy::kPipe && scope.owner->pid == pid &&
                  scope.slot.id == id;
         });
}

// Returns one clear line if the server does not watch the process, which is another user's, or the
// server itself or an ancestor of it. Empty: it may, or the server cannot be seen.
std::string why_never_watched(pid_t pid, pid_t server) {
  if (std::string why = why_of_other_user(pid, server); !why.empty()) {
    return why;
  }
  if (pid == server) {
    return fmt::format("process {} is the timer server, which cannot watch itself", pid);
  }
  if (std::ranges::count(ancestors_of(server), pid) == 0) {  // of a server that is not seen: none
    return {};
  }
  return fmt::format("process {} has started the timer server {}, which cannot watch it", pid,
                     server);
}

int run_timer(const TimerOptions& options, bool is_release) {
  const ServerLocation place = locate_server(options.place.dir, options.place.fifo);
  const pid_t pid = options.pid.value_or(::getppid());
  if (pid <= 1) {
    return failed(
        fmt::format("process {} is not watched: expected --pid PID, a number over 1", pid),
        kExitUsage);
  }
  if (!is_release && !options.timeout) {
    return failed("acquire: --timeout is required", kExitUsage);
  }
  const Duration timeout = options.timeout.value_or(kForever);
  if (!is_warn_after(options.warn_after, timeout)) {
    return failed("--warn-after: " + why_no_warn_after(*options.warn_after, timeout), kExitUsage);
  }
  if (is_switched_off() && !(is_release && has_reader(place.pipe))) {
    return kExitDone;  // a timer that was started before is still released
  }
  if (const std::string why = why_no_pids(place.run_folder);
      !why.empty() && look_for_server(place.run_folder).is_there) {
    return failed(why, kExitRefused);
  }
  const std::string id = bounded_scope_name(valid_utf8(options.scope));
  if (is_release) {
    return send_patiently(
        place, [&] { return release_request(id, pid); }, [&] { return is_open(place, id, pid); });
  }
  // The server sends no answer to an acquire, so the process is checked here. Signal 0 only checks.
  if (::kill(pid, 0) != 0) {
    const int code = errno == EPERM ? kExitRefused : kExitFailed;
    return failed(system_error(fmt::format("cannot watch process {}", pid)).value().message, code);
  }
  // kill() accepts the id of a thread. pidfd_open() fails: with EINVAL, on newer kernels ENOENT.
  const auto stat = read_stat(fmt::format("/proc/{}", pid));
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  if ((!process && (errno == EINVAL || errno == ENOENT)) || (stat && stat->is_kernel_thread)) {
    return failed(
        fmt::format("pid {} is not a process's own id (a thread's?): expected a process", pid),
        kExitUsage);
  }
  if (const std::string why = why_never_watched(pid, look_for_server(place.run_folder).pid);
      !why.empty()) {
    return failed(why, kExitRefused);
  }
  // The same holds for a drain. The check is as late as possible; a drain may still begin after it.
  if (const std::string why = why_no_new_scopes(place); !why.empty() && !is_open(place, id, pid)) {
    return failed(fmt::format("'{}' is not watched: {}", options.scope, why), kExitRefused);
  }
  return send_patiently(place, [&] {
    return acquire_request(
        timeout, id, {.pid = pid, .signal = options.signal, .warn_after = options.warn_after});
  });
}

void add_scope_and_pid(CLI::App& app, TimerOptions& options, const std::string& scope) {
  add_name_option(app, "--scope", options.scope, "NAME", scope)->required();
  add_number_option(app, "--pid", options.pid, "PID",
                    "The watched process [the one that calls timer_client]");
}

}  // namespace

std::string why_of_other_user(pid_t pid, pid_t server) {
  const auto worker = read_status(fmt::format("/proc/{}", pid));
  const auto watcher = read_status(fmt::format("/proc/{}", server));
  if (!worker || !watcher) {
    return {};
  }
  const uid_t expected = watcher->effective_uid;
  const uid_t uid = worker->uid == expected ? worker->effective_uid : worker->uid;
  if (uid == expected) {
    return {};
  }
  return fmt::format("process {} belongs to user {}: expected a process of user {}", pid, uid,
                     expected);
}

Command add_acquire(CLI::App& root) {
  auto options = std::make_shared<TimerOptions>();
  CLI::App* app =
      root.add_subcommand("acquire", "Start a timer that kills a process unless it is released");
  add_scope_and_pid(*app, *options, "The timer's name; acquiring it again renews it");
  add_timeout_options(*app, *options, "When it expires (inf: never)");
  add_signal_option(*app, options->signal);
  add_place_options(*app, options->place);
  app->footer(
      std::string("Examples:\n"
                  "  timer_client acquire --scope copy --timeout 10m   # in a shell script\n"
                  "  cp -r data /scratch\n"
                  "  timer_client release --scope copy\n\n") +
      kExits);
  return {app, [options] { return run_timer(*options, false); }};
}

Command add_release(CLI::App& root) {
  auto options = std::make_shared<TimerOptions>();
  CLI::App* app = root.add_subcommand("release", "End a timer that `acquire` started");
  add_scope_and_pid(*app, *options, "The timer's name");
  add_place_options(*app, options->place);
  app->footer(std::string("Example:\n"
                          "  timer_client release --scope copy --pid 4711\n\n") +
              kExits);
  return {app, [options] { return run_timer(*options, true); }};
}

}  // namespace filetimer::cli
