// SPDX-License-Identifier: MIT
#include "timer_client/client/job_environment.hpp"

#include <cstdlib>
#include <span>

#include "common/job_variables.hpp"

namespace filetimer {
namespace {

std::string first_value(std::span<const char* const> names) {
  for (const char* const name : names) {
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0') {
      return value;
    }
  }
  return {};
}

}  // namespace

JobEnvironment job_environment() {
  return {first_value(kRankVariables), first_value(kLocalRankVariables),
          first_value(kJobVariables)};
}

}  // namespace filetimer
