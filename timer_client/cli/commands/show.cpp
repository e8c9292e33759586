// `timer_client show` and `report`: one expiry as text, and its incident as a picture, for a
// ticket. Which expiry an id means is known only after the last record, so the logs are read twice.
// Input that can be read only once is kept.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <functional>
#include <memory>

#include "common/posix.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/report/report_page.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

// --- the choice of an expiry ---

// Returns whether the word names files: an id has no slash, no wildcard and no suffix.
bool means_files(const std::string& word) {
  struct stat st {};
  return word == kStandardInput || word.find_first_of("/*?") != std::string::npos ||
         word.ends_with(".jsonl") || ::stat(word.c_str(), &st) == 0;
}

// Means the last verdict, and with it the cause of its incident.
constexpr std::string_view kLastExpiry = "last";
constexpr std::size_t kIdsListed = 5;

// Returns whether the first word is an id. All others name files.
bool begins_with_id(const std::vector<std::string>& words) {
  return !words.empty() && (words[0] == kLastExpiry || !means_files(words[0]));
}

// The options of both commands.
struct ExpiryOptions {
  std::vector<std::string> words;  // see chosen_expiry()
  std::optional<std::string> host;
  Place place;
  bool json = false;                  // of show
  std::optional<std::string> output;  // of report
};

using ExpiryKeys = std::vector<const ExpiryKey*>;

// Returns the ids of the last few, the latest first.
std::string latest_of(const ExpiryKeys& keys) {
  std::vector<std::string> latest;
  for (auto key = keys.rbegin(); key != keys.rend() && latest.size() < kIdsListed; ++key) {
    latest.push_back((*key)->id);
  }
  return joined(latest) + (keys.size() > latest.size() ? ", ..." : "");
}

// The expiries that logs tell of, in the order in which they were first heard of.
class ExpiryIds {
 public:
  void take(const Record& record) {
    if (record.id.empty()) {
      return;
    }
    const bool is_new = known_.insert(fmt::format("{} {}", record.host, record.id)).second;
    known_.insert(fmt::format(" {}", record.id));  // what names no host is of the one that has it
    if (is_new) {
      keys_.push_back({std::string(record.host), std::string(record.id), record.pid, record.time_us,
                       record.event == "expired"});
    }
  }

  // Returns which expiry `wanted` means: an id, the unique beginning of one, or `last`; of this
  // host where one is given. Ids are unique on one host, and likely to be so among many. An error
  // says which there are; `where` names the logs in it.
  [[nodiscard]] Result<ExpiryKey> find(std::string_view wanted,
                                       const std::optional<std::string>& host,
                                       const std::string& where) const {
    const std::string place = host ? fmt::format("{}, host '{}'", where, *host) : where;
    ExpiryKeys all;
    ExpiryKeys whole;
    ExpiryKeys begun;
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
      const auto last = std::find_if(all.rbegin(), all.rend(), std::mem_fn(&ExpiryKey::is_verdict));
      return last != all.rend() ? **last : *all.back();
    }
    if (whole.size() > 1) {
      return failure(fmt::format("'{}' is an expiry of {} hosts in {}: {}; choose one with --host",
                                 wanted, whole.size(), place,
                                 listed(mapped(whole, &ExpiryKey::host), kIdsListed)));
    }
    const ExpiryKeys& candidates = whole.empty() ? begun : whole;
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

 private:
  std::vector<ExpiryKey> keys_;
  std::unordered_set<std::string> known_;  // "HOST ID"
};

struct ChosenExpiry {
  std::optional<IncidentRecords> records;  // empty: the expiry does not exist
  int code = 0;                            // the exit code, not 0 if a log could not be read either
};

// Reads the logs that the words name. Returns the expiry of that id or, for `last`, or if the
// command is about the cause whichever expiry is named, that of the cause of its incident. Writes a
// line on standard error for all that could not be read.
ChosenExpiry chosen_expiry(const ExpiryOptions& options, bool wants_cause) {
  std::vector<std::string> files = options.words;
  std::string id(kLastExpiry);
  if (begins_with_id(files)) {
    id = std::move(files[0]);
    files.erase(files.begin());
  }
  OpenedLogs opened = open_logs(options.place.dir, files);
  std::vector<LogReader>& logs = opened.logs;
  complain_of_all(opened.problems);
  ChosenExpiry chosen{.records = {}, .code = kExitFailed};
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
  complain_of_all({skipped_text(logs)});
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
  if (wants_cause || id == kLastExpiry) {
    if (const ExpiryKey cause = cause_of(*chosen.records);
        cause.id != key->id || cause.host != key->host) {
      collect(cause);  // the warnings of another worker, too
    }
  }
  chosen.code = opened.problems.empty() && problems.empty() ? kExitDone : kExitFailed;
  return chosen;
}

// --- the commands ---

constexpr std::size_t kMostOfId = 100;
constexpr const char* kStandardOutput = "-";
constexpr std::string_view kLogBegins = R"({"schema":)";

