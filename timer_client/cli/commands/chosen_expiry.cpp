// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/chosen_expiry.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/merge.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

// Returns whether the word names files: an id has no slash, no wildcard and no suffix.
bool means_files(const std::string& word) {
  struct stat st {};
  return word == kStandardInput || word.find_first_of("/*?") != std::string::npos ||
         word.ends_with(".jsonl") || ::stat(word.c_str(), &st) == 0;
}

}  // namespace

void ExpiryChoice::take_words(std::vector<std::string> words) {
  files = std::move(words);
  if (!files.empty() && (files[0] == "last" || !means_files(files[0]))) {
    id = std::move(files[0]);
    files.erase(files.begin());
  }
}

int read_chosen_expiry(const ExpiryChoice& choice,
                       const std::function<void(const ExpiryKey&, const Record&)>& take) {
  OpenedLogs opened = open_logs(choice.dir, choice.files);
  std::vector<LogReader>& logs = opened.logs;
  complain_of_all(opened.notes);
  complain_of_all(opened.problems);
  if (logs.empty()) {
    return kExitFailed;
  }
  const bool is_read_twice =
      std::all_of(logs.begin(), logs.end(), [](LogReader& log) { return log.rewind(); });
  ExpiryIds ids;
  std::vector<std::string> lines;
  read_merged(logs, [&](const Record& record) {
    ids.take(record);
    if (!is_read_twice) {
      lines.emplace_back(record.line);
    }
    return true;
  });
  const std::vector<std::string> problems = problems_of(logs);
  complain_of_all(problems);
  complain_of_all(skipped_text(logs));
  const auto key = ids.find(choice.id, choice.host, names_of(logs));
  if (!key) {
    complain(key.error().message);
    return kExitFailed;
  }
  if (is_read_twice) {
    std::for_each(logs.begin(), logs.end(), [](LogReader& log) { log.rewind(); });
    read_merged(logs, [&](const Record& record) {
      take(*key, record);
      return true;
    });
  }
  for (std::string& line : lines) {
    line.reserve(line.size() + kLinePadding);
    if (const auto record = parse_record(line)) {
      take(*key, *record);
    }
  }
  return opened.problems.empty() && problems.empty() ? kExitDone : kExitFailed;
}

}  // namespace filetimer::cli
