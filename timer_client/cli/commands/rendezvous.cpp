// `timer_client rendezvous`: waits until all ranks of a job are there.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <memory>

#include "common/text.hpp"
#include "timer_client/cli/commands/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"

namespace filetimer::cli {
namespace {

struct RendezvousArguments {
  AskOptions ask;
  RendezvousOptions meeting;
  std::optional<Duration> timeout;
  std::optional<Duration> backoff;
};

int meet(const RendezvousArguments& options, const MeetingPlace& place, Duration rpc_timeout) {
  RendezvousOptions meeting = options.meeting;
  meeting.timeout = *options.timeout;
  meeting.backoff = options.backoff.value_or(meeting.backoff);
  Asker::check(meeting);
  const RendezvousResult met = Asker(place, rpc_timeout).rendezvous(meeting, rpc_timeout);
  Output out;
  out.write(fmt::format("rendezvous '{}', round {}: all {} ranks are there\n",
                        printable(meeting.name), met.round, meeting.world));
  return out.finish();
}

int run_rendezvous(const RendezvousArguments& options) {
  return with_place(options.ask, [&](const MeetingPlace& place, Duration rpc_timeout) {
    const auto told = [](const TimerError& error, int code) {
      complain(error.what());
      return code;
    };
    try {
      return meet(options, place, rpc_timeout);
    } catch (const RendezvousTimeoutError& error) {
      return told(error, kExitTimedOut);
    } catch (const RpcTimeoutError& error) {
      return told(error, kExitTimedOut);
    } catch (const ServerUnavailable& error) {
      return told(error, kExitNoServer);
    } catch (const ServerBusy& error) {
      return told(error, kExitRefused);
    } catch (const InvalidArgument& error) {
      return told(error, kExitUsage);
    } catch (const TimerError& error) {
      return told(error, kExitFailed);
    }
  });
}

}  // namespace

Command add_rendezvous(CLI::App& root) {
  auto options = std::make_shared<RendezvousArguments>();
  CLI::App* app = root.add_subcommand("rendezvous", "Wait until all ranks of a job are there");
  add_number_option(*app, "--rank", options->meeting.rank, "R", "Who joins: 0 to N - 1")
      ->required();
  add_number_option(*app, "--world", options->meeting.world, "N", "How many ranks meet")
      ->required();
  add_duration_option(*app, "--timeout", options->timeout, "For all to come (inf: without end)")
      ->required();
  app->add_option("--name", options->meeting.name, "Ranks of one name meet [default]")
      ->type_name("NAME");
  add_number_option(*app, "--retries", options->meeting.retries, "N",
                    "How often to try again when not all came [0]");
  add_duration_option(*app, "--backoff", options->backoff,
                      "How long to wait before that; doubles each time [1s]");
  add_ask_options(*app, options->ask);
  app->footer(std::string("Example:\n"
                          "  timer_client rendezvous --rank \"$RANK\" --world \"$WORLD_SIZE\" "
                          "--timeout 5m --name epoch\n\n") +
              kAskExits);
  return {app, [options] { return run_rendezvous(*options); }};
}

}  // namespace filetimer::cli
