// SPDX-License-Identifier: MIT
#include "timer_client/client/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "common/duration_text.hpp"
#include "timer_client/client/messages.hpp"

namespace filetimer {
namespace {

constexpr const char* kSwitchVariable = "FILETIMER";
constexpr const char* kMissingVariable = "FILETIMER_MISSING";
constexpr const char* kRpcTimeoutVariable = "FILETIMER_RPC_TIMEOUT";

}  // namespace

std::string_view environment_word(const char* name) {
  const char* const word = std::getenv(name);
  return word == nullptr ? "" : word;
}

bool is_switched_off() {
  constexpr std::array<std::string_view, 5> kOn{"", "on", "1", "true", "yes"};
  constexpr std::array<std::string_view, 4> kOff{"off", "0", "false", "no"};
  const std::string_view word = environment_word(kSwitchVariable);
  const bool is_off = std::ranges::find(kOff, word) != kOff.end();
  if (!is_off && std::ranges::find(kOn, word) == kOn.end()) {
    client_messages::notice("${} is '{}': expected on or off; it counts as on", kSwitchVariable,
                            word);
  }
  if (is_off) {
    client_messages::info("${} is {}: no scope is watched", kSwitchVariable, word);
  }
  return is_off;
}

std::optional<ConnectOptions::Missing> missing_by_environment() {
  using Missing = ConnectOptions::Missing;
  const std::string_view word = environment_word(kMissingVariable);
  for (const auto& [known, missing] : {std::pair{"ignore", Missing::kIgnore},
                                       {"wait", Missing::kWait},
                                       {"raise", Missing::kRaise}}) {
    if (word == known) {
      return missing;
    }
  }
  if (!word.empty()) {
    client_messages::notice("${} is '{}': expected ignore, wait or raise; it does not count",
                            kMissingVariable, word);
  }
  return std::nullopt;
}

Result<Duration> rpc_timeout_of_environment() {
  const std::string_view set = environment_word(kRpcTimeoutVariable);
  if (set.empty()) {
    return kDefaultRpcTimeout;
  }
  auto timeout = parse_duration(set, EndlessDuration::kAllowed);
  if (!timeout) {
    return failure(fmt::format("${}: {}", kRpcTimeoutVariable, timeout.error().message));
  }
  return *timeout;
}

}  // namespace filetimer
