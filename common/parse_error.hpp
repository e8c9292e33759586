// The message about a command line that CLI11 refused, the same in both programs. Only the .cpp files that
// parse a command line include this header; the library does not need CLI11.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <string>

namespace filetimer {

// Every option reads its own word. Flags are read by the parser, which says "Could not convert:
// --follow = maybe".
inline std::string what_is_wrong(const CLI::ParseError& error) {
  const std::string said = error.what();
  const std::size_t flag = said.find("--");
  const std::size_t equals = said.find(" = ");
  if (error.get_name() != "ConversionError" || equals == said.npos || flag > equals) {
    return said;
  }
  return fmt::format("{}: '{}': expected no value", said.substr(flag, equals - flag),
                     said.substr(equals + 3));
}

}  // namespace filetimer
