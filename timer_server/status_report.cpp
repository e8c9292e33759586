// SPDX-License-Identifier: MIT
#include "timer_server/status_report.hpp"

#include <fmt/format.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <ranges>
#include <string_view>
#include <system_error>

#include "common/limits.hpp"
#include "common/proc_files.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

// Scopes that the record of a stop lists.
constexpr std::size_t kMaxLeftScopes = 8192;

std::string_view name_of(Announcement announcement) {
  return announcement == Announcement::kShutdown   ? "shutdown"
         : announcement == Announcement::kDraining ? "draining"
                                                   : "none";
}

void write_places(JsonWriter& json, const Core& core) {
  json.field("dir", core.directory.path())
      .field("fifo", core.directory.pipe().path())
      .field("log", core.log->path());
}

// Adds the object `settings`.
void write_settings(JsonWriter& json, const Settings& settings) {
  const auto seconds = [](std::optional<Duration> duration) {
    return duration ? std::optional(in_seconds(*duration)) : std::nullopt;
  };
  json.begin_object("settings")
      .given("default_timeout_s", seconds(settings.default_timeout))
      .given("max_timeout_s", seconds(settings.max_timeout))
      .given("warn_at", settings.warn_at)
      .field("max_wait_s", seconds(settings.max_wait))
      .field("max_interval_s", seconds(settings.max_interval));
  if (settings.grace) {
    json.field("grace_s", seconds(*settings.grace));
  }
  json.field("kill_wait_s", seconds(settings.kill.kill_wait))
      .field("evidence_timeout_s", seconds(settings.kill.evidence_timeout))
      .field("kill", settings.kill.mode == KillMode::kTree ? "tree" : "process")
      .field("stopped", settings.stopped == Settings::Stopped::kDefer ? "defer" : "kill")
      .field("evidence", name_of(settings.kill.evidence))
      .field("warn_evidence", name_of(settings.kill.evidence_of_warnings()))
      .field("peer_evidence", name_of(settings.kill.evidence_of_peers()))
      .field("dry_run", settings.kill.dry_run)
      .field("realtime", settings.realtime)
      .field("on_expiry", !settings.on_expiry.empty())
      .field("on_warning", !settings.on_warning.empty())
      .field("evidence_command", !settings.evidence_command.empty())
      .array("evidence_drop_ins", settings.drop_ins | std::views::transform(&DropIn::name))
      .field("log_max_bytes", settings.log_max_bytes)
      .given("metrics", settings.metrics)
      .end_object();
}

// Adds the objects `may` and `limits`: what the server can do on this host.
void write_abilities(JsonWriter& json, const KillPath& kill_path) {
  json.begin_object("may")
      .field("signal", kill_path.signal)
      .field("ptrace", kill_path.ptrace)
      .field("kernel_stacks", kill_path.kernel_stacks)
      .end_object();
  json.begin_object("limits")
      .field("descriptors", descriptor_limit())
      .field("workers", most_workers())
      .end_object();
}

// Adds the number of all scopes, the judged ones included, and a list of them: a stopping server
// leaves them.
void write_left(JsonWriter& json, Core& core) {
  const Instant now = Instant::now();
  std::size_t listed = 0;
  json.begin_array("left");
  core.workers.for_each([&](const Worker& worker) {
    for (const ScopeView& scope : core.policy.open_scopes_of(worker)) {
      if (++listed <= kMaxLeftScopes && json.size() <= kMaxRecordBytesOfLists) {
        json.begin_object()
            .field("pid", worker.process->pid)
            .field("scope", scope.name)
            .fixed("elapsed_s", in_seconds(now - scope.terms.acquired), 6)
            .end_object();
      }
    }
  });
  json.end_array().field("left_count", listed);
}

std::string reason() {
  return std::generic_category().message(errno);
}

// A process cannot trace itself. The call on a pid that no process has fails with ESRCH where it is
// allowed, and with EPERM or ENOSYS where a filter forbids it.
bool is_ptrace_allowed() {
  constexpr pid_t kNoProcess = -1;
  return ::ptrace(PTRACE_SEIZE, kNoProcess, nullptr, nullptr) == -1 && errno == ESRCH;
}

}  // namespace

KillPath check_kill_path() {
  KillPath path;
  path.kernel_stacks = read_small_file("/proc/self/stack").has_value();
  path.ptrace = is_ptrace_allowed() && may_trace();
  Process self;
  self.pid = ::getpid();
  self.pidfd = open_pidfd(self.pid);
  if (!self.pidfd) {
    const bool was_tried = errno != EMFILE && errno != ENFILE && errno != ENOMEM;
    path.trouble = fmt::format("{}pidfd_open: {}", was_tried ? "" : "not tried: ", reason());
    if (was_tried) {
      path.signal = false;
    }
    return path;
  }
  path.signal = self.send_signal(0);
  if (!*path.signal) {
    path.trouble = fmt::format("pidfd_send_signal: {}", reason());
  }
  return path;
}

void write_status(JsonWriter& json, const Core& core, const ServerStatus& status,
                  const KillPath& kill_path) {
  json.fixed("uptime_s", in_seconds(status.now.mono - status.started.mono), 3);
  write_places(json, core);
  json.given("command_pid", status.command_pid)
      .field("announcement", name_of(status.announcement))
      .field("workers", status.workers)
      .field("open_scopes", status.open_scopes)
      .field("requests", status.counters.requests)
      .field("rejected", status.rejected)
      .field("expired", status.counters.expired.total())
      .field("killed", status.counters.killed.total())
      .field("kills_under_way", status.kills_under_way)
      .field("unkillable", status.unkillable)
      .field("lost_records", status.lost_records)
      .field("askers", status.waiting_clients)
      .field("descriptors", open_descriptors());
  if (!status.is_log_working) {
    json.field("log_trouble", "the log cannot be written: records wait in memory");
  }
  json.given("pipe_trouble", core.directory.pipe_trouble());
  write_abilities(json, kill_path);
  write_settings(json, core.settings);
}

std::string start_record(const Core& core, const KillPath& kill_path, const StartCounts& counts) {
  JsonWriter json = core.records.begin("server_started");
  json.field("version", FILETIMER_VERSION);
  write_places(json, core);
  write_settings(json, core.settings);
  json.field("adopted_scopes", counts.adopted_scopes).field("ended_scopes", counts.ended_scopes);
  write_abilities(json, kill_path);
  return std::move(json).finish();
}

std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason) {
  JsonWriter json = core.records.begin("server_stopped");
  json.field("reason", reason)
      .given("command_status", status.command_status)
      .field("requests", status.counters.requests)
      .field("expired", status.counters.expired.total())
      .field("killed", status.counters.killed.total())
      .field("rejected", status.rejected)
      .field("lost_records", status.lost_records);
  write_left(json, core);
  return std::move(json).finish();
}

}  // namespace filetimer
