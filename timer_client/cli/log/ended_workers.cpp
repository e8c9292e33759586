// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/ended_workers.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "common/json_fields.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/merge.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

std::optional<Duration> duration_at(dom::object object, std::string_view key) {
  constexpr double kLongestNs = 9e18;  // 2^63 does not fit
  const auto seconds = number_at(object, key);
  return seconds ? std::optional(
                       Duration{std::llround(std::clamp(*seconds * 1e9, -kLongestNs, kLongestNs))})
                 : std::nullopt;
}

Duration length_at(dom::object object, std::string_view key) {
  return std::max(duration_at(object, key).value_or(Duration{}), Duration{});
}

// Returns whether there is one.
bool read_histogram(dom::object object, std::string_view key, Histogram& histogram) {
  bool has_buckets = false;
  for (const dom::element element : elements_at(object, key)) {
    dom::array pair;
    if (element.get_array().get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      const std::int64_t begin = as_integer(pair.at(0).value_unsafe()).value_or(0);
      const std::int64_t scopes = as_integer(pair.at(1).value_unsafe()).value_or(0);
      histogram[bucket_of(begin)] += static_cast<std::uint64_t>(std::max<std::int64_t>(scopes, 0));
      has_buckets = true;
    }
  }
  return has_buckets;
}

// The same folder may be named by way of a symlink.
bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code none;
  return a == b || std::filesystem::equivalent(a, b, none);
}

}  // namespace

ScopeStatistics read_statistics(dom::object object) {
  ScopeStatistics statistics;
  statistics.count = static_cast<std::uint64_t>(count_at(object, "count"));
  statistics.total = length_at(object, "total_s");
  statistics.longest = length_at(object, "longest_s");
  statistics.last = length_at(object, "last_s");
  statistics.smallest_margin = duration_at(object, "smallest_margin_s").value_or(kForever);
  statistics.longest_first = length_at(object, "first_s");
  statistics.timeout = std::max(duration_at(object, "timeout_s").value_or(kForever), Duration{});
  read_histogram(object, "histogram_ns", statistics.histogram);
  if (!read_histogram(object, "first_histogram_ns", statistics.first_histogram) &&
      statistics.count > 0) {
    statistics.first_histogram[bucket_of(statistics.longest_first.count())] = 1;
  }
  return statistics;
}

EndedWorkers read_ended_workers(const RunFolder& folder, const BootId& boot) {
  EndedWorkers ended;
  OpenedLogs opened = open_own_logs(folder);
  const std::string boot_id = boot_id_text(boot);
  read_merged(opened.logs, [&](const Record& record) {
    if (record.event == "worker_ended" && record.boot_id == boot_id &&
        is_same_folder(record.text("dir"), folder.dir)) {
      for (const dom::object scope : objects_at(record.fields, "scopes")) {
        const ScopeStatistics statistics = read_statistics(scope);
        ScopeStatistics& sums = ended.statistics[text_at(scope, "scope")];
        sums.add(statistics);
        sums.last = statistics.last;  // the log has an order
      }
    }
    return true;
  });
  ended.problems = std::move(opened.problems);
  const std::vector<std::string> unread = problems_of(opened.logs);
  ended.problems.insert(ended.problems.end(), unread.begin(), unread.end());
  return ended;
}

}  // namespace filetimer::cli
