// SPDX-License-Identifier: MIT
#include "tests/support/files.hpp"

#include <doctest/doctest.h>
#include <regex.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "common/text.hpp"

namespace filetimer::testing {
namespace {

void put(const std::string& path, std::string_view text, std::ios::openmode mode) {
  std::ofstream file(path, std::ios::binary | mode);
  file << text;
  file.close();
  REQUIRE_MESSAGE(file, "cannot write " << path);
}

}  // namespace

TempFolder::TempFolder() : TempFolder(std::filesystem::temp_directory_path().string()) {}

TempFolder::TempFolder(const std::string& below) {
  std::string name = below + "/filetimer-XXXXXX";
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = std::filesystem::canonical(name).string();
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::path(std::string_view name) const {
  return std::string(path_).append("/").append(name);
}

void TempFolder::write(std::string_view name, std::string_view text) const {
  write_file(path(name), text);
}

void TempFolder::append(std::string_view name, std::string_view text) const {
  put(path(name), text, std::ios::app);
}

std::string TempFolder::make_folder(std::string_view name) const {
  REQUIRE(::mkdir(path(name).c_str(), 0700) == 0);
  return path(name);
}

std::string read_file(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // stops at an error, as in /proc when the process has ended
  return text.str();
}

void write_file(const std::string& path, std::string_view text) {
  put(path, text, std::ios::trunc);
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

std::vector<std::string> match_of(const std::string& text, const std::string& pattern) {
  regex_t compiled;
  REQUIRE(::regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NEWLINE) == 0);
  std::vector<regmatch_t> found(compiled.re_nsub + 1);
  const bool has_match = ::regexec(&compiled, text.c_str(), found.size(), found.data(), 0) == 0;
  ::regfree(&compiled);
  std::vector<std::string> texts;
  for (const regmatch_t& each : has_match ? found : std::vector<regmatch_t>{}) {
    const bool is_there = each.rm_so >= 0;  // as a group of another alternative is not
    texts.emplace_back(text.data() + (is_there ? each.rm_so : 0),
                       text.data() + (is_there ? each.rm_eo : 0));
  }
  return texts;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    lines.emplace_back(take_until(text, '\n'));
  }
  return lines;
}

std::string unwrapped(std::string text) {
  for (std::size_t at = 0; (at = text.find("\n    ", at)) != std::string::npos;) {
    const std::size_t word = std::min(text.find_first_not_of(' ', at + 1), text.size());
    text.replace(at, word - at, 1, ' ');
  }
  return text;
}

}  // namespace filetimer::testing
