// `timer_client report`: a hang as one picture, for a ticket.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/posix.hpp"
#include "common/text.hpp"
#include "timer_client/cli/commands/chosen_expiry.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/report/report_page.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kLogsNamed = 3;
constexpr std::size_t kMostOfId = 100;
constexpr const char* kStandardOutput = "-";
constexpr std::string_view kLogBegins = R"({"schema":)";

struct ReportOptions {
  std::vector<std::string> words;  // ID and the files
  std::optional<std::string> host;
  Place place;
  std::optional<std::string> output;
};

// Returns whether the file is a log: `-o logs/*.jsonl` would overwrite one.
bool is_log(const std::string& path) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  std::array<char, kLogBegins.size()> begin{};
  return file && ::read(file.get(), begin.data(), begin.size()) == std::ssize(begin) &&
         std::string_view(begin.data(), begin.size()) == kLogBegins;
}

enum class Links { kFollowed, kRefused };

// Writes the text to the file, which is replaced; "-" is standard output. Returns the exit code; if
// it is not 0, a line on standard error says why.
int write_file(const std::string& path, const std::string& text, Links links) {
  if (path == kStandardOutput) {
    Output out;
    out.write(text);
    return out.finish();
  }
  const int flags = links == Links::kRefused ? O_NOFOLLOW : 0;
  const UniqueFd file(retry_eintr([&] {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0666);
  }));
  if (!file) {
    const bool is_link = errno == ELOOP && links == Links::kRefused;
    complain(fmt::format(
        "cannot write '{}': {}", path,
        is_link ? "a symbolic link: expected -o FILE to write through it" : std::strerror(errno)));
    return kExitFailed;
  }
  Output out(file.get(), fmt::format("'{}'", path));
  out.write(text);
  return out.finish();
}

// Returns the file name for a hang: its id, cut, and with `_` for characters such as slashes.
std::string default_output(const std::string& id) {
  std::string name = id.substr(0, kMostOfId);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_'; }, '_');
  return fmt::format("hang-{}.html", name);
}

int run_report(const ReportOptions& options) {
  if (options.output && is_log(*options.output)) {
    complain(
        fmt::format("report: '{}': expected a file to write, and this is a log", *options.output));
    return kExitUsage;
  }
  ExpiryChoice choice{.host = options.host, .dir = options.place.dir, .files = {}};
  choice.take_words(options.words);
  std::optional<IncidentRecords> records;
  const int code = read_chosen_expiry(choice, [&](const ExpiryKey& key, const Record& record) {
    if (!records) {
      records.emplace(key);
    }
    records->take(record);
  });
  if (!records) {
    return code;
  }
  const Incident incident = read_incident(*records, records->key(), false);
  const Picture picture = picture_of(incident);
  const ExpirySummary cause = summary_of(cause_of(incident, records->key()), *records, incident);
  const std::string output = options.output.value_or(default_output(records->key().id));
  const std::string logs =
      choice.files.empty() ? "the server's log" : listed(choice.files, kLogsNamed);
  // The user has not chosen the default name, and in a shared folder it may be another user's link.
  const int written = write_file(output, html_page(picture, cause, logs),
                                 options.output ? Links::kFollowed : Links::kRefused);
  if (written != kExitDone || output == kStandardOutput) {
    return std::max(code, written);
  }
  Output out;
  out.write(output + "\n");
  return std::max(code, out.finish());
}

}  // namespace

Command add_report(CLI::App& root) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* app =
      root.add_subcommand("report", "One hang as a picture: a self-contained HTML file");
  app->add_option("ID", options->words,
                  "The id of an expiry in the hang, a beginning of it, or last\n"
                  "[last]; then the logs to read, those of other hosts too:\n"
                  "files, folders, patterns such as 'logs/*.jsonl', or - for\n"
                  "standard input [the server's]");
  app->add_option("-o,--output", options->output,
                  "The file to write; - is standard output [hang-ID.html]")
      ->type_name("FILE")
      ->check(is_name);
  app->add_option("--host", options->host, "The host of ID, where two have the same")
      ->type_name("HOST")
      ->check(is_name);
  add_utc_option(*app);
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
