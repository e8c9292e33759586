// The subcommands that send a control request and print its answer: ping, status, dump, drain,
// shutdown and rendezvous.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/json_writer.hpp"
#include "common/text.hpp"
#include "timer_client/admin/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/options.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/table.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer::cli {
namespace {

// --- sending a request ---

struct AskOptions {
  Place place;
  bool changes_server = false;  // then it must be the default server, or be named
  std::optional<Duration> rpc_timeout;
};

// Adds the options of a subcommand that sends a request, and ends its help with `footer` and the
// exit codes.
void finish_help(CLI::App& app, AskOptions& options, const std::string& footer) {
  add_place_options(app, options.place);
  add_duration_option(app, "--rpc-timeout", options.rpc_timeout,
                      "How long to wait for an answer; inf: no limit\n"
                      "[$FILETIMER_RPC_TIMEOUT, else 60s]");
  app.footer(footer +
             "\n\nExit codes: 0 done, 1 failed, 2 usage, 4 no server, 5 timed out, 6 refused.");
}

int failed(std::string_view why, int code) {
  complain(why);
  return code;
}

// Returns tables of the scopes and workers that a refusal lists.
std::string tables_of(const Obstacles& obstacles, Screen screen) {
  std::string text;
  if (!obstacles.scopes.empty()) {
    Table table({{.title = "RANK", .align = Align::kRight},
                 {.title = "PID", .align = Align::kRight},
                 {.title = "SCOPE", .is_text = true},
                 {.title = "ELAPSED", .align = Align::kRight},
                 {.title = "REMAINING", .align = Align::kRight}},
                screen);
    for (const OpenScope& scope : obstacles.scopes) {
      table.add({{number_text(scope.rank)},
                 {number_text(scope.pid)},
                 {scope.scope},
                 {duration_for_reading(scope.elapsed)},
                 {duration_for_reading(scope.remaining.value_or(kForever))}});
    }
    text += table.text();
  }
  const std::size_t shown = obstacles.scopes.size();
  if (obstacles.open_scope_count > shown && shown > 0) {
    text += fmt::format("and {}\n", counted(obstacles.open_scope_count - shown, "more scope"));
  }
  if (!obstacles.workers.empty()) {
    Table table({{.title = "RANK", .align = Align::kRight},
                 {.title = "PID", .align = Align::kRight},
                 {.title = "WORKER", .is_text = true}},
                screen);
    for (const auto& worker : obstacles.workers) {
      table.add({{number_text(worker.rank)}, {number_text(worker.pid)}, {worker.comm}});
    }
    text += (text.empty() ? "" : "\n") + table.text();
  }
  return text;
}

// Calls `run` with the place of the server and the timeout. Writes the error that it throws, or why
// one of them is not known.
int with_place(const AskOptions& options,
               const std::function<int(const ServerLocation&, Duration)>& run) {
  const ServerLocation place =
      locate_server(options.changes_server ? options.place.dir : dir_of_server(options.place),
                    options.place.fifo);
  const auto timeout =
      options.rpc_timeout ? Result<Duration>(*options.rpc_timeout) : rpc_timeout_of_environment();
  if (!timeout) {
    return failed(timeout.error().message, kExitUsage);
  }
  if (place.run_folder.empty()) {
    const std::string why = why_no_reader(place.pipe);
    return why.empty()
               ? failed(fmt::format("the runtime directory of '{}' is not known, and answers come "
                                    "through it: expected --dir DIR",
                                    place.pipe),
                        kExitUsage)
               : failed(fmt::format("no timer server at '{}': {}", place.pipe, why), kExitNoServer);
  }
  try {
    return run(place, *timeout);
  } catch (const RendezvousTimeoutError& error) {
    return failed(error.what(), kExitTimedOut);
  } catch (const RpcTimeoutError& error) {
    return failed(error.what(), kExitTimedOut);
  } catch (const ServerUnavailable& error) {
    return failed(error.what() + servers_below(place.run_folder), kExitNoServer);
  } catch (const ServerBusy& error) {
    return failed(error.what(), kExitRefused);
  } catch (const InvalidArgument& error) {
    return failed(error.what(), kExitUsage);
  } catch (const TimerError& error) {
    return failed(error.what(), kExitFailed);
  }
}

// Sends the request and returns the exit code of `use`, which gets the answer if it is "done". For
// another one writes its reason and a table of what is open, and returns the exit code for it.
int send_and_print(const AskOptions& options, const wire::Question& question,
                   const std::function<int(const Answer&)>& use, const OnAnswer& on_answer = {}) {
  return with_place(options, [&](const ServerLocation& place, Duration timeout) {
    const Answer answer =
        ask(question, {.place = place, .patience = timeout, .on_answer = on_answer});
    if (answer.kind == "done") {
      return use(answer);
    }
    complain(answer.reason);
    Output out;
    out.write(tables_of(obstacles_in(answer.fields), screen_of(out.fd())));
    out.finish();
    return answer.kind == "refused"     ? kExitRefused
           : answer.kind == "timed_out" ? kExitTimedOut
                                        : kExitUsage;
  });
}

int print(std::string_view text) {
  Output out;
  out.write(text);
  return out.finish();
}

// --- ping and status ---

struct ShowAnswer {
  AskOptions ask;
  bool all = false;
  bool json = false;
};

int show_ping(const Answer& answer, bool json) {
  const double waited_ms = in_milliseconds(answer.waited);
  const pid_t pid = pid_at(answer.fields, "server_pid");
  if (!json) {
    return print(fmt::format("pid {} answered in {:.2f} ms\n", pid, waited_ms));
  }
  JsonWriter line;
  line.field("server_pid", pid);
  line.field("server_version", text_at(answer.fields, "server_version"));
  line.fixed("answered_ms", waited_ms, 3);
  return print(std::move(line).finish() + "\n");
}

// Returns the lines that most questions are about. `status --all` has the rest.
std::string summary_of(simdjson::dom::object answer) {
  const auto count = [&](std::string_view key, std::string_view what) {
    return fmt::format("{} {}", count_at(answer, key), what);
  };
  const auto several = [&](std::string_view key, std::string_view what) {
    return counted(count_at(answer, key), what);
  };
  const auto if_any = [&](std::string_view key, std::string_view what) {
    return count_at(answer, key) > 0 ? count(key, what) : std::string();
  };
  std::vector<std::string> powers;
  simdjson::dom::object may;
  if (answer.at_key("may").get_object().get(may) == simdjson::SUCCESS) {
    for (const auto& [power, value] : may) {
      bool has = false;
      powers.push_back((value.get_bool().get(has) == simdjson::SUCCESS && has ? "" : "no ") +
                       with_spaces(power));
    }
  }
  const std::string word = text_at(answer, "announcement");
  Page page;
  page.field("server",
             fmt::format("pid {}, version {}, up {}", count_at(answer, "server_pid"),
                         text_at(answer, "server_version"),
                         seconds_text(number_at(answer, "uptime_s").value_or(0))),
             0);
  page.field("directory", text_at(answer, "dir"), 0);
  page.field("log", text_at(answer, "log"), 0);
  page.field("state",
             word == "none" ? "new scopes are watched" : word + ": no new scopes are watched", 0);
  page.field("watched", several("workers", "worker") + ", " + several("open_scopes", "open scope"),
             0);
  page.field(
      "expired",
      joined({count("expired", "expired"), count("killed", "killed"),
              if_any("kills_under_way", "kills under way"), if_any("unkillable", "unkillable")}),
      0);
  page.field("requests", joined({count("requests", "read"), if_any("rejected", "rejected")}), 0);
  page.field("may", joined(powers), 0);
  page.field("lost", if_any("lost_records", "records"), 0);
  page.field("log trouble", text_at(answer, "log_trouble"), 0);
  page.field("pipe trouble", text_at(answer, "pipe_trouble"), 0);
  return std::move(page).text();
}

// --- dump ---

struct DumpOptions {
  AskOptions ask;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> pid;
  bool all = false;
  bool json = false;
};

// Returns the number, at most the largest int: no larger number is a rank or a pid.
std::optional<int> as_int(std::optional<std::int64_t> number) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  return number ? std::optional(static_cast<int>(std::min(*number, kMost))) : std::nullopt;
}

