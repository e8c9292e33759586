// The subcommands that send a control request and print its answer: ping, status, dump, drain,
// shutdown and rendezvous.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/admin/ask.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"

namespace filetimer::cli {
namespace {

// --- sending a request ---

// A request, as the options of its subcommand set it.
struct Request {
  wire::Question question;
  std::optional<Duration> wait;  // of the server
  bool changes_server = false;   // then it must be the default server, or be named
  Place place;
  std::optional<Duration> rpc_timeout;
  bool json = false;  // prints the answer as it came
  bool all = false;   // of status
};

// Returns what is printed of an answer.
using TextOf = std::function<std::string(const Answer&, const Request&)>;

// Sends the request. Meanwhile writes for what the server waits, whenever that changes, and how
// long if that is less than what was asked for.
Answer answer_to(const Request& request, const ServerLocation& place, Duration patience) {
  wire::Question question = request.question;
  if (request.wait) {
    question.wait_s = seconds_or_infinity(*request.wait);
  }
  std::string last;
  return ask(question,
             {.place = place, .patience = patience, .on_answer = [&](simdjson::dom::object answer) {
                const auto granted = number_at(answer, "wait_s");
                if (request.wait && granted && duration_from_seconds(*granted) < *request.wait) {
                  complain(fmt::format("the server waits at most {} (its --max-wait)",
                                       duration_text(duration_from_seconds(*granted))));
                }
                if (std::string now = waited_for(answer); !now.empty() && now != last) {
                  complain("waiting for " + now);
                  last = std::move(now);
                }
              }});
}

// Sends the request and prints the answer. Returns the exit code, after a line on standard error if
// there is an error.
int send(const Request& request, const TextOf& text_of) {
  const ServerLocation place =
      locate_server(request.changes_server ? request.place.dir : dir_of_server(request.place),
                    request.place.fifo);
  const auto patience =
      request.rpc_timeout ? Result<Duration>(*request.rpc_timeout) : rpc_timeout_of_environment();
  if (!patience) {
    return failed(patience.error().message, kExitUsage);
  }
  if (place.run_folder.empty() && has_reader(place.pipe)) {
    return failed(fmt::format("the runtime directory of '{}' is not known, and answers come "
                              "through it: expected --dir DIR",
                              place.pipe),
                  kExitUsage);
  }
  try {
    const Answer answer = answer_to(request, place, *patience);
    Output out;
    out.write(request.json ? answer.text + "\n" : text_of(answer, request));
    return out.finish();
  } catch (const RpcTimeoutError& error) {
    return failed(error.what(), kExitTimedOut);
  } catch (const RendezvousTimeoutError& error) {
    return failed(error.what(), kExitTimedOut);
  } catch (const ServerBusy& error) {
    return failed(error.what(), error.timed_out ? kExitTimedOut : kExitRefused);
  } catch (const ServerUnavailable& error) {
    return failed(error.what() + servers_below(place.run_folder), kExitNoServer);
  } catch (const InvalidArgument& error) {
    return failed(error.what(), kExitUsage);
  } catch (const TimerError& error) {
    return failed(error.what(), kExitFailed);
  }
}

// Adds the subcommand that sends the request `name`, with the options that `add_options` adds and
// those of all requests. `footer` has its examples.
Command add_request(CLI::App& root, const std::string& name, const std::string& description,
                    const std::string& footer, const TextOf& text_of,
                    const std::function<void(CLI::App&, Request&)>& add_options) {
  auto request = std::make_shared<Request>();
  request->question.request = name;
  CLI::App* app = root.add_subcommand(name, description);
  add_options(*app, *request);
  app->add_flag("--json", request->json, "The server's answer, a JSON object");
  add_place_options(*app, request->place);
  add_duration_option(*app, "--rpc-timeout", request->rpc_timeout,
                      "How long to wait for an answer, in addition to the --timeout\n"
                      "of shutdown and rendezvous; inf: no limit\n"
                      "[$FILETIMER_RPC_TIMEOUT, else 60s]");
  app->footer(footer +
              "\n\nExit codes: 0 done, 1 failed, 2 usage, 4 no server, 5 timed out, 6 refused.");
  return {app, [request, text_of] { return send(*request, text_of); }};
}

// --- the text of an answer ---

std::string ping_text(const Answer& answer, const Request& /*request*/) {
  return fmt::format("pid {} answered in {:.2f} ms\n", count_at(answer.fields, "server_pid"),
                     in_milliseconds(answer.waited));
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
  if (const auto may = value_as<simdjson::dom::object>(answer.at_key("may"))) {
    for (const auto& [power, value] : *may) {
      powers.push_back((value_as<bool>(value).value_or(false) ? "" : "no ") + with_spaces(power));
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

std::string drain_text(const Answer& answer, const Request& /*request*/) {
  return flag_at(answer.fields, "draining")
             ? fmt::format("draining: {} open, new scopes are not watched\n",
                           counted(count_at(answer.fields, "open_scope_count"), "scope"))
             : "not draining: new scopes are watched\n";
}

std::string shutdown_text(const Answer& answer, const Request& /*request*/) {
  const std::int64_t open = count_at(answer.fields, "open_scope_count");
  return open > 0 ? counted(open, "scope") + " left open\n" : "";
}

std::string rendezvous_text(const Answer& answer, const Request& request) {
  return fmt::format("rendezvous '{}', round {}: all {} ranks have joined\n",
                     printable(request.question.name), count_at(answer.fields, "round"),
                     request.question.world.value_or(0));
}

}  // namespace

Command add_ping(CLI::App& root) {
  return add_request(root, "ping", "Whether the server answers, and how fast",
                     "Example:\n"
                     "  timer_client ping --rpc-timeout 2s || echo 'no server'",
                     ping_text, [](CLI::App&, Request&) {});
}

Command add_status(CLI::App& root) {
  return add_request(
      root, "status", "The state of the server, and what it may do",
      "Examples:\n"
      "  timer_client status\n"
      "  timer_client status --json | jq .may",
      [](const Answer& answer, const Request& request) {
        return request.all ? status_page(answer.fields) : summary_of(answer.fields);
      },
      [](CLI::App& app, Request& request) {
        app.add_flag("--all", request.all, "Everything that the server says, its settings, too");
      });
}

Command add_dump(CLI::App& root) {
  return add_request(
      root, "dump", "The scopes and stacks of workers now",
      "Examples:\n"
      "  timer_client dump\n"
      "  timer_client dump --rank 3 --json | jq '.workers[].python_threads'\n\n"
      "It shows what the evidence before a kill has: scopes, kernel, native and Python\n"
      "stacks. No worker is killed, and the only signal is that on which a worker writes\n"
      "its Python stacks. Workers in the same place are one group, the smallest first.",
      [](const Answer& answer, const Request&) {
        return dump_page(answer.fields, screen_of(STDOUT_FILENO).has_colour);
      },
      [](CLI::App& app, Request& request) {
        add_number_option(app, "--rank", request.question.rank, "RANK",
                          "Only the workers of this rank");
        add_number_option(app, "--pid", request.question.worker, "PID", "Only this worker");
        app.parse_complete_callback([&app] {
          if (app.count("--rank") > 0 && app.count("--pid") > 0) {
            throw CLI::ValidationError("expected one of --rank and --pid");
          }
        });
      });
}

Command add_drain(CLI::App& root) {
  return add_request(root, "drain", "Watch no new scopes; open ones stay watched",
                     "Examples:\n"
                     "  timer_client drain\n"
                     "  timer_client drain --off",
                     drain_text, [](CLI::App& app, Request& request) {
                       request.changes_server = true;
                       app.add_flag("--off", request.question.off, "Watch new scopes again");
                     });
}

Command add_shutdown(CLI::App& root) {
  return add_request(
      root, "shutdown", "End the server once open scopes have ended",
      "Examples:\n"
      "  timer_client shutdown --timeout 10m\n"
      "  timer_client shutdown --mode workers_or_now --timeout 1h\n\n"
      "No worker is killed for it: scopes that stay open are watched no longer. But a\n"
      "server with a COMMAND ends by ending it: SIGTERM, and if the mode ends in `now`\n"
      "SIGKILL to all that it started. A shutdown that waits continues when this command is\n"
      "interrupted; `timer_client drain --off` withdraws it, until COMMAND is sent SIGTERM.",
      shutdown_text, [](CLI::App& app, Request& request) {
        request.changes_server = true;
        request.question.graceful = kShutdownModes[0].graceful;
        request.wait = std::chrono::seconds{30};  // as that of AdminClient::shutdown()
        const auto modes = mapped(kShutdownModes,
                                  [](const ShutdownWords& mode) { return std::string(mode.word); });
        app.add_option_function<std::string>(
               "--mode",
               [&question = request.question](const std::string& word) {
                 const auto* const mode =
                     std::ranges::find(kShutdownModes, word, &ShutdownWords::word);
                 question.graceful = mode->graceful;
                 question.force = mode->force;
               },
               "What it waits for [graceful]\n"
               "graceful: open scopes; workers: the workers, too\n"
               "graceful_or_now, workers_or_now: likewise, and then\n"
               "it ends whatever is open\n"
               "if_idle: it is refused while a scope is open, or a\n"
               "kill is under way\n"
               "now: nothing")
            ->type_name("MODE")
            ->check(is_one_of(modes));
        add_duration_option(app, "--timeout", request.wait,
                            "How long to wait, at most the server's --max-wait [30s]");
      });
}

Command add_rendezvous(CLI::App& root) {
  return add_request(
      root, "rendezvous", "Wait until all ranks of a job on this host have joined",
      "Example:\n"
      "  timer_client rendezvous --rank \"$LOCAL_RANK\" --world \"$LOCAL_WORLD_SIZE\" \\\n"
      "    --timeout 5m --name epoch\n\n"
      "Ranks on other hosts have other servers and cannot join.",
      rendezvous_text, [](CLI::App& app, Request& request) {
        request.changes_server = true;
        request.question.name = "default";
        add_number_option(app, "--rank", request.question.rank, "R",
                          "The rank that joins: 0 to N - 1")
            ->required();
        add_number_option(app, "--world", request.question.world, "N",
                          "The number of ranks on this host")
            ->required();
        add_duration_option(app, "--timeout", request.wait,
                            "How long to wait for all ranks, at most\n"
                            "the server's --max-wait")
            ->required();
        add_name_option(app, "--name", request.question.name, "NAME",
                        "The name of the rendezvous [default]");
      });
}

}  // namespace filetimer::cli
