// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <filetimer/admin.hpp>
#include <utility>
#include <vector>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/admin/ask.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"

namespace filetimer {
namespace {

using client_messages::debug;

constexpr Duration kLongestBackoff = std::chrono::minutes{1};
constexpr int kMaxRetries = 1'000'000;

thread_local RpcTimeout t_scoped_timeout;

Duration checked_wait(std::string_view what, Timeout wait) {
  const Duration time = wait.value();
  if (time <= Duration{} || (time > kMaxTimeout && !wait.is_none())) {
    throw InvalidArgument(
        fmt::format("{} is {}: expected more than 0 and at most {}, or max() for no limit", what,
                    duration_text(time), duration_text(kMaxTimeout)));
  }
  return time;
}

RpcTimeout checked_rpc_timeout(RpcTimeout timeout) {
  if (timeout) {
    checked_wait("the RPC timeout", *timeout);
  }
  return timeout;
}

void check(const RendezvousOptions& options) {
  checked_wait("the timeout of rendezvous()", options.timeout);
  if (options.world < 1) {
    throw InvalidArgument(fmt::format("the world is {}: expected 1 or more", options.world));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    throw InvalidArgument(
        fmt::format("the rank is {}: expected 0 to {}", options.rank, options.world - 1));
  }
  if (options.name.empty() || options.name.size() > kMaxScopeNameBytes) {
    throw InvalidArgument(fmt::format("the rendezvous's name has {} bytes: expected 1 to {}",
                                      options.name.size(), kMaxScopeNameBytes));
  }
  if (options.retries < 0 || options.retries > kMaxRetries) {
    throw InvalidArgument(
        fmt::format("the retries are {}: expected 0 to {}", options.retries, kMaxRetries));
  }
  if (options.backoff <= Timeout(Duration{})) {
    throw InvalidArgument(fmt::format("the backoff is {}: expected more than 0",
                                      duration_text(options.backoff.value())));
  }
}

std::vector<int> ranks_at(simdjson::dom::object answer, std::string_view key) {
  std::vector<int> ranks;
  for (const auto element : elements_at(answer, key)) {
    if (const auto rank = as_integer(element)) {
      ranks.push_back(as_rank(*rank));
    }
  }
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words(ranks.size());
  std::ranges::transform(ranks, words.begin(), [](int rank) { return std::to_string(rank); });
  return listed(words, kMaxNamed);
}

std::vector<RendezvousResult::Member> members_in(simdjson::dom::object answer) {
  std::vector<RendezvousResult::Member> members;
  for (const auto each : objects_at(answer, "joined")) {
    members.push_back({rank_at(each).value_or(-1), pid_at(each, "pid")});
  }
  std::ranges::sort(members, {}, &RendezvousResult::Member::rank);
  return members;
}

ServerBusy busy_in(const Answer& answer) {
  Obstacles obstacles = obstacles_in(answer.fields);
  const std::string scopes = open_scopes_text(obstacles);
  ServerBusy error(scopes.empty() ? answer.reason : answer.reason + "; open: " + scopes);
  error.reason = answer.reason;
  error.timed_out = answer.kind == "timed_out";
  error.open_scope_count = obstacles.open_scope_count;
  error.open_scopes = std::move(obstacles.scopes);
  return error;
}

RendezvousTimeoutError rendezvous_timeout_in(const Answer& answer, const std::string& name) {
  const std::vector<int> missing = ranks_at(answer.fields, "missing");
  const std::vector<int> left = ranks_at(answer.fields, "left");
  std::string what = fmt::format("rendezvous '{}': {}", printable(name), answer.reason);
  if (!missing.empty()) {
    what += "; missing: " + ranks_text(missing);
  }
  if (!left.empty()) {
    what += "; had joined and left: " + ranks_text(left);
  }
  RendezvousTimeoutError error(what);
  error.name = name;
  for (const auto& member : members_in(answer.fields)) {
    error.joined.push_back(member.rank);
  }
  error.missing = missing;
  error.left = left;
  return error;
}

std::string members_text(const std::vector<RendezvousResult::Member>& members) {
  std::vector<std::string> words;
  for (const auto& member : members) {
    words.push_back(fmt::format("{} (pid {})", member.rank, member.pid));
  }
  return listed(words, kMaxNamed);
}

wire::Question question(std::string_view request) {
  wire::Question asked;
  asked.request = request;
  return asked;
}

}  // namespace

struct AdminClient::Call : Asking {
  // Returns the answer if it is "done".
  [[nodiscard]] Answer ask(const wire::Question& asked) const {
    Answer answer = filetimer::ask(asked, *this);
    if (answer.kind == "done") {
      return answer;
    }
    if (answer.kind == "invalid") {
      throw InvalidArgument(answer.reason);
    }
    if (answer.kind == "timed_out" && asked.request == "rendezvous") {
      throw rendezvous_timeout_in(answer, asked.name);
    }
    throw busy_in(answer);
  }
};

ScopedRpcTimeout::ScopedRpcTimeout(RpcTimeout timeout)
    : outer_(std::exchange(t_scoped_timeout, checked_rpc_timeout(timeout))) {}

ScopedRpcTimeout::~ScopedRpcTimeout() {
  t_scoped_timeout = outer_;
}

AdminClient::AdminClient(const AdminOptions& options) : while_waiting_(options.while_waiting) {
  if (const Status level = client_messages::take_level_of_environment(); !level) {
    client_messages::notice("{}", level.error().message);
  }
  ServerLocation place =
      options.fifo.empty() ? locate_server(options.dir) : locate_server(options.dir, options.fifo);
  pipe_ = std::move(place.pipe);
  run_folder_ = std::move(place.run_folder);
  const RpcTimeout given = checked_rpc_timeout(options.rpc_timeout);
  const auto timeout = given ? Result<Duration>(given->value()) : rpc_timeout_of_environment();
  if (!timeout) {
    throw InvalidArgument(timeout.error().message);
  }
  rpc_timeout_ = *timeout;
}

AdminClient::Call AdminClient::call(RpcTimeout timeout) const {
  checked_rpc_timeout(timeout);
  const Timeout longest = timeout.value_or(t_scoped_timeout.value_or(rpc_timeout_));
  return {{.place = {.pipe = pipe_, .run_folder = run_folder_},
           .patience = longest.value(),
           .while_waiting = while_waiting_}};
}

void AdminClient::ping(RpcTimeout timeout) const {
  (void)call(timeout).ask(question("ping"));
}

ServerStatus AdminClient::status(RpcTimeout timeout) const {
  const Answer answer = call(timeout).ask(question("status"));
  const simdjson::dom::object& fields = answer.fields;
  ServerStatus status;
  status.server_pid = pid_at(fields, "server_pid");
  status.server_version = text_at(fields, "server_version");
  status.uptime = duration_at(fields, "uptime_s").value_or(Duration{});
  status.dir = text_at(fields, "dir");
  status.fifo = text_at(fields, "fifo");
  status.log = text_at(fields, "log");
  status.announcement = text_at(fields, "announcement");
  status.workers = count_at(fields, "workers");
  status.open_scopes = count_at(fields, "open_scopes");
  status.requests = count_at(fields, "requests");
  status.rejected = count_at(fields, "rejected");
  status.expired = count_at(fields, "expired");
  status.killed = count_at(fields, "killed");
  status.kills_under_way = count_at(fields, "kills_under_way");
  status.unkillable = count_at(fields, "unkillable");
  status.askers = count_at(fields, "askers");
  status.descriptors = count_at(fields, "descriptors");
  if (simdjson::dom::object limits; fields["limits"].get(limits) == simdjson::SUCCESS) {
    status.descriptor_limit = count_at(limits, "descriptors");
    status.worker_limit = count_at(limits, "workers");
  }
  status.log_trouble = text_at(fields, "log_trouble");
  status.command_pid = pid_at(fields, "command_pid");
  status.json = answer.text;
  return status;
}

DrainResult AdminClient::drain(bool on, RpcTimeout timeout) const {
  wire::Question asked = question("drain");
  asked.off = !on;
  const Answer answer = call(timeout).ask(asked);
  return {is_draining(answer.fields), count_at(answer.fields, "open_scope_count")};
}

ShutdownResult AdminClient::shutdown(ShutdownMode mode, Timeout wait, RpcTimeout timeout) const {
  const wire::Question asked =
      shutdown_question(mode, checked_wait("the timeout of shutdown()", wait));
  return {count_at(call(timeout).ask(asked).fields, "open_scope_count")};
}

RendezvousResult AdminClient::rendezvous(const RendezvousOptions& options,
                                         RpcTimeout timeout) const {
  check(options);
  Call rendezvous_call = call(timeout);
  const std::string& name = options.name;
  wire::Question asked = question("rendezvous");
  asked.wait_s = seconds_or_infinity(options.timeout.value());
  asked.name = name;
  asked.rank = options.rank;
  asked.world = options.world;
  rendezvous_call.on_answer = [&](simdjson::dom::object answer) {
    if (const auto wait_s = number_at(answer, "wait_s")) {
      debug("rendezvous '{}': joined, granted {}", name,
            duration_text(duration_from_seconds(*wait_s)));
    }
  };
  Duration pause = options.backoff.value();
  for (int retry = 1;; ++retry) {
    try {
      debug("rendezvous '{}': rank {} of {} joins, for {}", name, options.rank, options.world,
            duration_text(options.timeout.value()));
      const Answer answer = rendezvous_call.ask(asked);
      RendezvousResult met{integer_at(answer.fields, "round").value_or(0),
                           members_in(answer.fields)};
      debug("rendezvous '{}': round {} is full: {}", name, met.round, members_text(met.joined));
      return met;
    } catch (const RendezvousTimeoutError& late) {
      debug("{}", late.what());
      if (retry > options.retries) {
        throw;
      }
    }
    pause = std::min(pause, kLongestBackoff);
    debug("rendezvous '{}': retry {} of {} after a pause of {}", name, retry, options.retries,
          duration_text(pause));
    wait_for(pause, while_waiting_);
    pause *= 2;
  }
}

}  // namespace filetimer
