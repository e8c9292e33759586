// SPDX-License-Identifier: MIT
#include "timer_server/status_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/text.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"
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
    json.field("grace_s", seconds_or_infinity(*settings.grace));
  }
  json.field("kill_wait_s", seconds(settings.kill.kill_wait))
      .field("evidence_timeout_s", seconds(settings.kill.evidence_timeout))
      .field("kill", settings.kill.mode == KillMode::kTree ? "tree" : "process")
      .field("stopped", settings.stopped == Settings::Stopped::kDefer ? "defer" : "kill")
      .field("evidence", name_of(settings.kill.evidence))
      .field("dry_run", settings.kill.dry_run)
      .field("realtime", settings.realtime)
      .field("on_expiry", !settings.on_expiry.empty())
      .field("on_warning", !settings.on_warning.empty())
      .field("evidence_command", !settings.evidence_command.empty())
      .begin_array("evidence_drop_ins");
  for (const DropIn& drop_in : settings.drop_ins) {
    json.element(drop_in.name);
  }
  json.end_array()
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
    for (const SlotReading& scope : core.policy.open_scopes_of(worker)) {
      if (++listed <= kMaxLeftScopes && json.size() <= kMaxRecordBytesOfLists) {
        json.begin_object()
            .field("pid", worker.process->pid)
            .field("scope", scope.name)
            .fixed("elapsed_s", in_seconds(now - scope.acquired), 6)
            .end_object();
      }
    }
  });
  json.end_array().field("left_count", listed);
}

using Labels = std::string;  // `NAME="VALUE"`, with a comma between two

// The nanoseconds since 1970 do not fit into a double, so the seconds are converted apart.
double unix_seconds(std::int64_t wall_ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return static_cast<double>(wall_ns / kSecond) + static_cast<double>(wall_ns % kSecond) / 1e9;
}

Labels label(std::string_view name, std::string_view value) {
  Labels text = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') {
      text += '\\';
    }
    text += c;
  }
  return text + '"';
}

// Writes families of metrics. Every series has the label `dir`.
class MetricsWriter {
 public:
  explicit MetricsWriter(std::string_view dir) : dir_(label("dir", valid_utf8(dir))) {}

  // Begins a family; the samples that follow belong to it.
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = fmt::format("filetimer_{}", name);
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help,
                   type);
  }
  template <class Number>
  void sample(const Labels& labels, Number value, std::string_view suffix = {}) {
    fmt::format_to(std::back_inserter(text_), "{}{}{{{}{}{}}} {}\n", name_, suffix, dir_,
                   labels.empty() ? "" : ",", labels, value);
  }

  void counter(std::string_view name, std::uint64_t value, std::string_view help) {
    family(name, "counter", help);
    sample({}, value);
  }
  template <class Number>
  void gauge(std::string_view name, Number value, std::string_view help) {
    family(name, "gauge", help);
    sample({}, value);
  }
  void histogram(const LatenessCounts& lateness) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < lateness.counts.size(); ++i) {
      sum += lateness.counts[i];
      const std::string bound = i < LatenessCounts::kBoundsMs.size()
                                    ? fmt::format("{}", LatenessCounts::kBoundsMs[i] / 1e3)
                                    : "+Inf";
      sample(label("le", bound), sum, "_bucket");
    }
    sample({}, lateness.total_s, "_sum");
    sample({}, sum, "_count");
  }

  std::string finish() && { return std::move(text_); }

 private:
  const Labels dir_;
  std::string name_;
  std::string text_;
};

// Writes the counts of each scope name that has expired or is counted. A count that is 0 is written
// as well: rate() and increase() see the first event of a name only behind a 0.
void write_counts(MetricsWriter& out, const Counters& counters, std::string_view name,
                  const CountsByScope& counts, std::string_view help, const Labels& before = {}) {
  out.family(name, "counter", help);
  std::map<std::string_view, std::uint64_t> all(counts.values().begin(), counts.values().end());
  for (const auto& known : counters.expired.values()) {
    all.try_emplace(known.first);
  }
  for (const auto& [scope, count] : all) {
    out.sample(before + label("scope", scope), count);
  }
}

