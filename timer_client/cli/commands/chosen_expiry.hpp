// How a command that is about one expiry reads logs: only behind the last record it is known which
// expiry is meant, so the logs are read twice. What can be read once only is kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/report.hpp"

namespace filetimer::cli {

struct ExpiryChoice {
  std::string id = "last";  // see ExpiryIds::find()
  std::optional<std::string> host;
  std::string dir;                 // the runtime directory whose log is read if `files` is empty
  std::vector<std::string> files;  // see open_logs()

  // Takes the words of a command: the id, which may be left out, and the files. The first word is
  // an id unless it is a path or the name of a file or folder.
  void take_words(std::vector<std::string> words);
};

// Gives `take` all records of the logs, each with the expiry that is meant. Writes lines on
// standard error about what could not be read. Returns the exit code: not 0 if there is no such
// expiry, or if a log could not be read.
int read_chosen_expiry(const ExpiryChoice& choice,
                       const std::function<void(const ExpiryKey&, const Record&)>& take);

}  // namespace filetimer::cli
