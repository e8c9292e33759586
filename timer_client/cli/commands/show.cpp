// `timer_client show`: one expiry, whole.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/log/expiry.hpp"
#include "timer_client/cli/log/expiry_page.hpp"
#include "timer_client/cli/log/log_file.hpp"
#include "timer_client/cli/log/log_merge.hpp"
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
  std::vector<LogFile>& logs = opened.logs;
  complain_of_all(opened.notes);
  complain_of_all(opened.problems);
  if (logs.empty()) {
    return kExitFailed;
  }
  // Read twice where that can be done: only then it is known what to keep, and the logs of many
  // hosts are more than memory has room for.
  const bool is_read_twice = std::all_of(
      logs.begin(), logs.end(), [](const LogFile& log) { return log.can_be_read_again(); });
  ExpiryIds ids;
  std::vector<Record> records;
  const Merged merged = read_merged(logs, false, [&](Record&& record) {
    ids.take(record);
    if (!is_read_twice) {
      records.push_back(std::move(record));
    }
    return true;
  });
  complain_of_all(merged.problems);
  if (const std::string skipped = skipped_text(logs); !skipped.empty()) {
    complain(skipped);
  }
  const auto key = ids.find(options.id, options.host, names_of(logs));
  if (!key) {
    complain(key.error().message);
    return kExitFailed;
  }
  if (is_read_twice) {
    for (LogFile& log : logs) {
      log.read_again();
    }
    // What cannot be read now could not be read before.
    read_merged(logs, false, [&](Record&& record) {
      if (concerns(record, *key)) {
        records.push_back(std::move(record));
      }
      return true;
    });
  }
  const int code = opened.problems.empty() && merged.problems.empty() ? kExitDone : kExitFailed;
  Output out;
  if (!options.json) {
    out.write(expiry_page(gather_expiry(records, *key), wants_colour(out.fd())));
    return std::max(code, out.finish());
  }
  for (const Record& record : records) {
    if (is_of(record, *key)) {
      out.write(record.raw + "\n");
    }
  }
  return std::max(code, out.finish());
}

}  // namespace

Command add_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app = root.add_subcommand(
      "show", "One expiry, whole: what, who, where everybody was, what was done");
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
