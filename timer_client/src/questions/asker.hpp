// A client's questions: which timeout holds, what goes on the line, and what the answers mean as
// results and errors of the public header. Has no state but its own fields; copied into the threads
// that ask asynchronously. Every member throws what the public header says.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/errors.hpp>
#include <filetimer/questions.hpp>
#include <string>

#include "timer_client/src/questions/question.hpp"
#include "timer_client/src/server/meeting_place.hpp"

namespace filetimer {

inline constexpr const char* kRpcTimeoutVariable = "FILETIMER_RPC_TIMEOUT";
inline constexpr Duration kDefaultRpcTimeout = std::chrono::seconds{60};

// $FILETIMER_RPC_TIMEOUT, else kDefaultRpcTimeout. An error quotes the variable.
Result<Duration> rpc_timeout_of_environment();

class Asker {
 public:
  // Throws InvalidArgument.
  Asker(MeetingPlace place, RpcTimeout rpc_timeout);

  // What counts for a call of this thread. Throws InvalidArgument.
  [[nodiscard]] Duration timeout_for(RpcTimeout of_call) const;

  // `timeout` is from timeout_for().
  void ping(Duration timeout) const;
  [[nodiscard]] ServerStatus status(Duration timeout) const;
  [[nodiscard]] DrainResult drain(bool on, Duration timeout) const;
  [[nodiscard]] ShutdownResult shutdown(const ShutdownOptions& options, Duration timeout) const;
  [[nodiscard]] RendezvousResult rendezvous(const RendezvousOptions& options,
                                            Duration timeout) const;
  // Throw InvalidArgument before anything is asked.
  static void check(const ShutdownOptions& options);
  static void check(const RendezvousOptions& options);

  [[nodiscard]] const MeetingPlace& place() const { return place_; }

 private:
  [[nodiscard]] Reply ask_whole(const wire::Question& question, Duration timeout) const;
  [[nodiscard]] RendezvousResult meet_once(const RendezvousOptions& options,
                                           Duration timeout) const;

  MeetingPlace place_;
  Duration rpc_timeout_;
};

// The scopes that a "refused" or "timed_out" answer lists; the CLI shows them, too.
struct Obstacles {
  std::size_t open_scope_count = 0;
  std::vector<OpenScope> scopes;
  struct Worker {
    pid_t pid = 0;
    std::string comm;
    std::optional<int> rank;
  };
  std::vector<Worker> workers;
};
Obstacles obstacles_in(std::string_view answer);
// "'step' of pid 12 (rank 3), 'save' of pid 13 and 4 more"; empty when none is listed.
std::string open_scopes_text(const Obstacles& obstacles);

RendezvousResult rendezvous_in(const std::string& answer);
DrainResult drain_in(const std::string& answer);
// What a rendezvous that timed out says; `what` as RendezvousTimeoutError has it.
RendezvousTimeoutError rendezvous_timeout_in(const Reply& reply, const std::string& name);

// As the wire has it.
double wait_seconds(Duration wait);
wire::Question question_of(const ShutdownOptions& options);
wire::Question question_of(const RendezvousOptions& options);

}  // namespace filetimer
