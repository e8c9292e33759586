// The expiries that logs tell of, by the ids that users name. `show` and `report` are about one.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/result.hpp"
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

}  // namespace filetimer::cli
