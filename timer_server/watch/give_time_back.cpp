// SPDX-License-Identifier: MIT
#include "timer_server/watch/give_time_back.hpp"

#include <fmt/format.h>

#include <string>

#include "common/duration_text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {

std::size_t give_time_back(const MissedTime::Missed& missed, Instant until,
                           const GivingContext& context) {
  std::size_t scopes = 0;
  context.workers.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      scopes += page->count_given_time(context.policy.scan_of(worker, until), until);
    }
  });
  context.given.add(until, missed.total());
  const std::string reason =
      missed.suspended > missed.late
          ? fmt::format("the machine was suspended for {}", duration_for_reading(missed.suspended))
          : fmt::format("the server woke {} later than planned", duration_for_reading(missed.late));
  if (scopes > 0) {
    context.log.append(context.records.deferred_all(missed.total(), scopes, reason));
  }
  messages::warning("{}: {} open scope{} given that time", reason, scopes,
                    scopes == 1 ? " is" : "s are");
  return scopes;
}

}  // namespace filetimer
