// Sends a control request and waits for its answers, see "Control requests" in docs/protocol.md;
// and what answers say. The functions have no state and start no thread; any thread may call them.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <filetimer/admin.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.hpp"
#include "common/json_fields.hpp"
#include "common/wire.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {

// The limit of one answer. An answer that lists many scopes has some kilobytes.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{4} << 20;

// The last answer to a request.
struct Answer {
  std::string text;                               // the whole answer, without its newline
  std::shared_ptr<simdjson::dom::parser> parser;  // has what `fields` views
  simdjson::dom::object fields;
  Duration waited{};
};

// Where a request goes, and how its answers are waited for.
struct Asking {
  ServerLocation place;
  // Bounds the wait for the first answer, and again the wait beyond the time that the server
  // grants; kForever: no limit. Also the wait of a request that has none.
  Duration patience{};
  // Called with each answer that is not the last one.
  std::function<void(simdjson::dom::object answer)> on_answer{};
  std::function<void()> while_waiting{};  // see AdminOptions
};

// Sends the request and returns the last answer, which is "done"; after a shutdown waits for the
// end of the server, too. Throws the errors of admin.hpp for any other last answer, if there is
// none, and if the request is too long.
Answer ask(const wire::Question& question, const Asking& how);

// A mode of shutdown as users write it in the shell, and its keys in the request.
struct ShutdownWords {
  ShutdownMode mode;
  std::string_view word;
  std::string_view graceful;
  bool force;
};
inline constexpr std::array<ShutdownWords, 6> kShutdownModes{{
    {ShutdownMode::kGraceful, "graceful", "scopes", false},
    {ShutdownMode::kGracefulOrNow, "graceful_or_now", "scopes", true},
    {ShutdownMode::kWorkers, "workers", "workers", false},
    {ShutdownMode::kWorkersOrNow, "workers_or_now", "workers", true},
    {ShutdownMode::kIfIdle, "if_idle", "", false},
    {ShutdownMode::kNow, "now", "", true},
}};

// Returns the open scopes, else the workers, that an answer says the server waits for: "'step' of
// pid 12 (rank 3), 'save' of pid 13 and 4 more"; empty: it names none, or has no such key.
std::string waited_for(simdjson::dom::object answer);

}  // namespace filetimer
