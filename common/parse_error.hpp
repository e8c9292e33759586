// The message about a command line that CLI11 refused, the same in both programs. Only the .cpp
// files that parse a command line include this header; the library does not need CLI11.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <string>

namespace filetimer {

// Returns the message. Options have messages of their own, which are not changed; CLI11's message
// about a flag with a value, "Could not convert: --follow = maybe", is replaced.
inline std::string what_is_wrong(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::size_t flag = text.find("--");
  const std::size_t equals = text.find(" = ");
  if (error.get_name() != "ConversionError" || equals == text.npos || flag > equals) {
    return text;
  }
  return fmt::format("{}: '{}': expected no value", text.substr(flag, equals - flag),
                     text.substr(equals + 3));
}

}  // namespace filetimer