int run_dump(const DumpOptions& options) {
  if ((options.rank ? 1 : 0) + (options.pid ? 1 : 0) + (options.all ? 1 : 0) != 1) {
    return failed("dump: expected one of --rank RANK, --pid PID and --all", kExitUsage);
  }
  const wire::Question request{
      .request = "dump", .rank = as_int(options.rank), .worker = as_int(options.pid)};
  return send_and_print(options.ask, request, [&](const Answer& answer) {
    Output out;
    out.write(options.json ? answer.text + "\n" : dump_page(answer.text, wants_colour(out.fd())));
    return out.finish();
  });
}

// --- drain and shutdown ---

struct DrainOptions {
  AskOptions ask;
  bool off = false;
};

int show_drain(const Answer& answer) {
  const std::int64_t open = count_at(answer.fields, "open_scope_count");
  return print(
      is_draining(answer.fields)
          ? fmt::format("draining: {} open, new scopes are not watched\n",
                        open == 1 ? std::string("1 scope is") : fmt::format("{} scopes are", open))
          : "not draining: new scopes are watched\n");
}

// This is also the default of AdminClient::shutdown().
constexpr Duration kDefaultShutdownTimeout = std::chrono::seconds{30};

struct ShutdownArguments {
  AskOptions ask;
  ShutdownMode mode = ShutdownMode::kGraceful;
  std::optional<Duration> timeout;
};

