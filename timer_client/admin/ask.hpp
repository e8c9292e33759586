// A control request and its answers, see "Control requests" in docs/protocol.md. The pipe for the
// answers is made before the request is written and removed with the first answer: the server has
// it open then, and a client that is killed while it waits leaves nothing behind.
// No thread and no state: any thread may ask.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/wire.hpp"
#include "timer_client/client/server/server_location.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {

// Of one answer. What lists many scopes is some kilobytes.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{4} << 20;

struct Reply {
  enum class Kind {
    kDone,     // and after a shutdown the server has ended, too
    kRefused,  // these four are the server's last answer
    kTimedOut,
    kInvalid,
    kNoAnswer,    // not within the time
    kServerGone,  // while it was waited for
    kNoServer,    // nobody to ask, or one that answers no control requests
    kFailed,      // the system or the answer was not as it must be
  };
  Kind kind = Kind::kFailed;
  std::string answer;  // the last one, a JSON object; empty for the kinds below
  std::string why;     // one clear line for all kinds but kDone
  Duration waited{};
  ServerProcess server = ServerProcess::kAlive;  // as it was found at kNoAnswer
};

// Called with each answer that is not the last one.
using OnAnswer = std::function<void(std::string_view answer)>;

// Called before each wait, which takes a quarter of a second at most and ends with a signal that
// this thread handles. What it throws withdraws the request and comes out of ask().
using WhileWaiting = std::function<void()>;

// Asks, and waits for the last answer. `question.reply` is filled in here. `patience` counts until
// the first answer, and again beyond what the server then grants; kForever: no limit.
Reply ask(const ServerLocation& place, wire::Question question, Duration patience,
          const OnAnswer& on_answer = {}, const WhileWaiting& while_waiting = {});

// Waits for `time`, likewise.
void wait_for(Duration time, const WhileWaiting& while_waiting);

}  // namespace filetimer
