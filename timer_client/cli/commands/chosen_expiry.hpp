// Reads logs for a command that is about one expiry. Which expiry an id means is known only after
// the last record, so the logs are read twice. Input that can be read only once is kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/result.hpp"
#include "timer_client/cli/commands/options.hpp"
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
  std::vector<std::size_t> expired_;       // the places of verdicts in keys_
};

// The options of a command that is about one expiry.
struct ExpiryOptions {
  std::vector<std::string> words;  // see chosen_expiry()
  std::optional<std::string> host;
  Place place;
};
void add_expiry_options(CLI::App& app, ExpiryOptions& options);

struct ChosenExpiry {
  ExpiryKey key;
  std::optional<IncidentRecords> records;  // empty: the expiry does not exist
  int code = 0;                            // the exit code, not 0 if a log could not be read either
};

// Reads the logs that the words name. The first word is an id unless it is a path or the name of a
// file or folder. Returns the expiry of that id or, for `last`, or if the command is about the
// cause whichever expiry is named, that of the cause of its incident. Writes a line on standard
// error for all that could not be read.
ChosenExpiry chosen_expiry(const ExpiryOptions& options, bool wants_cause);

}  // namespace filetimer::cli
