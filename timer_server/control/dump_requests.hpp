// The control request `dump`: what workers do now.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "common/result.hpp"
#include "timer_server/control/control_clients.hpp"
#include "timer_server/core.hpp"

namespace filetimer {

// Collects the evidence of workers for clients that ask for it. The only signal that a worker gets
// is that on which it writes its Python stacks. Nothing is recorded.
//
//   const Status begun = dumps.begin(request);
//   ...
//   dumps.answer_complete();
class DumpRequests {
 public:
  // The most workers in one answer, those in the least common scopes first; the others are counted.
  static constexpr std::size_t kMaxWorkers = 48;
  // How long an answer may take. It then has what was collected.
  static constexpr Duration kLimit = std::chrono::seconds{30};
  // The most open scopes that are listed of each worker: those that were opened last.
  static constexpr std::size_t kMaxScopes = 32;

  DumpRequests(ControlClients& clients, Core& core) : clients_(clients), core_(core) {}

  // Begins a request for the workers of a rank, for one with a pid, or for all. It is answered when
  // the granted time is over at the latest. Fails if there is no such worker; the error names the
  // ranks or pids that there are.
  Status begin(const AcceptedRequest& accepted);
  // Forgets a request whose client has gone.
  void withdraw(ControlClients::Id client);
  // Answers the clients of the requests that are complete, after the evidence desk has delivered.
  void answer_complete();

 private:
  struct Asked {
    WorkerIdentity worker;
    std::vector<SlotReading> scopes;
    EvidenceOrder order;  // null: delivered
    Evidence evidence;
  };
  struct Request {
    ControlClients::Id client = 0;
    std::list<Asked> workers;
    std::size_t omitted = 0;
  };

  static std::string answer_of(const Request& request);

  ControlClients& clients_;
  Core& core_;
  std::list<Request> requests_;
};

}  // namespace filetimer
