// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/chosen_expiry.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/text.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// Returns whether the word names files: an id has no slash, no wildcard and no suffix.
bool means_files(const std::string& word) {
  struct stat st {};
  return word == kStandardInput || word.find_first_of("/*?") != std::string::npos ||
         word.ends_with(".jsonl") || ::stat(word.c_str(), &st) == 0;
}

constexpr std::size_t kIdsListed = 5;

// The last few, the latest first.
std::string latest_of(const std::vector<const ExpiryKey*>& keys) {
  std::vector<std::string> latest;
  for (auto key = keys.rbegin(); key != keys.rend() && latest.size() < kIdsListed; ++key) {
    latest.push_back((*key)->id);
  }
  return joined(latest) + (keys.size() > latest.size() ? ", ..." : "");
}

}  // namespace

void ExpiryIds::take(const Record& record) {
  if (record.id.empty()) {
    return;
  }
  const bool is_new = known_.insert(fmt::format("{} {}", record.host, record.id)).second;
  known_.insert(fmt::format(" {}", record.id));  // what names no host is of the one that has it
  if (is_new) {
    keys_.push_back({std::string(record.host), std::string(record.id), record.pid, record.time_us});
    if (record.event == "expired") {
      expired_.push_back(keys_.size() - 1);
    }
  }
}

Result<ExpiryKey> ExpiryIds::find(std::string_view wanted, const std::optional<std::string>& host,
                                  std::string_view where) const {
  const std::string place = host ? fmt::format("{}, host '{}'", where, *host) : std::string(where);
  std::vector<const ExpiryKey*> all;
  std::vector<const ExpiryKey*> whole;
  std::vector<const ExpiryKey*> begun;
  for (const ExpiryKey& key : keys_) {
    if (!host || key.host == *host) {
      all.push_back(&key);
      (key.id == wanted ? whole : begun).push_back(&key);
    }
  }
  std::erase_if(begun, [&](const ExpiryKey* key) { return !key->id.starts_with(wanted); });
  if (all.empty()) {
    return failure(fmt::format("no expiry in {}", place));
  }
  if (wanted == kLastExpiry) {
    const auto last = std::find_if(expired_.rbegin(), expired_.rend(), [&](std::size_t index) {
      return !host || keys_[index].host == *host;
    });
    return last != expired_.rend() ? keys_[*last] : *all.back();
  }
  if (whole.size() > 1) {
    std::vector<std::string> hosts;
    for (const ExpiryKey* key : whole) {
      hosts.push_back(key->host);
    }
    return failure(fmt::format("'{}' is an expiry of {} hosts in {}: {}; choose one with --host",
                               wanted, whole.size(), place, listed(hosts, kIdsListed)));
  }
  const std::vector<const ExpiryKey*>& candidates = whole.empty() ? begun : whole;
  if (candidates.empty()) {
    return failure(
        fmt::format("no expiry '{}' in {}; the latest: {}", wanted, place, latest_of(all)));
  }
  if (candidates.size() > 1) {
    return failure(fmt::format("'{}' begins {} expiries in {}: {}", wanted, candidates.size(),
                               place, latest_of(candidates)));
  }
  return *candidates[0];
}

void add_expiry_options(CLI::App& app, ExpiryOptions& options) {
  app.add_option("ID", options.words,
                 "The id that `log` shows, a beginning of it, or last [last];\n"
                 "then the logs to read, those of other hosts too: files,\n"
                 "folders, or - for standard input [the server's]");
  add_name_option(app, "--host", options.host, "HOST", "The host of ID, where two have the same");
  add_utc_option(app);
  add_directory_options(app, options.place, &options.words);
}

ChosenExpiry chosen_expiry(const ExpiryOptions& options, bool wants_cause) {
  std::vector<std::string> files = options.words;
  std::string id(kLastExpiry);
  if (!files.empty() && (files[0] == kLastExpiry || !means_files(files[0]))) {
    id = std::move(files[0]);
    files.erase(files.begin());
  }
  OpenedLogs opened = open_logs(options.place.dir, files);
  std::vector<LogReader>& logs = opened.logs;
  complain_of_all(opened.problems);
  ChosenExpiry chosen{.key = {}, .records = {}, .code = kExitFailed};
  if (logs.empty()) {
    return chosen;
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
  const auto key = ids.find(id, options.host, names_of(logs));
  if (!key) {
    complain(key.error().message);
    return chosen;
  }
  const auto collect = [&](const ExpiryKey& of) {
    IncidentRecords& records = chosen.records.emplace(of);
    if (is_read_twice) {
      std::for_each(logs.begin(), logs.end(), [](LogReader& log) { log.rewind(); });
      read_merged(logs, [&](const Record& record) {
        records.take(record);
        return true;
      });
    }
    for (const std::string& line : lines) {
      if (const auto record = parse_record(line)) {
        records.take(*record);
      }
    }
  };
  collect(*key);
  chosen.key = *key;
  if (wants_cause || id == kLastExpiry) {
    chosen.key = cause_of(read_incident(*chosen.records, *key), *key);
  }
  if (chosen.key.id != key->id || chosen.key.host != key->host) {
    collect(chosen.key);  // the warnings of another worker, too
  }
  chosen.code = opened.problems.empty() && problems.empty() ? kExitDone : kExitFailed;
  return chosen;
}

}  // namespace filetimer::cli
