// The format of --config. Only settings.cpp includes this header, and with it CLI11 and toml++.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/text.hpp"

namespace filetimer {

// Reads a TOML table of options for `app`, which must outlive the object: the key is an option
// without its dashes, the value a number or a string, or for a flag true or false. Anything else is
// an error with the number of its line: CLI11's own reader drops it.
class ConfigFile final : public CLI::ConfigBase {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& file) const override {
    const toml::parse_result parsed = toml::parse(file);
    if (!parsed) {
      throw error_at(parsed.error().source(), parsed.error().description());
    }
    std::vector<CLI::ConfigItem> settings;
    for (const auto& [key, value] : parsed.table()) {
      const std::string name(key.str());
      const CLI::Option* const option = app_.get_option_no_throw("--" + name);
      if (option == nullptr || !option->get_configurable()) {
        throw error_at(
            value.source(),
            fmt::format("'{}' is not a setting: expected the name of an option", printable(name)));
      }
      const bool is_flag = option->get_expected_min() == 0;
      const auto text = text_of(value, is_flag);
      if (!text) {
        throw error_at(value.source(),
                       fmt::format("'{}': expected {}", printable(name),
                                   is_flag ? "true or false" : "a number or a string"));
      }
      CLI::ConfigItem& item = settings.emplace_back();
      item.name = name;
      item.inputs = {*text};
    }
    return settings;
  }

 private:
  static CLI::ConfigError error_at(const toml::source_region& place, std::string_view what) {
    return CLI::ConfigError(fmt::format("line {}: {}", place.begin.line, what));
  }

  static std::optional<std::string> text_of(const toml::node& value, bool is_flag) {
    if (is_flag || value.is_boolean()) {
      return is_flag && value.is_boolean() ? std::optional(value.ref<bool>() ? "true" : "false")
                                           : std::nullopt;
    }
    return value.is_number() ? std::optional(fmt::format("{}", *value.value<double>()))
                             : value.value<std::string>();
  }

  const CLI::App& app_;
};

}  // namespace filetimer
