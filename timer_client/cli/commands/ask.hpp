// What the subcommands that ask the server share: where it is, how long they wait, and what they
// say when it did not do what was asked for.
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <optional>
#include <string>

#include "timer_client/cli/commands/options.hpp"
#include "timer_client/src/questions/asker.hpp"

namespace filetimer::cli {

inline constexpr const char* kAskExits =
    "Exit codes: 0 done, 1 failed, 2 usage, 4 no server, 5 timed out, 6 refused.";

struct AskOptions {
  Place place;
  std::optional<Duration> rpc_timeout;
};
void add_ask_options(CLI::App& app, AskOptions& options);

// Calls `run` with the server's place and the RPC timeout; complains where there is none, and gives
// the exit code for that.
int with_place(const AskOptions& options,
               const std::function<int(const MeetingPlace&, Duration)>& run);

// Asks, and tells why when the answer is not `done`, with what is open. The exit code; `use` gets
// the reply that is done, and makes it.
int ask_and_tell(const AskOptions& options, wire::Question question,
                 const std::function<int(const Reply&)>& use, const OnAnswer& on_answer = {});

}  // namespace filetimer::cli
