// history_check FOLDER|- [LOG...]: judges the histories of a folder (-: none) and these logs.
// Prints a line for each violation. Exit status: 0 none, 1 violations, 2 nothing to judge.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <string_view>

#include "tests/chaos/checker.hpp"

int main(int argc, char** argv) {
  filetimer::chaos::History history;
  bool is_usable = argc > 1 && (std::string_view(argv[1]) == "-" || history.add_folder(argv[1]));
  for (int i = 2; i < argc; ++i) {
    is_usable = history.add_log(argv[i]) && is_usable;
  }
  if (!is_usable) {
    std::fprintf(stderr, "usage: history_check FOLDER|- [LOG...], of files that exist\n");
    return 2;
  }
  const auto violations = filetimer::chaos::check(history);
  for (const auto& violation : violations) {
    std::printf("%s\n", violation.text().c_str());
  }
  return violations.empty() ? 0 : 1;
}
