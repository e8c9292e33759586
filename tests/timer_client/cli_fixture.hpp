// What the tests of the command line share: the logs in data/, folders that go away, and a command
// run in this process with its output caught.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace filetimer::cli {

std::string data_path(std::string_view name);
std::string read_data(std::string_view name);
std::vector<std::string> lines_of(std::string_view text);

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(std::string_view name) const;
  void write(std::string_view name, std::string_view text) const;
  void append(std::string_view name, std::string_view text) const;
  void rename(std::string_view from, std::string_view to) const;
  void remove(std::string_view name) const;

 private:
  std::string path_;
};

struct Ran {
  int code = -1;  // -1: the words were a usage error, told in `errors`
  std::string output;
  std::string errors;
};

// A subcommand that starts nothing and speaks for nobody else, with `words`.
Ran run_command(const std::vector<std::string>& words);

}  // namespace filetimer::cli
