// The format of --config: the part of TOML that a flat list of options needs. Only settings.cpp
// includes this header, and with it CLI11.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/text.hpp"

namespace filetimer {

// Reads lines of `NAME = VALUE` for `app`, which must outlive the object: NAME is an option without
// its dashes, VALUE a number, a string in quotes, or for a flag true or false. Any other line is an
// error with the number of the line. CLI11's own reader drops such lines, and that of 2.1 (Debian
// 12) cuts a string at its first `#`.
class ConfigFile final : public CLI::ConfigBase {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& file) const override {
    std::vector<CLI::ConfigItem> settings;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const std::string wrong = is_blank_or_comment(line) ? std::string() : take(line, settings);
      if (!wrong.empty()) {
        throw CLI::ConfigError(fmt::format("line {}: {}", number, wrong));
      }
    }
    return settings;
  }

 private:
  static bool is_blank_or_comment(const std::string& text) {
    const std::size_t start = text.find_first_not_of(" \t\r");
    return start == text.npos || text[start] == '#';
  }

  // Adds what `line` sets to `settings`, or returns what is wrong with it.
  std::string take(const std::string& line, std::vector<CLI::ConfigItem>& settings) const {
    const std::size_t equals = std::min(line.find('='), line.size());
    CLI::ConfigItem item;
    item.name = CLI::detail::trim_copy(line.substr(0, equals));
    const CLI::Option* const option = app_.get_option_no_throw("--" + item.name);
    if (option == nullptr || !option->get_configurable()) {
      return fmt::format("'{}' is not a setting: expected NAME = VALUE, with the NAME of an option",
                         printable(item.name));
    }
    if (std::ranges::find(settings, item.name, &CLI::ConfigItem::name) != settings.end()) {
      return fmt::format("'{}' is set twice", item.name);
    }
    const bool is_flag = option->get_expected_min() == 0;
    const std::string text = line.substr(std::min(equals + 1, line.size()));
    const auto value = value_in(CLI::detail::trim_copy(text), is_flag);
    if (!value) {
      return fmt::format("'{}': expected {}", printable(CLI::detail::trim_copy(line)),
                         is_flag ? "true or false"
                                 : "a number or a string: 'TEXT', or \"TEXT\" with no escapes but "
                                   "\\\" and \\\\");
    }
    item.inputs = {*value};
    settings.push_back(std::move(item));
    return {};
  }

  // Returns the value of `text`. Returns nothing if it has another type, or if the rest is not a
  // comment.
  static std::optional<std::string> value_in(const std::string& text, bool is_flag) {
    std::string value = text.substr(0, text.find_first_of(" \t#"));
    std::size_t end = value.size();
    if (!is_flag && (text.starts_with('"') || text.starts_with('\''))) {
      const char escape = text[0] == '"' ? '\\' : '\0';
      std::istringstream(text) >> std::quoted(value, text[0], escape);
      // The value is written again. It differs if its closing quote is missing, or if a backslash
      // is not before a quote or a backslash.
      std::ostringstream again;
      again << std::quoted(value, text[0], escape);
      if (!text.starts_with(again.str())) {
        return std::nullopt;
      }
      end = again.str().size();
    } else if (is_flag ? value != "true" && value != "false" : !CLI::Number(value).empty()) {
      return std::nullopt;
    }
    return is_blank_or_comment(text.substr(end)) ? std::optional(value) : std::nullopt;
  }

  const CLI::App& app_;
};

}  // namespace filetimer
