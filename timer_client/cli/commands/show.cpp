// `timer_client show`: one expiry, whole.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/merge.hpp"
#include "timer_client/cli/log/report.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct ShowOptions {
  std::string id;
  std::optional<std::string> host;
  Place place;
  std::vector<std::string> files;
  bool json = false;
};

int run_show(const ShowOptions& options) {
  OpenedLogs opened = open_logs(options.place.dir, options.files);
  std::vector<LogReader>& logs = opened.logs;
  complain_of_all(opened.notes);
  complain_of_all(opened.problems);
  if (logs.empty()) {
    return kExitFailed;
  }
  // Only behind the last record it is known what to keep, and the logs of many hosts are more than
  // memory has room for: they are read again. What comes from a pipe is kept.
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
  const auto key = ids.find(options.id, options.host, names_of(logs));
  if (!key) {
    complain(key.error().message);
    return kExitFailed;
  }
  Output out;
  ExpiryReport report(*key);
  const auto take = [&](const Record& record) {
    if (!options.json) {
      report.take(record);
    } else if (key->is_of(record)) {
      out.write(std::string(record.line) + "\n");
    }
    return true;
  };
  if (is_read_twice) {
    std::for_each(logs.begin(), logs.end(), [](LogReader& log) { log.rewind(); });
    read_merged(logs, take);
  }
  for (std::string& line : lines) {
    line.reserve(line.size() + kLinePadding);
    if (const auto record = parse_record(line)) {
      take(*record);
    }
  }
  out.write(report.page(wants_colour(out.fd())));
  const int code = opened.problems.empty() && problems.empty() ? kExitDone : kExitFailed;
  return std::max(code, out.finish());
}

}  // namespace

Command add_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app = root.add_subcommand(
      "show", "One expiry, whole: what, who, where the ranks were, what was done");
  app->add_option("ID", options->id, "The id that `log` shows, a beginning of it, or last")
      ->required();
  app->add_option("FILE", options->files,
                  "Logs to read, those of other hosts too: files, folders, or\n"
                  "patterns such as 'logs/*.jsonl' [the server's]");
  app->add_option("--host", options->host, "The host of ID, where two have the same")
      ->type_name("HOST")
      ->check(is_name);
  app->add_flag("--json", options->json, "Its records themselves, a JSON object a line");
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client show last\n"
      "  timer_client show cst2jd-1 /shared/logs\n\n"
      "Exit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
      "could not be read), 2 usage.");
  return {app, [options] { return run_show(*options); }};
}

}  // namespace filetimer::cli
