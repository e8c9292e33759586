// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/record.hpp"

#include "common/limits.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

std::string_view view_of(dom::element value) {
  std::string_view text;
  return value.get_string().get(text) == simdjson::SUCCESS ? text : std::string_view{};
}

// By the length of the key first: a record has many fields, and few of them are wanted here.
void read_field(std::string_view key, dom::element value, Record& record) {
  switch (key.size()) {
    case 2:
      if (key == "id") {
        record.id = view_of(value);
      }
      break;
    case 3:
      if (key == "pid") {
        record.pid = as_integer(value);
      }
      break;
    case 4:
      if (key == "time") {
        record.time_us = parse_rfc3339(view_of(value));
      } else if (key == "host") {
        record.host = view_of(value);
      } else if (key == "rank") {
        record.rank = as_integer(value);
      }
      break;
    case 5:
      if (key == "event") {
        record.event = view_of(value);
      } else if (key == "scope") {
        record.scope = view_of(value);
      }
      break;
    case 6:
      if (key == "job_id") {
        record.job_id = view_of(value);
      }
      break;
    case 7:
      if (key == "mono_ns") {
        record.mono_ns = as_integer(value);
      } else if (key == "boot_id") {
        record.boot_id = view_of(value);
      }
      break;
    case 8:
      if (key == "incident") {
        record.incident = view_of(value);
      }
      break;
    default:
      break;
  }
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

}  // namespace filetimer::cli
