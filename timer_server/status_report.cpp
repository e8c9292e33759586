// SPDX-License-Identifier: MIT
#include "timer_server/status_report.hpp"

#include <fmt/format.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
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
  switch (announcement) {
    case Announcement::kShutdown:
      return "shutdown";
    case Announcement::kDraining:
      return "draining";
    case Announcement::kNone:
      break;
  }
  return "none";
}

void write_places(JsonWriter& json, const Core& core) {
  json.field("dir", core.directory.path())
      .field("fifo", core.directory.pipe().path())
      .field("log", core.log->path());
}

// Adds the object `settings`.
void write_settings(JsonWriter& json, const Settings& settings) {
  json.begin_object("settings");
  const auto duration = [&json](std::string_view key, Duration value) {
    json.field(key, in_seconds(value));
  };
  if (settings.default_timeout) {
    duration("default_timeout_s", *settings.default_timeout);
  }
  if (settings.max_timeout) {
    duration("max_timeout_s", *settings.max_timeout);
  }
  if (settings.warn_at) {
    json.field("warn_at", *settings.warn_at);
  }
  duration("max_wait_s", settings.max_wait);
  duration("max_interval_s", settings.max_interval);
  if (settings.grace) {
    if (*settings.grace) {
      duration("grace_s", **settings.grace);
    } else {
      json.null("grace_s");
    }
  }
  duration("kill_wait_s", settings.kill.kill_wait);
  duration("evidence_timeout_s", settings.kill.evidence_timeout);
  json.field("kill", settings.kill.mode == KillMode::kTree ? "tree" : "process")
      .field("stopped", settings.stopped == Settings::Stopped::kDefer ? "defer" : "kill")
      .field("evidence", name_of(settings.kill.evidence))
      .field("warn_evidence", name_of(settings.kill.evidence_of_warnings()))
      .field("peer_evidence", name_of(settings.kill.evidence_of_peers()))
      .field("dry_run", settings.kill.dry_run)
      .field("realtime", settings.realtime)
      .field("on_expiry", !settings.on_expiry.empty())
      .field("on_warning", !settings.on_warning.empty())
      .field("evidence_command", !settings.evidence_command.empty())
      .begin_array("evidence_drop_ins");
  for (const DropIn& drop_in : settings.drop_ins) {
    json.element(drop_in.name);
  }
  json.end_array().field("log_max_bytes", settings.log_max_bytes);
  if (!settings.metrics.empty()) {
    json.field("metrics", settings.metrics);
  }
  json.end_object();
}

// Adds the objects `may` and `limits`: what the server can do on this host.
void write_abilities(JsonWriter& json, const KillPath& kill_path) {
  json.begin_object("may");
  if (kill_path.signal) {
    json.field("signal", *kill_path.signal);
  } else {
    json.null("signal");
  }
  json.field("ptrace", kill_path.ptrace)
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
  if (status.command_pid) {
    json.field("command_pid", *status.command_pid);
  }
  json.field("announcement", name_of(status.announcement))
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
  if (const std::string& trouble = core.directory.pipe_trouble(); !trouble.empty()) {
    json.field("pipe_trouble", trouble);
  }
  write_abilities(json, kill_path);
  write_settings(json, core.settings);
}

std::string start_record(const Core& core, const KillPath& kill_path, const StartCounts& counts) {
  JsonWriter json = core.records.server_event("server_started");
  json.field("version", FILETIMER_VERSION);
  write_places(json, core);
  write_settings(json, core.settings);
  json.field("adopted_scopes", counts.adopted_scopes).field("ended_scopes", counts.ended_scopes);
  write_abilities(json, kill_path);
  return std::move(json).finish();
}

std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason) {
  JsonWriter json = core.records.server_event("server_stopped");
  json.field("reason", reason);
  if (status.command_status) {
    json.field("command_status", *status.command_status);
  }
  json.field("requests", status.counters.requests)
      .field("expired", status.counters.expired.total())
      .field("killed", status.counters.killed.total())
      .field("rejected", status.rejected)
      .field("lost_records", status.lost_records);
  write_left(json, core);
  return std::move(json).finish();
}

}  // namespace filetimer
