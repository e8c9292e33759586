// What all tests share about files and texts: a folder of a test's own, and short words for what
// tests do with the files in it.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace filetimer::testing {

// A folder of a test's own, 0700, below $TMPDIR or another folder; it goes with it.
class TempFolder {
 public:
  TempFolder();
  explicit TempFolder(const std::string& below);
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(std::string_view name) const;
  void write(std::string_view name, std::string_view text) const;
  void append(std::string_view name, std::string_view text) const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);  // empty when there is none
void write_file(const std::string& path, std::string_view text);
bool exists(const std::string& path);  // symlinks are not followed

bool contains(std::string_view text, std::string_view part);
std::vector<std::string> lines_of(std::string_view text);
// Without the line breaks within sentences of a page.
std::string unwrapped(std::string page);

}  // namespace filetimer::testing
