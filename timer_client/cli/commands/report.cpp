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

#include "common/posix.hpp"
#include "timer_client/cli/commands/chosen_expiry.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/report/report_page.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kMostOfId = 100;
constexpr const char* kStandardOutput = "-";
constexpr std::string_view kLogBegins = R"({"schema":)";

struct ReportOptions {
  ExpiryOptions expiry;
  std::optional<std::string> output;
};

// Returns whether the file is a log: `-o logs/*` would overwrite one.
bool is_log(const std::string& path) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
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

int run_report(const ReportOptions& options) {
  if (options.output && is_log(*options.output)) {
    complain(
        fmt::format("report: '{}': expected a file to write, and this is a log", *options.output));
    return kExitUsage;
  }
  const ChosenExpiry chosen = chosen_expiry(options.expiry, true);
  if (!chosen.records) {
    return chosen.code;
  }
  const Incident incident = read_incident(*chosen.records, chosen.key);
  const std::string html = html_page(
      incident, expiry_page(chosen.key, *chosen.records, incident, {.has_all_outputs = true}));
  if (options.output == kStandardOutput) {
    Output out;
    out.write(html);
    return std::max(chosen.code, out.finish());
  }
  const std::string path = options.output.value_or(default_output(chosen.key.id));
  // The user has not chosen the default name, and in a shared folder it may be another user's link.
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (options.output ? 0 : O_NOFOLLOW);
  // If standard output is closed, its number is not the file's: the name is written there.
  const UniqueFd file = above_standard_descriptors(
      UniqueFd(retry_eintr([&] { return ::open(path.c_str(), flags, 0666); })));
  if (!file) {
    complain(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
    return kExitFailed;
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

}  // namespace

Command add_report(CLI::App& root) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* app =
      root.add_subcommand("report", "One hang as a picture: a self-contained HTML file");
  add_expiry_options(*app, options->expiry);
  add_name_option(*app, "-o,--output", options->output, "FILE",
                  "The file to write; - is standard output [hang-ID.html]");
  app->footer(
      "Examples:\n"
      "  timer_client report\n"
      "  timer_client report cst2jd-1 /shared/logs -o hang.html\n\n"
      "Prints the name of the file. It has the scopes and events of all ranks on one time\n"
      "axis, and the page that show prints of the cause.\n\n"
      "Exit codes: 0 done, 1 failed (also for an unknown ID, and when one of the logs\n"
      "could not be read), 2 usage.");
  return {app, [options] { return run_report(*options); }};
}

}  // namespace filetimer::cli
