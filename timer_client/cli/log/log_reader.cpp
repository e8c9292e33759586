// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/log_reader.hpp"

#include <utility>

#include "common/json_fields.hpp"
#include "common/limits.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kBlank = " \t\r";
// How a record begins. Inside a JSON string its quote would be escaped, so where this stands in a
// line a record begins, or the line is no JSON.
constexpr std::string_view kRecordStart = "{\"schema\"";

constexpr std::pair<std::string_view, std::string Record::*> kTexts[] = {
    {"event", &Record::event},       {"host", &Record::host},
    {"comm", &Record::comm},         {"id", &Record::id},
    {"incident", &Record::incident}, {"scope", &Record::scope},
    {"reason", &Record::reason},     {"verdict", &Record::verdict},
    {"job_id", &Record::job_id},     {"name", &Record::name},
    {"version", &Record::version},   {"state_name", &Record::state_name},
    {"wchan", &Record::wchan},       {"result", &Record::result},
    {"boot_id", &Record::boot_id},   {"dir", &Record::dir}};

constexpr std::pair<std::string_view, std::optional<double> Record::*> kNumbers[] = {
    {"timeout_s", &Record::timeout_s},   {"elapsed_s", &Record::elapsed_s},
    {"overdue_ms", &Record::overdue_ms}, {"dead_after_ms", &Record::dead_after_ms},
    {"late_ms", &Record::late_ms},       {"asked_s", &Record::asked_s},
    {"granted_s", &Record::granted_s},   {"late_s", &Record::late_s},
    {"given_s", &Record::given_s}};

constexpr std::pair<std::string_view, std::optional<std::int64_t> Record::*> kIntegers[] = {
    {"mono_ns", &Record::mono_ns}, {"pid", &Record::pid},
    {"rank", &Record::rank},       {"deadline_mono_ns", &Record::deadline_mono_ns},
    {"count", &Record::count},     {"workers", &Record::workers},
    {"killed", &Record::killed},   {"exit_status", &Record::exit_status}};

// Of what a record counts, or lists.
std::optional<std::int64_t> as_count(dom::element value) {
  dom::array listed;
  return value.get_array().get(listed) == simdjson::SUCCESS
             ? static_cast<std::int64_t>(listed.size())
             : as_integer(value);
}

void read_key(std::string_view key, dom::element value, Record& record) {
  for (const auto& [name, member] : kTexts) {
    if (key == name) {
      record.*member = as_text(value);
      return;
    }
  }
  for (const auto& [name, member] : kNumbers) {
    if (key == name) {
      record.*member = as_number(value);
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
    record.time_us = parse_rfc3339(as_text(value));
  } else if (key == "expired") {
    record.expired = as_count(value);
  } else if (key == "scopes") {
    record.scopes = as_count(value);
  }
}

std::optional<Record> parse(std::string_view line) {
  // One for the logs of all hosts: it grows to a multiple of the longest line that it has seen.
  static thread_local dom::parser parser{2 * kMaxRecordBytes};
  dom::object object;
  // Copies the line to where simdjson may read behind its end.
  if (parser.parse(line.data(), line.size(), true).get_object().get(object) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  Record record;
  bool known_schema = false;
  for (const dom::key_value_pair field : object) {
    if (field.key == "schema") {
      known_schema = as_integer(field.value) == kSchema;
    } else {
      read_key(field.key, field.value, record);
    }
  }
  if (!known_schema || record.event.empty()) {
    return std::nullopt;
  }
  record.raw = line;
  return record;
}

}  // namespace

bool RecordReader::take_line(std::string_view line, const Sink& sink) {
  const std::size_t begin = line.find_first_not_of(kBlank);
  if (begin == line.npos) {
    return true;  // nothing was lost
  }
  line = line.substr(begin, line.find_last_not_of(kBlank) - begin + 1);
  if (line.size() > kMaxRecordBytes) {
    ++skipped_;
    return true;
  }
  std::optional<Record> record = parse(line);
  if (!record) {
    ++skipped_;
    // A writer that died in the middle of a line leaves its half in front of the next record.
    const std::size_t next = line.rfind(kRecordStart);
    if (next != line.npos && next > 0) {
      record = parse(line.substr(next));
    }
  }
  return !record || sink(std::move(*record));
}

bool RecordReader::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view part = bytes.substr(0, newline);
    // One byte over the limit is enough to know that the line is too long.
    too_long_ = too_long_ || half_line_.size() + part.size() > kMaxRecordBytes;
    if (too_long_) {
      half_line_ = {};
    }
    if (newline == bytes.npos) {
      half_line_ += too_long_ ? std::string_view{} : part;
      return true;
    }
    bytes.remove_prefix(newline + 1);
    bool more = true;
    if (std::exchange(too_long_, false)) {
      ++skipped_;
    } else if (half_line_.empty()) {
      more = take_line(part, sink);  // the usual case, without a copy
    } else {
      half_line_ += part;
      const std::string line = std::exchange(half_line_, {});  // its room is given back
      more = take_line(line, sink);
    }
    if (!more) {
      return false;
    }
  }
  return true;
}

bool RecordReader::finish(const Sink& sink) {
  if (half_line_.empty() && !too_long_) {
    return true;
  }
  return feed("\n", sink);
}

void RecordReader::forget_half_line() {
  if (!half_line_.empty() || too_long_) {
    ++skipped_;
  }
  half_line_.clear();
  too_long_ = false;
}

}  // namespace filetimer::cli
