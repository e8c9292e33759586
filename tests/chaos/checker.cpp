// SPDX-License-Identifier: MIT
#include "tests/chaos/checker.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "tests/chaos/rules.hpp"

namespace filetimer::chaos {
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

std::vector<JsonRecord> parse(const History::Text& file) {
  std::vector<JsonRecord> records;
  const std::string_view text = file.text;
  for (std::size_t start = 0, number = 1; start < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    records.emplace_back(file.name, number, text.substr(start, end - start));
    start = end + 1;
  }
  return records;
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
  Text log{path, {}};
  const bool has_old = append_file(path + ".1", log.text);
  const bool has_new = append_file(path, log.text);
  logs.push_back(std::move(log));
  return has_old || has_new;
}

std::vector<Violation> check(const History& history) {
  std::vector<Violation> found;
  std::vector<std::vector<JsonRecord>> logs;
  for (const History::Text& log : history.logs) {
    logs.push_back(parse(log));
    judge_log(logs.back(), found);
  }
  std::vector<JsonRecord> calls;
  for (const History::Text& file : history.histories) {
    std::ranges::move(parse(file), std::back_inserter(calls));
  }
  if (!calls.empty()) {
    judge_history(calls, logs, found);
  }
  return found;
}

}  // namespace filetimer::chaos
