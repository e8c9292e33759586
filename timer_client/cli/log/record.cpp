// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/record.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/limits.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

std::string_view view_of(dom::element value) {
  std::string_view text;
  return value.get_string().get(text) == simdjson::SUCCESS ? text : std::string_view{};
}

constexpr std::pair<std::string_view, std::string_view Record::*> kTexts[] = {
    {"event", &Record::event},       {"host", &Record::host},
    {"boot_id", &Record::boot_id},   {"id", &Record::id},
    {"scope", &Record::scope},       {"job_id", &Record::job_id},
    {"incident", &Record::incident},
};
constexpr std::pair<std::string_view, Integer Record::*> kIntegers[] = {
    {"mono_ns", &Record::mono_ns}, {"pid", &Record::pid}, {"rank", &Record::rank}};

void read_field(std::string_view key, dom::element value, Record& record) {
  for (const auto& [name, member] : kTexts) {
    if (key == name) {
      record.*member = view_of(value);
      return;
    }
  }
  for (const auto& [name, member] : kIntegers) {
    if (key == name) {
      record.*member = as_integer(value);
      return;
    }
  }
  if (key == "time") {
    record.time_us = parse_rfc3339(view_of(value));
  }
}

// --- statistics ---

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
  if (parser.parse(line.data(), line.size(), false).get_object().get(object) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  std::optional<Record> record(std::in_place);
  record->line = line;
  record->fields = object;
  bool is_known_schema = false;
  for (const dom::key_value_pair field : object) {
    if (field.key == "schema") {
      is_known_schema = as_integer(field.value) == kSchema;
    } else {
      read_field(field.key, field.value, *record);
    }
  }
  if (!is_known_schema || record->event.empty()) {
    return std::nullopt;
  }
  return record;
}

std::optional<Record> parse_record(std::string_view line) {
  static thread_local dom::parser parser{2 * kMaxRecordBytes};
  return parse_record(parser, line);
}

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

}  // namespace filetimer::cli