void write_counters(MetricsWriter& out, const ServerStatus& status) {
  const Counters& counters = status.counters;
  write_counts(out, counters, "expired_total", counters.expired,
               "Scopes that were open at their deadline.");
  write_counts(out, counters, "killed_total", counters.killed,
               "Workers that were killed, by the scope of the worker that expired first.");
  write_counts(out, counters, "unkillable_total", counters.unkillable,
               "Kills after which the worker was still alive, by the scope that expired first.");
  write_counts(out, counters, "warned_total", counters.warned, "Soft deadlines that have passed.");
  write_counts(out, counters, "deferred_total", counters.deferred,
               "Deferrals of deadlines: because a worker was halted (one for each halt, with the "
               "first scope), or because the server or the machine could not run (one for all "
               "scopes).",
               label("reason", "worker_halted") + ",");
  out.sample(label("reason", "server_missed_time"), counters.deferred_all);
  write_counts(out, counters, "released_late_total", counters.released_late,
               "Scopes that were released after their verdict and before the first signal.");
  out.counter("requests_total", counters.requests, "Requests that were read from the pipe.");
  out.counter("rejected_total", status.rejected, "Requests and pages that were rejected.");
  out.counter("log_lost_records_total", status.backlog.lost,
              "Records that were dropped because the log could not be written for long.");
}

void write_gauges(MetricsWriter& out, const ServerStatus& status) {
  out.gauge("workers", status.workers, "Workers that are watched.");
  out.gauge("open_scopes", status.open_scopes, "Open scopes without a verdict.");
  out.gauge("kills_under_way", status.kills_under_way, "Kills without an outcome yet.");
  out.gauge("unkillable_workers", status.unkillable, "Workers that are alive after SIGKILL.");
  out.gauge("log_working", std::uint64_t{status.log_trouble.empty()},
            "1: the log can be written; 0: records wait in memory.");
  out.gauge("log_waiting_records", status.backlog.records, "Records that are not synced yet.");
  out.gauge("log_waiting_bytes", status.backlog.bytes, "Bytes of records that wait in memory.");
  const Instant now = status.now.mono;
  out.gauge("log_lag_seconds", in_seconds(now - std::min(status.backlog.oldest, now)),
            "Age of the oldest record that waits in memory; 0: no record waits.");
}

constexpr const char* kNoAnswer = "its file system does not answer";

// A file that is written behind another one replaces it.
static_assert(SideThreads::max_threads(SideThreads::Lane::kMetrics) == 1);

Status write_new_file(const std::string& path, std::string_view text) {
  (void)::unlink(path.c_str());  // of a server that was killed and had this process id
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    return system_error(fmt::format("cannot make '{}'", path));
  }
  if (::fchmod(fd.get(), 0644) != 0) {
    return system_error(fmt::format("cannot set the mode of '{}'", path));
  }
  if (!write_at(fd.get(), text.data(), text.size(), 0)) {
    return system_error("cannot write the temporary file");
  }
  // A file server may tell only then that its disk is full.
  return ::close(fd.release()) == 0 ? Status{}
                                    : system_error(fmt::format("cannot write '{}'", path));
}

}  // namespace

