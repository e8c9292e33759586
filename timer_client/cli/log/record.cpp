// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/record.hpp"

#include <algorithm>
#include <cmath>

#include "common/limits.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

std::string_view view_at(dom::object object, std::string_view key) {
  std::string_view text;
  return object.at_key(key).get(text) == simdjson::SUCCESS ? text : std::string_view{};
}

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

}  // namespace

std::optional<Record> parse_record(dom::parser& parser, std::string_view line) {
  dom::object object;
  if (parser.parse(line.data(), line.size()).get_object().get(object) != simdjson::SUCCESS ||
      integer_at(object, "schema") != kSchema) {
    return std::nullopt;
  }
  Record record{.line = line,
                .fields = object,
                .event = view_at(object, "event"),
                .host = view_at(object, "host"),
                .boot_id = view_at(object, "boot_id"),
                .id = view_at(object, "id"),
                .incident = view_at(object, "incident"),
                .scope = view_at(object, "scope"),
                .job_id = view_at(object, "job_id"),
                .time_us = parse_rfc3339(view_at(object, "time")),
                .mono_ns = integer_at(object, "mono_ns"),
                .pid = integer_at(object, "pid"),
                .rank = integer_at(object, "rank")};
  return record.event.empty() ? std::nullopt : std::optional(record);
}

std::optional<Record> parse_record(std::string_view line) {
  static thread_local dom::parser parser{2 * kMaxRecordBytes};
  return parse_record(parser, line);
}

ScopeStatistics read_statistics(dom::object object) {
  ScopeStatistics statistics;
  statistics.count = static_cast<std::uint64_t>(count_at(object, "count"));
  statistics.longest = length_at(object, "longest_s");
  statistics.longest_first = length_at(object, "first_s");
  statistics.timeout = std::max(duration_at(object, "timeout_s").value_or(kForever), Duration{});
  read_histogram(object, "histogram_ns", statistics.histogram);
  if (!read_histogram(object, "first_histogram_ns", statistics.first_histogram) &&
      statistics.count > 0) {
    statistics.first_histogram[bucket_of(statistics.longest_first.count())] = 1;
  }
  return statistics;
}

}  // namespace filetimer::cli
