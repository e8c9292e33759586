// `timer_client report`: a hang as one picture, for a ticket.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/posix.hpp"
#include "timer_client/cli/commands/chosen_expiry.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/report/hang.hpp"
#include "timer_client/cli/report/hang_page.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kLogsNamed = 3;

struct ReportOptions {
  std::vector<std::string> words;  // ID and the files
  std::optional<std::string> host;
  Place place;
  std::string output;
  std::string perfetto;
};

// Returns whether the text is in the file, which is replaced. Else a line on standard error says
// why not.
bool write_file(const std::string& path, const std::string& text) {
  const UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }));
  if (!file) {
    complain(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
    return false;
  }
  Output out(file.get());
  out.write(text);
  return out.finish() == kExitDone;
}

int run_report(const ReportOptions& options) {
  ExpiryChoice choice{.host = options.host, .dir = options.place.dir, .files = {}};
  choice.take_words(options.words);
  std::optional<HangCollector> collector;
  std::string id;
  const int code = read_chosen_expiry(choice, [&](const ExpiryKey& key, const Record& record) {
    if (!collector) {
      collector.emplace(key);
      id = key.id;
    }
    collector->take(record);
  });
  if (!collector) {
    return code;
  }
  const Hang hang = collector->hang();
  const std::string output =
      options.output.empty() ? fmt::format("hang-{}.html", id) : options.output;
  const std::string logs =
      choice.files.empty() ? "the server's log" : listed(choice.files, kLogsNamed);
  if (!write_file(output, html_page(hang, logs)) ||
      (!options.perfetto.empty() && !write_file(options.perfetto, trace_events(hang)))) {
    return kExitFailed;
  }
  Output out;
  out.write(output + "\n");
  return std::max(code, out.finish());
}

}  // namespace

Command add_report(CLI::App& root) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* app =
      root.add_subcommand("report", "One hang as a picture: an HTML file that needs nothing else");
  app->add_option("ID", options->words,
                  "The id of an expiry in the hang, a beginning of it, or last\n"
                  "[last]; then the logs to read, those of other hosts too:\n"
                  "files, folders, or patterns such as 'logs/*.jsonl' [the\n"
                  "server's]");
  app->add_option("-o,--output", options->output, "The file to write [hang-ID.html]")
      ->type_name("FILE");
  app->add_option("--perfetto", options->perfetto,
                  "Write the same as trace events, too, for ui.perfetto.dev")
      ->type_name("FILE");
  app->add_option("--host", options->host, "The host of ID, where two have the same")
      ->type_name("HOST")
      ->check(is_name);
  add_place_options(*app, options->place);
  app->footer(
      "Examples:\n"
      "  timer_client report\n"
      "  timer_client report cst2jd-1 /shared/logs -o hang.html\n\n"
      "Prints the name of the file. It has the scopes and events of all ranks on one time\n"
      "axis, the ranks by scope, and their stacks as one tree.\n\n"
      "Exit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
      "could not be read), 2 usage.");
  return {app, [options] { return run_report(*options); }};
}

}  // namespace filetimer::cli
