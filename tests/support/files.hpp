// Shared by all tests: a temporary folder, short functions for files and texts, and another user.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace filetimer::testing {

// The id of a user that does not run the tests. The user needs no account.
inline constexpr uid_t kSomebodyElse = 65533;

// A folder of one test, 0700, below $TMPDIR or another folder. The destructor removes it.
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
  std::string make_folder(std::string_view name) const;  // 0700; returns its path

 private:
  std::string path_;
};

std::string read_file(const std::string& path);  // empty: the file does not exist
void write_file(const std::string& path, std::string_view text);
bool exists(const std::string& path);  // symlinks are not followed

bool contains(std::string_view text, std::string_view part);
std::vector<std::string> lines_of(std::string_view text);
// Returns the first match of an extended regular expression, and of its groups; nothing: there is
// none. A `.` is no line break. (std::regex takes seconds to compile.)
std::vector<std::string> match_of(const std::string& text, const std::string& pattern);
// Returns the page without the line breaks within sentences.
std::string unwrapped(std::string page);

}  // namespace filetimer::testing
