// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kHeadlineCharacters = 1000;
constexpr std::size_t kNameCharacters = 200;
constexpr std::size_t kEventsCharacters = 600;  // of one worker in the table

std::string table_rows(const Incident& incident) {
  std::string html;
  for (const Worker& worker : incident.workers) {
    std::vector<std::string> events;
    for (const Moment& moment : worker.moments) {
      events.push_back(fmt::format("{:+.3f} s {}", moment.at_s, moment.text));
    }
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        html_text(worker_text(worker.name), kNameCharacters),
        worker.group ? html_text(incident.groups[*worker.group].scope, kNameCharacters) : "",
        html_text(joined(events, "; "), kEventsCharacters));
  }
  return html;
}

// Returns the lines of a page with the characters of markup escaped.
std::string html_lines(std::string_view page) {
  std::string html;
  while (!page.empty()) {
    const std::size_t end = std::min(page.find('\n'), page.size());
    html += html_text(page.substr(0, end)) + "\n";
    page.remove_prefix(std::min(end + 1, page.size()));
  }
  return html;
}

// Returns report.html with these texts in place of its "{{name}}".
std::string filled_page(const std::map<std::string_view, std::string>& texts) {
  std::string html;
  std::string_view left = kReportHtml;
  for (std::size_t begin; (begin = left.find("{{")) != left.npos;) {
    const std::size_t end = left.find("}}", begin);
    html.append(left.substr(0, begin));
    html.append(texts.at(left.substr(begin + 2, end - begin - 2)));
    left.remove_prefix(end + 2);
  }
  return html.append(left);
}

}  // namespace

std::string html_page(const Incident& incident, const std::string& page) {
  const std::size_t end = std::min(page.find("\n\n"), page.size());
  std::string headline = page.substr(0, end);
  std::ranges::replace(headline, '\n', ' ');
  return filled_page(
      {{"title", html_text(headline, kNameCharacters)},
       {"headline", html_text(headline, kHeadlineCharacters)},
       {"zero", incident.expired.empty() ? "record" : "verdict"},
       {"picture", picture_of(incident)},
       {"page", html_lines(std::string_view(page).substr(std::min(end + 2, page.size())))},
       {"rows", table_rows(incident)}});
}

}  // namespace filetimer::cli