// Returns the scopes or workers that the server waits for; empty: the answer names none.
std::string waited_for(simdjson::dom::object answer) {
  const Obstacles obstacles = obstacles_in(answer);
  std::vector<std::string> workers;
  for (const auto& worker : obstacles.workers) {
    workers.push_back(fmt::format("{} (pid {})", worker.comm, worker.pid));
  }
  const std::string scopes = open_scopes_text(obstacles);
  return scopes.empty() ? joined(workers) : scopes;
}

int run_shutdown(const ShutdownArguments& options) {
  std::string last;
  return send_and_print(
      options.ask,
      shutdown_question(options.mode, options.timeout.value_or(kDefaultShutdownTimeout)),
      [](const Answer& answer) {
        if (const std::int64_t open = count_at(answer.fields, "open_scope_count"); open > 0) {
          complain(fmt::format("{} left open", open == 1 ? std::string("1 scope was")
                                                         : fmt::format("{} scopes were", open)));
        }
        return kExitDone;
      },
      [&](simdjson::dom::object answer) {
        if (std::string now = waited_for(answer); !now.empty() && now != last) {
          complain("waiting for " + now);
          last = std::move(now);
        }
      });
}

// --- rendezvous ---

struct RendezvousArguments {
  AskOptions ask;
  RendezvousOptions meeting;
  std::optional<Duration> timeout;
  std::optional<Duration> backoff;
};

int run_rendezvous(const RendezvousArguments& options) {
  return with_place(options.ask, [&](const ServerLocation& place, Duration rpc_timeout) {
    RendezvousOptions meeting = options.meeting;
    meeting.timeout = *options.timeout;
    meeting.backoff = options.backoff ? Timeout(*options.backoff) : meeting.backoff;
    const RendezvousResult met =
        AdminClient({.dir = place.run_folder, .rpc_timeout = rpc_timeout}).rendezvous(meeting);
    return print(fmt::format("rendezvous '{}', round {}: all {} ranks have joined\n",
                             printable(meeting.name), met.round, meeting.world));
  });
}

}  // namespace

Command add_ping(CLI::App& root) {
  auto options = std::make_shared<ShowAnswer>();
  CLI::App* app = root.add_subcommand("ping", "Whether the server answers, and how fast");
  app->add_flag("--json", options->json, "A JSON object");
  finish_help(*app, options->ask,
              "Example:\n"
              "  timer_client ping --rpc-timeout 2s || echo 'no server'");
  return {app, [options] {
            return send_and_print(options->ask, {.request = "ping"}, [&](const Answer& answer) {
              return show_ping(answer, options->json);
            });
          }};
}

Command add_status(CLI::App& root) {
  auto options = std::make_shared<ShowAnswer>();
  CLI::App* app = root.add_subcommand("status", "The state of the server, and what it may do");
  app->add_flag("--all", options->all, "Everything that the server says, its settings, too");
  app->add_flag("--json", options->json, "The server's answer, a JSON object");
  finish_help(*app, options->ask,
              "Examples:\n"
              "  timer_client status\n"
              "  timer_client status --json | jq .may");
  return {app, [options] {
            return send_and_print(options->ask, {.request = "status"}, [&](const Answer& answer) {
              return print(options->json  ? answer.text + "\n"
                           : options->all ? status_page(answer.text)
                                          : summary_of(answer.fields));
            });
          }};
}

