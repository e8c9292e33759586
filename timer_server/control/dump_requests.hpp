// The control request `dump`: what workers do now.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/control/control_clients.hpp"
#include "timer_server/core.hpp"
#include "timer_server/evidence/group_collection.hpp"

namespace filetimer {

// Collects the evidence of workers for clients that ask for it. The only signal that a worker gets
// is that on which it writes its Python stacks. Nothing is recorded.
//
//   const Status begun = dumps.begin(client, {.rank = 3}, until, now);
//   ...
//   next = dumps.advance(now, clients);
class DumpRequests {
 public:
  // The most workers in one answer, those in the least common scopes first; the others are counted.
  static constexpr std::size_t kMaxWorkers = 48;
  // How long an answer may take. It then has what was collected.
  static constexpr Duration kLimit = std::chrono::seconds{30};
  // The most open scopes that are listed of each worker: those that were opened last.
  static constexpr std::size_t kMaxScopes = 32;

  // Which workers a request means; without either: all.
  struct Wanted {
    std::optional<int> rank;
    std::optional<pid_t> pid;  // as the server sees it
  };

  explicit DumpRequests(Core& core) : core_(core) {}

  // Begins a request, which is answered by `until` at the latest. Fails if there is no such worker;
  // the error names the ranks or pids that there are.
  Status begin(ControlClients::Id client, const Wanted& wanted, Instant until, Instant now);
  // Forgets a request whose client has gone.
  void withdraw(ControlClients::Id client);
  // Takes the requests as far as they can go, and answers the clients of those that are complete.
  // Returns when it must be called again, or never(); it must also be called when the side threads
  // have delivered.
  Instant advance(Instant now, ControlClients& clients);

 private:
  struct Request {
    ControlClients::Id client = 0;
    GroupCollection workers;
    std::vector<std::vector<ScopeView>> scopes;  // of each worker
    std::size_t omitted = 0;
  };

  static std::string answer_of(const Request& request);

  Core& core_;
  std::list<Request> requests_;
  const CollectionSlots slots_{};
};

}  // namespace filetimer
