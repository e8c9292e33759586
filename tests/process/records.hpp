// The log as tests read it, with a strict parser: a line that is not a record fails the test.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/json_line.hpp"

namespace filetimer::testing {

// Fails the test if the line lacks a field that every record has.
class Record : public JsonLine {
 public:
  explicit Record(std::string text);

  [[nodiscard]] bool is(std::string_view event) const { return text("event") == event; }
  [[nodiscard]] bool is(std::string_view event, pid_t pid) const;
  [[nodiscard]] bool is(std::string_view event, std::string_view scope) const;
  // Returns the signals of a `killed` record, in order.
  [[nodiscard]] std::vector<int> signals() const;
  [[nodiscard]] std::vector<pid_t> pids_of_signal(std::size_t index) const;
};

using Records = std::vector<Record>;

// Returns all complete lines of the file, each once; none if there is no file. Half a line at the
// end is being written.
Records read_log(const std::string& path);

Records of_event(const Records& records, std::string_view event);
// Returns the number of records of an event, or those of a pid or a scope.
std::size_t count(const Records& records, std::string_view event, const auto&... of) {
  return static_cast<std::size_t>(std::ranges::count_if(
      records, [&](const Record& record) { return record.is(event, of...); }));
}
// Returns when a signal of a `killed` record was sent, in nanoseconds of CLOCK_MONOTONIC.
std::int64_t mono_of_signal(const Record& killed, std::size_t index);
// Returns the names of the scopes in these records, in order.
std::vector<std::string> scopes_of(const Records& records, std::string_view event,
                                   const auto&... of) {
  std::vector<std::string> scopes;
  for (const Record& record : records) {
    if (record.is(event, of...)) {
      scopes.push_back(record.text("scope"));
    }
  }
  return scopes;
}
// Returns what a record of evidence says is missing besides kernel stacks.
std::string missing_in(const Record& evidence);

}  // namespace filetimer::testing
