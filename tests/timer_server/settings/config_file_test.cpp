// SPDX-License-Identifier: MIT
#include "timer_server/settings/config_file.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace filetimer;

namespace {

struct Read {
  std::string word;
  bool flag = false;
  std::string error;
};

Read read(const std::string& text) {
  CLI::App app;
  Read read;
  std::string config;
  app.add_option("--word", read.word);
  app.add_flag("--flag", read.flag);
  app.add_option("--config", config)->configurable(false);
  app.config_formatter(std::make_shared<ConfigFile>(app));
  std::istringstream file(text);
  try {
    app.parse_from_stream(file);
  } catch (const CLI::ParseError& error) {
    read.error = error.what();
  }
  return read;
}

}  // namespace

TEST_CASE("A setting is a number or a string in either kind of quotes, with a comment after it") {
  struct Row {
    const char* line;
    const char* word;
  };
  for (const Row& row : std::vector<Row>{{"word = 5", "5"},
                                         {"\tword\t=-2.5e3#a number\r", "-2.5e3"},
                                         {"word = \"a # b, [c]\" # why", "a # b, [c]"},
                                         {"word = \"\\\"a\\\" 'b' \\\\n\"", "\"a\" 'b' \\n"},
                                         {"word='say \"hi\"\\n'", "say \"hi\"\\n"},
                                         {"word = 'true'", "true"},
                                         {"word = 'a = b'", "a = b"}}) {
    CAPTURE(row.line);
    const Read result = read(row.line);
    CHECK(result.error == "");
    CHECK(result.word == row.word);
  }
}

TEST_CASE("A flag is true or false, and blank lines and comments are ignored") {
  CHECK(read("\n# word = 1\n \t\nflag = true # why\n").flag);
  CHECK_FALSE(read("flag = false").flag);
  CHECK(read("# word = 1\nflag = true").word.empty());
}

TEST_CASE("A value of another form is refused, and the expected form is named") {
  for (const std::string line : {"word", "word =", "word = tree", "word = true", "word = \"a",
                                 "word = 'a", "word = \"a\\n\"", "word = \"\"\"a\"\"\"",
                                 "word = [1]", "word = 1 2", "word = 'a' 'b'", "word = 'it's'"}) {
    CHECK(read(line).error == "line 1: '" + line +
                                  "': expected a number or a string: 'TEXT', or \"TEXT\" with no "
                                  "escapes but \\\" and \\\\");
  }
  for (const std::string line : {"flag", "flag = 1", "flag = 'true'", "flag = true false"}) {
    CHECK(read("\n" + line).error == "line 2: '" + line + "': expected true or false");
  }
}

TEST_CASE("A name that is not an option for a file is refused, and so is a second value") {
  struct Row {
    const char* line;
    const char* quoted;
  };
  for (const Row& row : std::vector<Row>{{"words = 1", "'words'"},
                                         {"[word]", "'[word]'"},
                                         {"word.a = 1", "'word.a'"},
                                         {"--word = 1", "'--word'"},
                                         {"= 1", "''"},
                                         {"help = true", "'help'"},
                                         {"config = 'a'", "'config'"},
                                         {"\x1b[31m = 1", "'\\x1b[31m'"}}) {
    CAPTURE(row.quoted);
    CHECK(read(row.line).error ==
          std::string("line 1: ") + row.quoted +
              " is not a setting: expected NAME = VALUE, with the NAME of an option");
  }
  CHECK(read("word = 1\n\nword = 2").error == "line 3: 'word' is set twice");
}
