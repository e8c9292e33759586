// A record of a log, read where it stands: nothing is copied, since logs may have gigabytes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/json_fields.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer::cli {

inline constexpr std::int64_t kSchema = 1;

// Values that a record may lack.
using Integer = std::optional<std::int64_t>;
using Number = std::optional<double>;

// The fields by which records are chosen, merged and combined. What is absent, or not of the type
// that it should have, is empty. All texts are views, see parse_record().
struct Record {
  std::string_view line;  // without its newline
  simdjson::dom::object fields;

  std::string_view event;
  std::string_view host;
  std::string_view boot_id;
  std::string_view id;
  std::string_view incident;
  std::string_view scope;
  std::string_view job_id;
  Integer time_us;  // wall clock, since the epoch
  Integer mono_ns;
  Integer pid;
  Integer rank;

  // Any other field.
  [[nodiscard]] std::string text(std::string_view key) const { return text_at(fields, key); }
  [[nodiscard]] Integer integer(std::string_view key) const { return integer_at(fields, key); }
  [[nodiscard]] Number number(std::string_view key) const { return number_at(fields, key); }
};

// Returns nothing if `line` is no record of schema 1. The record is valid for as long as `line` and
// until `parser` is used again.
std::optional<Record> parse_record(simdjson::dom::parser& parser, std::string_view line);

// Does the same with a parser that this thread shares, as large as the longest line so far.
std::optional<Record> parse_record(std::string_view line);

// Returns what suggest needs of an object of the list `scopes` of a `worker_ended` record: no
// `total`, `last` and `smallest_margin`.
ScopeStatistics read_statistics(simdjson::dom::object scope);

}  // namespace filetimer::cli
