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
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {
namespace {

using client_messages::debug;

constexpr Duration kLongestBackoff = std::chrono::minutes{1};
constexpr int kMaxRetries = 1'000'000;

thread_local RpcTimeout t_scoped_timeout;

void check(const RendezvousOptions& options) {
  check_timeout("the timeout of rendezvous()", options.timeout.value());
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

std::string members_text(const std::vector<RendezvousResult::Member>& members) {
  std::vector<std::string> words;
  for (const auto& member : members) {
    words.push_back(fmt::format("{} (pid {})", member.rank, member.pid));
  }
  return listed(words, kMaxNamed);
}

RpcTimeout checked(RpcTimeout timeout) {
  if (timeout) {
    check_timeout("the RPC timeout", timeout->value());
  }
  return timeout;
}

// Returns the answer if it is "done", and throws the error that it is otherwise.
Answer ask_until_done(const wire::Question& asked, Asking how, RpcTimeout timeout) {
  if (const RpcTimeout set = checked(timeout) ? timeout : t_scoped_timeout) {
    how.patience = set->value();
  }
  Answer answer = ask(asked, how);
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

}  // namespace

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

ScopedRpcTimeout::ScopedRpcTimeout(RpcTimeout timeout)
    : outer_(std::exchange(t_scoped_timeout, checked(timeout))) {}

ScopedRpcTimeout::~ScopedRpcTimeout() {
  t_scoped_timeout = outer_;
}

AdminClient::AdminClient(const AdminOptions& options) {
  if (const Status level = client_messages::take_level_of_environment(); !level) {
    client_messages::notice("{}", level.error().message);
  }
  const RpcTimeout given = checked(options.rpc_timeout);
  const auto patience = given ? Result<Duration>(given->value()) : rpc_timeout_of_environment();
  if (!patience) {
    throw InvalidArgument(patience.error().message);
  }
  how_ = std::make_shared<const Asking>(Asking{.place = locate_server(options.dir),
                                               .patience = *patience,
                                               .while_waiting = options.while_waiting});
}

void AdminClient::ping(RpcTimeout timeout) const {
  (void)ask_until_done({.request = "ping"}, *how_, timeout);
}

ServerStatus AdminClient::status(RpcTimeout timeout) const {
  const Answer answer = ask_until_done({.request = "status"}, *how_, timeout);
  return {.server_pid = pid_at(answer.fields, "server_pid"),
          .server_version = text_at(answer.fields, "server_version"),
          .announcement = text_at(answer.fields, "announcement"),
          .workers = count_at(answer.fields, "workers"),
          .open_scopes = count_at(answer.fields, "open_scopes"),
          .askers = count_at(answer.fields, "askers"),
          .json = answer.text};
}

std::int64_t AdminClient::drain(bool on, RpcTimeout timeout) const {
  const Answer answer = ask_until_done({.request = "drain", .off = !on}, *how_, timeout);
  return count_at(answer.fields, "open_scope_count");
}

std::int64_t AdminClient::shutdown(ShutdownMode mode, Timeout wait, RpcTimeout timeout) const {
  check_timeout("the timeout of shutdown()", wait.value());
  const Answer answer = ask_until_done(shutdown_question(mode, wait.value()), *how_, timeout);
  return count_at(answer.fields, "open_scope_count");
}

RendezvousResult AdminClient::rendezvous(const RendezvousOptions& options,
                                         RpcTimeout timeout) const {
  check(options);
  const std::string& name = options.name;
  const wire::Question asked{.request = "rendezvous",
                             .wait_s = seconds_or_infinity(options.timeout.value()),
                             .name = name,
                             .rank = options.rank,
                             .world = options.world};
  Duration pause = options.backoff.value();
  for (int retry = 1;; ++retry) {
    try {
      debug("rendezvous '{}': rank {} of {} joins, for {}", name, options.rank, options.world,
            duration_text(options.timeout.value()));
      const Answer answer = ask_until_done(asked, *how_, timeout);
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
    wait_for(pause, how_->while_waiting);
    pause *= 2;
  }
}

}  // namespace filetimer
