// Reads logs for a command that is about one expiry. Which expiry an id means is known only after
// the last record, so the logs are read twice. Input that can be read only once is kept.
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

// Calls `take` with all records of the logs, each with the chosen expiry. Writes a line on standard
// error for each log that could not be read. Returns the exit code: not 0 if the expiry does not
// exist, or if a log could not be read.
int read_chosen_expiry(const ExpiryChoice& choice,
                       const std::function<void(const ExpiryKey&, const Record&)>& take);

}  // namespace filetimer::cli
