// Gives missed time back to open scopes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/given_time.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/system/missed_time.hpp"
#include "timer_server/watch/scope_policy.hpp"

namespace filetimer {

struct GivingContext {
  Workers& workers;
  const ScopePolicy& policy;  // has the deadlines of `given`
  GivenTime& given;
  const Records& records;
  RecordLog& log;
};

// Gives the open scopes the time back in which the server could not run, up to `until`.
// Requests that were written in that time must have been read: their scopes began in it. Records
// how many scopes got time, and why. Returns that number. Called on the loop thread.
std::size_t give_time_back(const MissedTime::Missed& missed, Instant until,
                           const GivingContext& context);

}  // namespace filetimer
