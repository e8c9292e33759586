// What CLI11 is given and what is said of a command line that it refused, the same in both
// programs. Only the .cpp files that parse a command line include this header; the library does not
// need CLI11.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <CLI/Error.hpp>
#include <string>
#include <vector>

namespace filetimer {

// Returns the words in the reverse order, in which CLI11 takes them. `--dir=` becomes two words:
// CLI11 would take the next word as its value, and `--dir="$UNSET" --detach` would name a
// directory.
inline std::vector<std::string> words_for_parser(const std::vector<std::string>& words) {
  std::vector<std::string> reversed;
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const bool is_empty = word->starts_with("--") && word->find('=') == word->size() - 1;
    if (is_empty) {
      reversed.emplace_back();
    }
    reversed.push_back(is_empty ? word->substr(0, word->size() - 1) : *word);
  }
  return reversed;
}

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
