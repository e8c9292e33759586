// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/phrases.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kPidsListed = 8;

}  // namespace

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) {
      text.append(text.empty() ? "" : separator).append(part);
    }
  }
  return text;
}

std::string listed(const std::vector<std::string>& parts, std::size_t most,
                   std::string_view separator) {
  const std::size_t shown = std::min(parts.size(), most);
  std::string text = fmt::format(
      "{}",
      fmt::join(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(shown), separator));
  if (parts.size() > shown) {
    text += fmt::format(" and {} more", parts.size() - shown);
  }
  return text;
}

std::string milliseconds_text(double ms) {
  return seconds_text(ms / 1e3);
}

std::string backquoted(std::string_view scope) {
  return fmt::format("`{}`", scope);
}

std::string pids_text(const std::vector<std::int64_t>& pids) {
  std::vector<std::string> texts;
  for (const std::int64_t pid : pids) {
    texts.push_back(fmt::format("{}", pid));
  }
  return listed(texts, kPidsListed);
}

}  // namespace filetimer::cli