KillPath check_kill_path() {
  KillPath path;
  path.kernel_stacks = read_small_file("/proc/self/stack").has_value();
  // A process cannot trace itself. The call on a pid that no process has fails with ESRCH where it
  // is allowed, and with EPERM or ENOSYS where a filter forbids it.
  constexpr pid_t kNoProcess = -1;
  path.ptrace =
      ::ptrace(PTRACE_SEIZE, kNoProcess, nullptr, nullptr) == -1 && errno == ESRCH && may_trace();
  Process self;
  self.pidfd = open_pidfd(::getpid());
  path.signal = self.pidfd && self.send_signal(0);
  if (!path.signal) {
    messages::warning("can workers be killed here? {}: {}",
                      self.pidfd ? "pidfd_send_signal" : "pidfd_open",
                      std::generic_category().message(errno));
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
      .field("lost_records", status.backlog.lost)
      .field("askers", status.waiting_clients)
      .field("descriptors", open_descriptors());
  json.given("log_trouble", status.log_trouble)
      .given("pipe_trouble", core.directory.pipe_trouble());
  write_abilities(json, kill_path);
  write_settings(json, core.settings);
}

std::string start_record(const Core& core, const KillPath& kill_path, std::size_t adopted_scopes,
                         std::size_t ended_scopes) {
  JsonWriter json = core.records.begin("server_started");
  json.field("version", FILETIMER_VERSION);
  write_places(json, core);
  write_settings(json, core.settings);
  json.field("adopted_scopes", adopted_scopes).field("ended_scopes", ended_scopes);
  write_abilities(json, kill_path);
  return json.finish();
}

std::string stop_record(Core& core, const ServerStatus& status, std::string_view reason) {
  JsonWriter json = core.records.begin("server_stopped");
  json.field("reason", reason)
      .given("command_status", status.command_status)
      .field("requests", status.counters.requests)
      .field("expired", status.counters.expired.total())
      .field("killed", status.counters.killed.total())
      .field("rejected", status.rejected)
      .field("lost_records", status.backlog.lost);
  write_left(json, core);
  return json.finish();
}

std::string metrics_text(const ServerStatus& status, std::string_view version, bool is_running) {
  MetricsWriter out(status.dir);
  out.gauge("up", std::uint64_t{is_running},
            "1: the server ran when it wrote this file; 0: it has ended.");
  out.family("build_info", "gauge", "Always 1; the label has the version of the server.");
  out.sample(label("version", version), std::uint64_t{1});
  out.gauge("start_time_seconds", unix_seconds(status.started.wall_ns),
            "Unix time at which the server started.");
  out.gauge("collected_time_seconds", unix_seconds(status.now.wall_ns),
            "Unix time of the values in this file.");
  write_counters(out, status);
  write_gauges(out, status);
  out.family("verdict_lateness_seconds", "histogram", "Time from a deadline to its verdict.");
  out.histogram(status.counters.lateness);
  out.gauge("verdict_lateness_max_seconds", in_seconds(status.counters.lateness.longest),
            "Longest time from a deadline to its verdict since the server started.");
  return std::move(out).finish();
}

Status replace_file(const std::string& path, std::string_view text) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    const char* const kind = S_ISLNK(there.st_mode)   ? "a symbolic link"
                             : S_ISDIR(there.st_mode) ? "a directory"
                                                      : "no regular file";
    return failure(fmt::format("it is {}: expected a regular file, or none", kind));
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  Status written = write_new_file(temporary, text);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = system_error(fmt::format("cannot rename '{}' to it", temporary));
  }
  if (!written) {
    (void)::unlink(temporary.c_str());
  }
  return written;
}

bool MetricsFile::is_ready() {
  if (written_.valid()) {
    if (written_.wait_for(Duration::zero()) == std::future_status::ready) {
      note(written_.get());
    } else if (Instant::now() - began_ >= kAnswerLimit) {
      note(failure(kNoAnswer));
    }
  }
  return is_wanted() && !written_.valid();
}

void MetricsFile::write(std::string text) {
  const auto result = std::make_shared<std::promise<Status>>();
  written_ = result->get_future();
  began_ = Instant::now();
  side_threads_.run(
      [this, result, path = path_, text = std::move(text)]() -> SideThreads::Delivery {
        try {
          result->set_value(replace_file(path, text));
        } catch (const std::exception& error) {
          result->set_value(failure(error.what()));
        }
        return [this] { (void)is_ready(); };
      },
      SideThreads::Lane::kMetrics);
}

void MetricsFile::write_last(std::string text) {
  write(std::move(text));
  const bool is_done = written_.wait_for(kLastLimit) == std::future_status::ready;
  note(is_done ? written_.get() : Status{failure(kNoAnswer)});
}

void MetricsFile::note(const Status& written) {
  if (!written && !has_failed_) {
    messages::warning("cannot write the metrics file '{}': {}", path_, written.error().message);
  } else if (written && has_failed_) {
    messages::info("the metrics file '{}' is written again", path_);
  }
  has_failed_ = !written;
}

}  // namespace filetimer
