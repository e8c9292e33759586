// SPDX-License-Identifier: MIT
#include "tests/process/records.hpp"

#include <doctest/doctest.h>

#include <iterator>
#include <set>

#include "tests/support/files.hpp"
#include "tests/support/kernel_stacks.hpp"

namespace filetimer::testing {

Record::Record(std::string text) : JsonLine(std::move(text)) {
  for (const char* key : {"schema", "event", "time", "mono_ns", "host", "boot_id", "server_pid"}) {
    REQUIRE_MESSAGE(has(key), "no '" << key << "' in " << line());
  }
}

bool Record::is(std::string_view event, pid_t pid) const {
  return is(event) && has("pid") && integer("pid") == pid;
}

bool Record::is(std::string_view event, std::string_view scope) const {
  return is(event) && has("scope") && text("scope") == scope;
}

std::vector<int> Record::signals() const {
  std::vector<int> numbers;
  for (const auto signal : array("signals")) {
    numbers.push_back(static_cast<int>(signal["signal"].get_int64().value()));
  }
  return numbers;
}

std::vector<pid_t> Record::pids_of_signal(std::size_t index) const {
  std::vector<pid_t> list;
  for (const std::int64_t pid : simdjson::dom::array{array("signals").at(index)["pids"]}) {
    list.push_back(static_cast<pid_t>(pid));
  }
  return list;
}

std::int64_t mono_of_signal(const Record& killed, std::size_t index) {
  return killed.array("signals").at(index)["mono_ns"].get_int64().value();
}

Records read_log(const std::string& path) {
  const std::string text = read_file(path);
  Records records;
  std::set<std::string> known;  // a crash of a server may write a record twice
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    // A killed server may leave half a line. The next server ends it before its first record.
    const std::string next = text.substr(begin, text.find('\n', begin) - begin);
    const bool is_torn = !line.ends_with('}') && contains(next, R"("event":"server_started")");
    if (!is_torn && known.insert(line).second) {
      records.emplace_back(line);
    }
  }
  return records;
}

Records of_event(const Records& records, std::string_view event) {
  Records found;
  std::ranges::copy_if(records, std::back_inserter(found),
                       [&](const Record& record) { return record.is(event); });
  return found;
}

std::string missing_in(const Record& evidence) {
  return missing_but_kernel_stacks(evidence.has("missing") ? evidence.text("missing") : "");
}

}  // namespace filetimer::testing