// Returns whether the file is a log: `-o logs/*` would overwrite one.
bool is_log(const std::string& path) {
  const UniqueFd file = open_file(path.c_str(), O_RDONLY | O_NONBLOCK);
  std::array<char, kLogBegins.size()> begin{};
  return file && ::read(file.get(), begin.data(), begin.size()) == std::ssize(begin) &&
         std::string_view(begin.data(), begin.size()) == kLogBegins;
}

// Returns the file name for a hang: its id, cut, and with `_` for characters such as slashes.
std::string default_output(const std::string& id) {
  std::string name = id.substr(0, kMostOfId);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; }, '_');
  return fmt::format("hang-{}.html", name);
}

int run_show(const ExpiryOptions& options) {
  const ChosenExpiry chosen = chosen_expiry(options, false);
  if (!chosen.records) {
    return chosen.code;
  }
  Output out;
  if (options.json) {
    chosen.records->each([&](const Record& record) {
      if (chosen.records->key().is_of(record)) {
        out.write(std::string(record.line) + "\n");
      }
    });
  } else {
    out.write(expiry_page(*chosen.records, read_incident(*chosen.records),
                          {.has_colour = screen_of(out.fd()).has_colour}));
  }
  return std::max(chosen.code, out.finish());
}

int run_report(const ExpiryOptions& options) {
  if (options.output && is_log(*options.output)) {
    return failed(
        fmt::format("report: '{}': expected a file to write, and this is a log", *options.output),
        kExitUsage);
  }
  const ChosenExpiry chosen = chosen_expiry(options, true);
  if (!chosen.records) {
    return chosen.code;
  }
  const Incident incident = read_incident(*chosen.records);
  const std::string html =
      html_page(incident, expiry_page(*chosen.records, incident, {.has_all_outputs = true}));
  if (options.output == kStandardOutput) {
    Output out;
    out.write(html);
    return std::max(chosen.code, out.finish());
  }
  const std::string path = options.output.value_or(default_output(chosen.records->key().id));
  // The user has not chosen the default name, and in a shared folder it may be another user's link.
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | (options.output ? 0 : O_NOFOLLOW);
  // If standard output is closed, its number is not the file's: the name is written there.
  const UniqueFd file = above_standard_descriptors(open_file(path.c_str(), flags, 0666));
  if (!file) {
    return failed(fmt::format("cannot write '{}': {}", path, std::strerror(errno)), kExitFailed);
  }
  Output out(file.get(), fmt::format("'{}'", path));
  out.write(html);
  if (const int written = out.finish(); written != kExitDone) {
    return written;
  }
  Output name;
  name.write(path + "\n");
  return std::max(chosen.code, name.finish());
}

// Adds a command about one expiry, with the options of both and those that `add_own` adds.
Command add_expiry_command(CLI::App& root, const std::string& name, const std::string& description,
                           const std::string& footer, int (*run)(const ExpiryOptions&),
                           const std::function<void(CLI::App&, ExpiryOptions&)>& add_own) {
  auto options = std::make_shared<ExpiryOptions>();
  CLI::App* app = root.add_subcommand(name, description);
  app->add_option("ID", options->words,
                  "The id that `log` shows, a beginning of it, or last [last];\n"
                  "then the logs to read, those of other hosts too: files,\n"
                  "folders, or - for standard input [the server's]")
      ->check(is_name);  // an empty id would begin every other one
  add_name_option(*app, "--host", options->host, "HOST", "The host of ID, where two have the same");
  add_utc_option(*app);
  add_directory_options(*app, options->place, [&words = options->words] {
    return words.size() > (begins_with_id(words) ? 1 : 0);
  });
  add_own(*app, *options);
  app->footer(footer +
              "\n\nExit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
              "could not be read), 2 usage.");
  return {app, [options, run] { return run(*options); }};
}

}  // namespace

Command add_show(CLI::App& root) {
  return add_expiry_command(root, "show", "One expiry: its scope, worker, ranks, evidence and kill",
                            "Examples:\n"
                            "  timer_client show last\n"
                            "  timer_client show cst2jd-1 /shared/logs\n"
                            "  timer_client show /shared/logs\n"
                            "  zcat old.jsonl.gz | timer_client show last -",
                            run_show, [](CLI::App& app, ExpiryOptions& options) {
                              app.add_flag("--json", options.json,
                                           "Its records, a JSON object a line");
                            });
}

Command add_report(CLI::App& root) {
  return add_expiry_command(
      root, "report", "One hang as a picture: a self-contained HTML file",
      "Examples:\n"
      "  timer_client report\n"
      "  timer_client report cst2jd-1 /shared/logs -o hang.html\n\n"
      "Prints the name of the file. It has the scopes and events of all ranks on one time\n"
      "axis, and the page that show prints of the cause.",
      run_report, [](CLI::App& app, ExpiryOptions& options) {
        add_name_option(app, "-o,--output", options.output, "FILE",
                        "The file to write; - is standard output [hang-ID.html]");
      });
}

}  // namespace filetimer::cli
