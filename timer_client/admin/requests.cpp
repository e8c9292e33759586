// SPDX-License-Identifier: MIT
#include "timer_client/admin/requests.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>

#include "common/duration_text.hpp"

namespace filetimer {

Result<Duration> rpc_timeout_of_environment() {
  const char* const set = std::getenv(kRpcTimeoutVariable);
  if (set == nullptr || *set == '\0') {
    return kDefaultRpcTimeout;
  }
  auto timeout = parse_duration(set, EndlessDuration::kAllowed);
  if (!timeout) {
    return failure(fmt::format("${}: {}", kRpcTimeoutVariable, timeout.error().message));
  }
  return *timeout;
}

double wait_seconds(Duration wait) {
  return wait == kForever ? std::numeric_limits<double>::infinity()
                          : std::chrono::duration<double>(wait).count();
}

wire::Question question_of(std::string_view request, Duration wait) {
  wire::Question question;
  question.request = request;
  question.wait_s = wait_seconds(wait);
  return question;
}

wire::Question question_of(ShutdownMode mode, Duration wait) {
  wire::Question question = question_of("shutdown", wait);
  for (const ShutdownWords& each : kShutdownModes) {
    if (each.mode == mode) {
      question.graceful = each.graceful;
      question.force = each.force;
    }
  }
  return question;
}

wire::Question question_of(const RendezvousOptions& options) {
  wire::Question question = question_of("rendezvous", options.timeout.value());
  question.name = options.name;
  question.rank = options.rank;
  question.world = options.world;
  return question;
}

}  // namespace filetimer
