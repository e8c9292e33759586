// Sends a control request and waits for its answers, see "Control requests" in docs/protocol.md.
// The functions have no state and start no thread; any thread may call them.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/wire.hpp"
#include "timer_client/client/server/server_location.hpp"

namespace filetimer {

// The limit of one answer. An answer that lists many scopes has some kilobytes.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{4} << 20;

struct Reply {
  enum class Kind {
    // The server's last answer:
    kDone,  // after a shutdown the server has ended, too
    kRefused,
    kTimedOut,
    kInvalid,
    // There is no last answer:
    kNoAnswer,    // the server did not answer in time
    kServerGone,  // the server ended before its last answer
    kNoServer,    // no server runs, or it answers no control requests
    kFailed,      // a system call failed, or the answer cannot be read
  };
  Kind kind = Kind::kFailed;
  std::string answer;  // the last answer, a JSON object; empty from kNoAnswer on
  std::string why;     // one clear line for all kinds but kDone
  Duration waited{};
};

// Called with each answer that is not the last one.
using OnAnswer = std::function<void(std::string_view answer)>;

// Called before each wait, which takes a quarter of a second at most and ends with a signal that
// this thread handles. An exception that it throws withdraws the request and leaves ask().
using WhileWaiting = std::function<void()>;

// Sends the request and waits for the last answer. `patience` bounds the wait for the first answer,
// and again the wait beyond the time that the server grants; kForever: no limit.
Reply ask(const ServerLocation& place, const wire::Question& question, Duration patience,
          const OnAnswer& on_answer = {}, const WhileWaiting& while_waiting = {});

// Waits for `time`, and calls `while_waiting` as ask() does.
void wait_for(Duration time, const WhileWaiting& while_waiting);

}  // namespace filetimer
