// `timer_client show`: one expiry, whole.
// SPDX-License-Identifier: MIT
#include <memory>
#include <utility>

#include "timer_client/cli/commands.hpp"
#include "timer_client/cli/expiry.hpp"
#include "timer_client/cli/expiry_page.hpp"
#include "timer_client/cli/log_file.hpp"
#include "timer_client/cli/options.hpp"
#include "timer_client/cli/output.hpp"

namespace filetimer::cli {
namespace {

struct ShowOptions {
  std::string id;
  Place place;
  std::vector<std::string> files;
  bool json = false;
};

int run_show(const ShowOptions& options) {
  auto logs = open_logs(options.place.dir, options.files);
  if (!logs) {
    complain(logs.error().message);
    return kExitFailed;
  }
  std::vector<Record> records;
  const Status read = read_merged(*logs, false, [&records](Record&& record) {
    if (may_concern_an_expiry(record)) {
      records.push_back(std::move(record));
    }
    return true;
  });
  if (!read) {
    complain(read.error().message);
    return kExitFailed;
  }
  if (const std::string skipped = skipped_text(*logs); !skipped.empty()) {
    complain(skipped);
  }
  const auto id = find_expiry(records, options.id, names_of(*logs));
  if (!id) {
    complain(id.error().message);
    return kExitFailed;
  }
  Output out;
  if (!options.json) {
    out.write(expiry_page(gather_expiry(records, *id), wants_colour(out.fd())));
    return out.finish();
  }
  for (const Record& record : records) {
    if (record.id == *id) {
      out.write(record.raw + "\n");
    }
  }
  return out.finish();
}

}  // namespace

Command add_show(CLI::App& root) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* app = root.add_subcommand(
      "show", "One expiry, whole: what, who, where everybody was, what was done");
  app->add_option("ID", options->id, "The id that `log` shows, a beginning of it, or last")
      ->required();
  app->add_option("FILE", options->files, "Logs to read, those of other hosts too [the server's]");
  app->add_flag("--json", options->json, "Its records themselves, a JSON object a line");
  add_place_options(*app, options->place);
  app->footer("Exit codes: 0 done, 1 failed (also for an unknown ID), 2 usage.");
  return {app, [options] { return run_show(*options); }};
}

}  // namespace filetimer::cli
