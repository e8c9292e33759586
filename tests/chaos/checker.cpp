// SPDX-License-Identifier: MIT
#include "tests/chaos/checker.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "tests/chaos/json_record.hpp"

namespace filetimer::chaos {

// The linker may take the inline functions of the library from a test, which is not optimised.
[[gnu::flatten]] bool JsonFields::get(std::string_view key, Element& element) const {
  return is_object_ && root_[key].get(element) == simdjson::SUCCESS;
}

namespace {

namespace fs = std::filesystem;

bool append_file(const std::string& path, std::string& text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return false;
  }
  text.append(std::istreambuf_iterator<char>(file), {});
  return true;
}

void parse(const History::Text& file, std::vector<JsonRecord>& records) {
  const std::string_view text = file.text;
  for (std::size_t start = 0, number = 1; start < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    records.emplace_back(file.name, number, text.substr(start, end - start),
                         end + 1 >= text.size());
    start = end + 1;
  }
}

// Returns the records of all logs in the order of the files, of which a rotation makes several.
std::vector<JsonRecord> in_order(const std::vector<History::Text>& logs) {
  std::vector<std::vector<JsonRecord>> files(logs.size());
  for (std::size_t i = 0; i < logs.size(); ++i) {
    parse(logs[i], files[i]);
  }
  std::ranges::stable_sort(files, {}, [](const std::vector<JsonRecord>& file) {
    return file.empty() ? 0 : file.front().integer("mono_ns");
  });
  std::vector<JsonRecord> all;
  for (std::vector<JsonRecord>& file : files) {
    std::ranges::move(file, std::back_inserter(all));
  }
  return all;
}

}  // namespace

void History::add_line(const std::string& name, std::string_view line) {
  const auto found = std::ranges::find(histories, name, &Text::name);
  Text& file = found != histories.end() ? *found : histories.emplace_back(Text{name, {}});
  file.text.append(line).push_back('\n');
}

bool History::add_folder(const std::string& folder) {
  std::error_code error;
  bool has_any = false;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".history") {
      Text file{entry.path().filename().string(), {}};
      has_any = append_file(entry.path().string(), file.text) || has_any;
      histories.push_back(std::move(file));
    }
  }
  return has_any;
}

bool History::add_log(const std::string& path) {
  bool has_any = false;
  for (const std::string& part : {path + ".1", path}) {
    Text file{part, {}};
    if (append_file(part, file.text)) {
      logs.push_back(std::move(file));
      has_any = true;
    }
  }
  return has_any;
}

std::vector<Violation> check(const History& history) {
  std::vector<Violation> found;
  const std::vector<JsonRecord> lines = in_order(history.logs);
  std::vector<JsonRecord> calls;
  for (const History::Text& file : history.histories) {
    parse(file, calls);
  }
  const auto records = judge_log(lines, !calls.empty(), found);
  if (!calls.empty()) {
    judge_history(calls, records, found);
  }
  return found;
}

}  // namespace filetimer::chaos
