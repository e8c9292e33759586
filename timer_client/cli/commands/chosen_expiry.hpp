// Reads logs for a command that is about one expiry. Which expiry an id means is known only after
// the last record, so the logs are read twice. Input that can be read only once is kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/result.hpp"
#include "timer_client/cli/log/files.hpp"
#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {

// Means the last verdict, and with it the cause of its incident.
inline constexpr std::string_view kLastExpiry = "last";

// The expiries that logs tell of, in the order in which they were first heard of.
class ExpiryIds {
 public:
  void take(const Record& record);

  // Returns which expiry `wanted` means: an id, the unique beginning of one, or `last`; of this
  // host where one is given. Ids are unique on one host, and likely to be so among many. An error
  // says which there are; `where` names the logs in it.
  [[nodiscard]] Result<ExpiryKey> find(std::string_view wanted,
                                       const std::optional<std::string>& host,
                                       std::string_view where) const;

 private:
  std::vector<ExpiryKey> keys_;
  std::unordered_set<std::string> known_;  // "HOST ID"
  std::optional<std::size_t> last_;        // the last verdict's
};

struct ExpiryChoice {
  std::string id{kLastExpiry};  // see ExpiryIds::find()
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
