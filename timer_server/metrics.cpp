// SPDX-License-Identifier: MIT
#include "timer_server/metrics.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "common/text.hpp"

namespace filetimer {
namespace {

using Labels = std::string;  // `NAME="VALUE"`, with a comma between two

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

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
    constexpr auto& kBounds = metric_bounds::kLateness;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < lateness.counts.size(); ++i) {
      sum += lateness.counts[i];
      const std::string bound =
          i < kBounds.size() ? fmt::format("{}", seconds_of(kBounds[i])) : "+Inf";
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
void write_counts(MetricsWriter& out, const Metrics& metrics, const Metrics::Counts& counts,
                  const Labels& before = {}) {
  std::map<std::string_view, std::uint64_t> all(counts.begin(), counts.end());
  for (const auto& known : metrics.expired) {
    all.try_emplace(known.first);
  }
  for (const auto& [scope, count] : all) {
    out.sample(before + label("scope", scope), count);
  }
}

void write_counters(MetricsWriter& out, const Metrics& metrics) {
  out.family("expired_total", "counter", "Scopes that were open at their deadline.");
  write_counts(out, metrics, metrics.expired);
  out.family("killed_total", "counter",
             "Workers that were killed, by the scope of the worker that expired first.");
  write_counts(out, metrics, metrics.killed);
  out.family("unkillable_total", "counter",
             "Kills after which the worker was still alive, by the scope that expired first.");
  write_counts(out, metrics, metrics.unkillable);
  out.family("warned_total", "counter", "Soft deadlines that have passed.");
  write_counts(out, metrics, metrics.warned);
  out.family("deferred_total", "counter",
             "Deferrals of deadlines: because a worker was halted (one for each halt, with the "
             "first scope), or because the server or the machine could not run (one for all "
             "scopes).");
  write_counts(out, metrics, metrics.deferred, label("reason", "worker_halted") + ",");
  out.sample(label("reason", "server_missed_time"), metrics.deferred_all);
  out.family("released_late_total", "counter",
             "Scopes that were released after their verdict and before their worker was dead.");
  write_counts(out, metrics, metrics.released_late);
  out.counter("requests_total", metrics.requests, "Requests that were read from the pipe.");
  out.counter("rejected_total", metrics.rejected, "Requests and pages that were rejected.");
  out.counter("log_lost_records_total", metrics.lost_records,
              "Records that were dropped because the log could not be written for long.");
}

void write_gauges(MetricsWriter& out, const Metrics& metrics) {
  out.gauge("workers", metrics.workers, "Workers that are watched.");
  out.gauge("open_scopes", metrics.open_scopes, "Open scopes without a verdict.");
  out.gauge("kills_under_way", metrics.kills_under_way, "Kills without an outcome yet.");
  out.gauge("unkillable_workers", metrics.unkillable_workers,
            "Workers that are alive after SIGKILL.");
  out.gauge("log_working", std::uint64_t{metrics.is_log_working},
            "1: the log can be written; 0: records wait in memory.");
  out.gauge("log_waiting_records", metrics.waiting_records, "Records that are not synced yet.");
  out.gauge("log_waiting_bytes", metrics.waiting_bytes, "Bytes of records that wait in memory.");
  out.gauge("log_lag_seconds", seconds_of(metrics.log_lag),
            "Age of the oldest record that waits in memory; 0: no record waits.");
}

}  // namespace

std::string metrics_text(const Metrics& metrics) {
  MetricsWriter out(metrics.dir);
  out.gauge("up", std::uint64_t{metrics.is_running},
            "1: the server ran when it wrote this file; 0: it has ended.");
  out.family("build_info", "gauge", "Always 1; the label has the version of the server.");
  out.sample(label("version", metrics.version), std::uint64_t{1});
  out.gauge("start_time_seconds", unix_seconds(metrics.started_wall_ns),
            "Unix time at which the server started.");
  out.gauge("collected_time_seconds", unix_seconds(metrics.collected_wall_ns),
            "Unix time of the values in this file.");
  write_counters(out, metrics);
  write_gauges(out, metrics);
  out.family("verdict_lateness_seconds", "histogram", "Time from a deadline to its verdict.");
  out.histogram(metrics.lateness);
  out.gauge("verdict_lateness_max_seconds", seconds_of(metrics.longest_lateness),
            "Longest time from a deadline to its verdict since the server started.");
  return std::move(out).finish();
}

}  // namespace filetimer
