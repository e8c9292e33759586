// `timer_client show`: one expiry, whole.
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "timer_client/cli/commands/chosen_expiry.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct ShowOptions {
  std::vector<std::string> words;  // ID and the files
  std::optional<std::string> host;
  Place place;
  bool json = false;
};

int run_show(const ShowOptions& options) {
  Output out;
  std::optional<IncidentRecords> records;
  ExpiryChoice choice{.host = options.host, .dir = options.place.dir, .files = {}};
  choice.take_words(options.words);
  const int code = read_chosen_expiry(choice, [&](const ExpiryKey& key, const Record& record) {
    if (!records) {
      records.emplace(key);
    }
    records->take(record);
  });
  if (!records) {
    return code;
  }
  const ExpiryKey key =
      choice.id == kLastExpiry
          ? cause_of(read_incident(*records, records->key(), false), records->key())
          : records->key();
  if (options.json) {
    records->each([&](const Record& record) {
      if (key.is_of(record)) {
        out.write(std::string(record.line) + "\n");
      }
    });
  } else {
    const Incident incident = read_incident(*records, key, true);
    out.write(expiry_page(key, *records, incident, wants_colour(out.fd())));
  }
  return std::max(code, out.finish());
}

}  // namespace

Command add_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app =
      root.add_subcommand("show", "One expiry: its scope, worker, ranks, evidence and kill");
  app->add_option("ID", options->words,
                  "The id that `log` shows, a beginning of it, or last [last];\n"
                  "then the logs to read, those of other hosts too: files,\n"
                  "folders, patterns such as 'logs/*.jsonl', or - for standard\n"
                  "input [the server's]");
  app->add_option("--host", options->host, "The host of ID, where two have the same")
      ->type_name("HOST")
      ->check(is_name);
  app->add_flag("--json", options->json, "Its records, a JSON object a line");
  add_utc_option(*app);
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client show last\n"
      "  timer_client show cst2jd-1 /shared/logs\n"
      "  timer_client show /shared/logs\n"
      "  zcat old.jsonl.gz | timer_client show last -\n\n"
      "Exit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
      "could not be read), 2 usage.");
  return {app, [options] { return run_show(*options); }};
}

}  // namespace filetimer::cli