Command add_dump(CLI::App& root) {
  auto options = std::make_shared<DumpOptions>();
  CLI::App* app = root.add_subcommand("dump", "The scopes and stacks of workers now");
  add_number_option(*app, "--rank", options->rank, "RANK", "The workers of this rank");
  add_number_option(*app, "--pid", options->pid, "PID", "This worker");
  app->add_flag("--all", options->all, "All workers of the host");
  app->add_flag("--json", options->json, "The server's answer, a JSON object");
  finish_help(*app, options->ask,
              "Examples:\n"
              "  timer_client dump --all\n"
              "  timer_client dump --rank 3 --json | jq '.workers[].python_threads'\n\n"
              "It shows what the evidence before a kill has: scopes, kernel, native and Python\n"
              "stacks. No worker is killed, and the only signal is that on which a worker writes\n"
              "its Python stacks. Workers in the same place are one group, the smallest first.");
  return {app, [options] { return run_dump(*options); }};
}

Command add_drain(CLI::App& root) {
  auto options = std::make_shared<DrainOptions>();
  options->ask.changes_server = true;
  CLI::App* app = root.add_subcommand("drain", "Watch no new scopes; open ones stay watched");
  app->add_flag("--off", options->off, "Watch new scopes again");
  finish_help(*app, options->ask,
              "Examples:\n"
              "  timer_client drain\n"
              "  timer_client drain --off");
  return {app, [options] {
            return send_and_print(options->ask, {.request = "drain", .off = options->off},
                                  show_drain);
          }};
}

Command add_shutdown(CLI::App& root) {
  auto options = std::make_shared<ShutdownArguments>();
  options->ask.changes_server = true;
  CLI::App* app = root.add_subcommand("shutdown", "End the server once open scopes have ended");
  app->add_option_function<std::string>(
         "--mode",
         [options = options.get()](const std::string& word) {
           const auto* const found = std::ranges::find(kShutdownModes, word, &ShutdownWords::word);
           if (found == kShutdownModes.end()) {
             throw CLI::ValidationError(
                 "--mode", fmt::format("'{}': expected graceful, graceful_or_now, workers, "
                                       "workers_or_now, if_idle or now",
                                       word));
           }
           options->mode = found->mode;
         },
         "What it waits for [graceful]\n"
         "graceful: open scopes; workers: the workers, too\n"
         "graceful_or_now, workers_or_now: likewise, and then\n"
         "it ends whatever is open\n"
         "if_idle: it is refused while a scope is open\n"
         "now: nothing")
      ->type_name("MODE");
  add_duration_option(*app, "--timeout", options->timeout, "How long to wait [30s]");
  finish_help(
      *app, options->ask,
      "Examples:\n"
      "  timer_client shutdown --timeout 10m\n"
      "  timer_client shutdown --mode workers_or_now --timeout 1h\n\n"
      "No worker is killed for it: scopes that stay open are watched no longer. But a\n"
      "server with a COMMAND ends by ending it: SIGTERM, and if the mode ends in `now`\n"
      "SIGKILL to all that it started. A shutdown that waits continues when this command is\n"
      "interrupted; `timer_client drain --off` withdraws it.");
  return {app, [options] { return run_shutdown(*options); }};
}

Command add_rendezvous(CLI::App& root) {
  auto options = std::make_shared<RendezvousArguments>();
  options->ask.changes_server = true;
  CLI::App* app = root.add_subcommand("rendezvous", "Wait until all ranks of a job have joined");
  add_number_option(*app, "--rank", options->meeting.rank, "R", "The rank that joins: 0 to N - 1")
      ->required();
  add_number_option(*app, "--world", options->meeting.world, "N", "The number of ranks")
      ->required();
  add_duration_option(*app, "--timeout", options->timeout,
                      "How long to wait for all ranks (inf: no limit)")
      ->required();
  app->add_option("--name", options->meeting.name, "The name of the rendezvous [default]")
      ->type_name("NAME");
  add_number_option(*app, "--retries", options->meeting.retries, "N",
                    "How often to try again when a rank is missing [0]");
  add_duration_option(*app, "--backoff", options->backoff,
                      "How long to wait before that; doubles each time [1s]");
  finish_help(*app, options->ask,
              "Example:\n"
              "  timer_client rendezvous --rank \"$RANK\" --world \"$WORLD_SIZE\" --timeout 5m "
              "--name epoch");
  return {app, [options] { return run_rendezvous(*options); }};
}

}  // namespace filetimer::cli
