// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/ask.hpp"

#include <fmt/format.h>

#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/list_view.hpp"
#include "timer_client/cli/commands/servers_below.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/table.hpp"
#include "timer_client/src/pipe/pipe_line.hpp"

namespace filetimer::cli {
namespace {

int exit_code_of(Reply::Kind kind) {
  using Kind = Reply::Kind;
  switch (kind) {
    case Kind::kDone:
      return kExitDone;
    case Kind::kRefused:
      return kExitRefused;
    case Kind::kTimedOut:
    case Kind::kNoAnswer:
      return kExitTimedOut;
    case Kind::kInvalid:
      return kExitUsage;
    case Kind::kServerGone:
    case Kind::kNoServer:
      return kExitNoServer;
    default:
      return kExitFailed;
  }
}

std::string rank_text(std::optional<int> rank) {
  return rank ? fmt::format("{}", *rank) : std::string();
}

std::string tables_of(const Obstacles& obstacles, bool colour) {
  std::string text;
  if (!obstacles.scopes.empty()) {
    Table table({{.title = "RANK", .align = Align::kRight},
                 {.title = "PID", .align = Align::kRight},
                 {.title = "SCOPE", .free_text = true},
                 {.title = "ELAPSED", .align = Align::kRight},
                 {.title = "REMAINING", .align = Align::kRight}},
                colour);
    for (const OpenScope& scope : obstacles.scopes) {
      table.add({{rank_text(scope.rank)},
                 {fmt::format("{}", scope.pid)},
                 {scope.scope},
                 {short_duration(scope.elapsed)},
                 {short_duration(scope.remaining.value_or(kForever))}});
    }
    text += table.text();
  }
  const std::size_t listed = obstacles.scopes.size();
  if (obstacles.open_scope_count > listed && listed > 0) {
    text += fmt::format("and {} more scopes\n", obstacles.open_scope_count - listed);
  }
  if (!obstacles.workers.empty()) {
    Table table({{.title = "RANK", .align = Align::kRight},
                 {.title = "PID", .align = Align::kRight},
                 {.title = "WORKER", .free_text = true}},
                colour);
    for (const auto& worker : obstacles.workers) {
      table.add({{rank_text(worker.rank)}, {fmt::format("{}", worker.pid)}, {worker.comm}});
    }
    text += (text.empty() ? "" : "\n") + table.text();
  }
  return text;
}

}  // namespace

void add_ask_options(CLI::App& app, AskOptions& options) {
  add_place_options(app, options.place);
  add_duration_option(app, "--rpc-timeout", options.rpc_timeout,
                      "How long to wait for an answer, inf: without end\n"
                      "[$FILETIMER_RPC_TIMEOUT, else 60s]");
}

int with_place(const AskOptions& options,
               const std::function<int(const MeetingPlace&, Duration)>& run) {
  const auto place = find_meeting_place(options.place.dir, options.place.fifo);
  if (!place) {
    complain(place.error().message);
    return kExitUsage;
  }
  const auto timeout =
      options.rpc_timeout ? Result<Duration>(*options.rpc_timeout) : rpc_timeout_of_environment();
  if (!timeout) {
    complain(timeout.error().message);
    return kExitUsage;
  }
  int why_not = 0;
  if (place->run_folder.empty() && has_reader(place->pipe, why_not)) {
    complain(
        fmt::format("the run folder of '{}' is not known, and answers come through it: expected "
                    "--dir DIR",
                    place->pipe));
    return kExitUsage;
  }
  if (place->run_folder.empty()) {
    complain(fmt::format("no timer server at '{}': {}", place->pipe, why_no_reader(why_not)));
    return kExitNoServer;
  }
  return run(*place, *timeout);
}

int ask_and_tell(const AskOptions& options, wire::Question question,
                 const std::function<int(const Reply&)>& use, const OnAnswer& on_answer) {
  return with_place(options, [&](const MeetingPlace& place, Duration timeout) {
    if (question.wait_s == 0) {
      question.wait_s = wait_seconds(timeout);
    }
    const Reply reply = ask(place, question, timeout, on_answer);
    if (reply.kind == Reply::Kind::kDone) {
      return use(reply);
    }
    complain(reply.kind == Reply::Kind::kNoServer ? reply.why + servers_below(place.run_folder)
                                                  : reply.why);
    Output out;
    out.write(tables_of(obstacles_in(reply.answer), wants_colour(out.fd())));
    out.finish();
    return exit_code_of(reply.kind);
  });
}

}  // namespace filetimer::cli
