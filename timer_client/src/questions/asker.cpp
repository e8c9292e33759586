// SPDX-License-Identifier: MIT
#include "timer_client/src/questions/asker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <limits>
#include <span>
#include <thread>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_client/src/messages.hpp"
#include "timer_client/src/questions/answer_object.hpp"

namespace filetimer {
namespace {

using std::chrono::minutes;

constexpr Duration kLongestBackoff = minutes{1};
constexpr int kMaxRetries = 1'000'000;
// How many scopes and ranks an error names.
constexpr std::size_t kMaxNamed = 8;

thread_local RpcTimeout t_scoped_timeout;

void check_wait(std::string_view what, Duration wait) {
  if (wait <= Duration{} || (wait > kMaxTimeout && wait != kNoDeadline)) {
    throw InvalidArgument(
        fmt::format("{} is {}: expected more than 0 and at most {}, or kNoDeadline", what,
                    duration_text(wait), duration_text(kMaxTimeout)));
  }
}

Duration from_seconds(double seconds) {
  constexpr double kMost = 1e9;  // far within what nanoseconds can hold
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, -kMost, kMost)));
}

int as_rank(std::int64_t number) {
  return static_cast<int>(std::clamp<std::int64_t>(number, -1, std::numeric_limits<int>::max()));
}

std::optional<int> rank_at(simdjson::dom::object object) {
  const auto rank = integer_at(object, "rank");
  return rank ? std::optional(as_rank(*rank)) : std::nullopt;
}

std::vector<int> ranks_at(simdjson::dom::object object, std::string_view key) {
  std::vector<int> ranks;
  for (const auto element : elements_at(object, key)) {
    if (const auto rank = as_integer(element)) {
      ranks.push_back(as_rank(*rank));
    }
  }
  return ranks;
}

std::vector<RendezvousResult::Member> members_at(simdjson::dom::object object) {
  std::vector<RendezvousResult::Member> members;
  for (const auto each : objects_at(object, "joined")) {
    members.push_back(
        {rank_at(each).value_or(-1), static_cast<pid_t>(integer_at(each, "pid").value_or(0))});
  }
  std::ranges::sort(members, {}, &RendezvousResult::Member::rank);
  return members;
}

// `read` gets the object of an answer that ask() has read before.
template <class Read>
auto with_answer(std::string_view answer, Read&& read) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  decltype(read(object)) result{};
  if (parse_answer(parser, answer, object)) {
    result = read(object);
  }
  return result;
}

// "3, 5, 7 and 12 more".
std::string list_of(const std::vector<int>& ranks) {
  const std::size_t named = std::min(ranks.size(), kMaxNamed);
  std::string text = fmt::format("{}", fmt::join(std::span(ranks).first(named), ", "));
  return named == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - named);
}

// "0 (pid 11), 1 (pid 12) and 6 more".
std::string members_text(const RendezvousResult& met) {
  std::string text;
  const std::size_t named = std::min(met.joined.size(), kMaxNamed);
  for (const auto& member : std::span(met.joined).first(named)) {
    text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", member.rank, member.pid);
  }
  return named == met.joined.size()
             ? text
             : fmt::format("{} and {} more", text, met.joined.size() - named);
}

// What the server allows, if this answer says so.
std::optional<Duration> granted_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) -> std::optional<Duration> {
    const auto wait_s = number_at(object, "wait_s");
    return wait_s ? std::optional(duration_from_seconds(*wait_s)) : std::nullopt;
  });
}

ServerBusy busy(const Reply& reply) {
  Obstacles obstacles = obstacles_in(reply.answer);
  std::string what = reply.why;
  if (const std::string scopes = open_scopes_text(obstacles); !scopes.empty()) {
    what += "; open: " + scopes;
  }
  return {what, reply.why, reply.kind == Reply::Kind::kTimedOut, obstacles.open_scope_count,
          std::move(obstacles.scopes)};
}

[[noreturn]] void throw_failed(const Reply& reply, std::string_view request) {
  using Kind = Reply::Kind;
  switch (reply.kind) {
    case Kind::kRefused:
    case Kind::kTimedOut:
      throw busy(reply);
    case Kind::kInvalid:
      throw InvalidArgument(reply.why);
    case Kind::kNoAnswer:
      throw RpcTimeoutError(reply.why, std::string(request), reply.waited);
    case Kind::kServerGone:
    case Kind::kNoServer:
      throw ServerUnavailable(reply.why);
    default:
      throw TimerError(reply.why);
  }
}

ServerStatus status_in(const std::string& answer) {
  auto status = with_answer(answer, [](simdjson::dom::object object) {
    const auto pid_at = [&](std::string_view key) {
      return static_cast<pid_t>(integer_at(object, key).value_or(0));
    };
    ServerStatus read;
    read.server_pid = pid_at("server_pid");
    read.server_version = text_at(object, "server_version");
    read.uptime = from_seconds(number_at(object, "uptime_s").value_or(0));
    read.dir = text_at(object, "dir");
    read.fifo = text_at(object, "fifo");
    read.log = text_at(object, "log");
    read.announcement = text_at(object, "announcement");
    read.workers = count_at(object, "workers");
    read.open_scopes = count_at(object, "open_scopes");
    read.requests = count_at(object, "requests");
    read.rejected = count_at(object, "rejected");
    read.expired = count_at(object, "expired");
    read.killed = count_at(object, "killed");
    read.kills_under_way = count_at(object, "kills_under_way");
    read.unkillable = count_at(object, "unkillable");
    read.askers = count_at(object, "askers");
    read.descriptors = count_at(object, "descriptors");
    if (simdjson::dom::object limits; object["limits"].get(limits) == simdjson::SUCCESS) {
      read.descriptor_limit = count_at(limits, "descriptors");
      read.worker_limit = count_at(limits, "workers");
    }
    read.log_trouble = text_at(object, "log_trouble");
    read.command_pid = pid_at("command_pid");
    return read;
  });
  status.json = answer;
  return status;
}

}  // namespace

Result<Duration> rpc_timeout_of_environment() {
  const char* const set = std::getenv(kRpcTimeoutVariable);
  if (set == nullptr || *set == '\0') {
    return kDefaultRpcTimeout;
  }
  auto timeout = parse_duration(set, EndlessDuration::kAllowed);
  if (!timeout) {
    return failure(fmt::format("${}: {}", kRpcTimeoutVariable, timeout.error().message));
  }
  return *timeout;
}

RpcTimeout::RpcTimeout(std::chrono::nanoseconds time) {
  if (time == std::chrono::seconds{-1}) {
    time = kNoDeadline;
  }
  check_wait("the RPC timeout", time);
  time_ = time;
}

RpcTimeout::RpcTimeout(double seconds) {
  if (seconds == -1 || seconds == std::numeric_limits<double>::infinity()) {
    time_ = kNoDeadline;
    return;
  }
  const double most = std::chrono::duration<double>(kMaxTimeout).count();
  if (!(seconds > 0 && seconds <= most)) {
    throw InvalidArgument(
        fmt::format("the RPC timeout is {} s: expected more than 0 and at most {}, or infinity",
                    seconds, duration_text(kMaxTimeout)));
  }
  time_ = std::max(duration_from_seconds(seconds), Duration{1});
}

ScopedRpcTimeout::ScopedRpcTimeout(RpcTimeout timeout) {
  outer_ = std::exchange(t_scoped_timeout, timeout);
}

ScopedRpcTimeout::~ScopedRpcTimeout() {
  t_scoped_timeout = outer_;
}

Asker::Asker(MeetingPlace place, RpcTimeout rpc_timeout) : place_(std::move(place)) {
  prepare_to_parse();
  if (rpc_timeout.is_set()) {
    rpc_timeout_ = rpc_timeout.value_or(kDefaultRpcTimeout);
    return;
  }
  const auto found = rpc_timeout_of_environment();
  if (!found) {
    throw InvalidArgument(found.error().message);
  }
  rpc_timeout_ = *found;
}

Duration Asker::timeout_for(RpcTimeout of_call) const {
  return of_call.value_or(t_scoped_timeout.value_or(rpc_timeout_));
}

Reply Asker::ask_whole(const wire::Question& question, Duration timeout) const {
  Reply reply = ask(place_, question, timeout);
  if (reply.kind != Reply::Kind::kDone) {
    throw_failed(reply, question.request);
  }
  return reply;
}

void Asker::ping(Duration timeout) const {
  wire::Question question;
  question.request = "ping";
  question.wait_s = wait_seconds(timeout);
  (void)ask_whole(question, timeout);
}

ServerStatus Asker::status(Duration timeout) const {
  wire::Question question;
  question.request = "status";
  question.wait_s = wait_seconds(timeout);
  return status_in(ask_whole(question, timeout).answer);
}

DrainResult Asker::drain(bool on, Duration timeout) const {
  wire::Question question;
  question.request = "drain";
  question.wait_s = wait_seconds(timeout);
  question.off = !on;
  return drain_in(ask_whole(question, timeout).answer);
}

ShutdownResult Asker::shutdown(const ShutdownOptions& options, Duration timeout) const {
  const Reply reply = ask_whole(question_of(options), timeout);
  return {static_cast<std::int64_t>(obstacles_in(reply.answer).open_scope_count)};
}

RendezvousResult Asker::rendezvous(const RendezvousOptions& options, Duration timeout) const {
  Duration pause = options.backoff;
  for (int retries_left = options.retries;; --retries_left) {
    try {
      return meet_once(options, timeout);
    } catch (const RendezvousTimeoutError&) {
      if (retries_left <= 0) {
        throw;
      }
    }
    pause = std::min(pause, kLongestBackoff);
    client_messages::debug("rendezvous '{}': retry {} of {} after a pause of {}", options.name,
                           options.retries - retries_left + 1, options.retries,
                           duration_text(pause));
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

RendezvousResult Asker::meet_once(const RendezvousOptions& options, Duration timeout) const {
  client_messages::debug("rendezvous '{}': rank {} of {} joins, for {}", options.name, options.rank,
                         options.world, duration_text(options.timeout));
  const Reply reply = ask(place_, question_of(options), timeout, [&](std::string_view answer) {
    if (const auto wait = granted_in(answer)) {
      client_messages::debug("rendezvous '{}': joined, granted {}", options.name,
                             duration_text(*wait));
    }
  });
  if (reply.kind == Reply::Kind::kTimedOut) {
    const RendezvousTimeoutError late = rendezvous_timeout_in(reply, options.name);
    client_messages::debug("{}", late.what());
    throw late;
  }
  if (reply.kind != Reply::Kind::kDone) {
    client_messages::debug("rendezvous '{}': {}", options.name, reply.why);
    throw_failed(reply, "rendezvous");
  }
  RendezvousResult met = rendezvous_in(reply.answer);
  client_messages::debug("rendezvous '{}': round {} is full: {}", options.name, met.round,
                         members_text(met));
  return met;
}

void Asker::check(const ShutdownOptions& options) {
  check_wait("the timeout of shutdown()", options.timeout);
}

void Asker::check(const RendezvousOptions& options) {
  check_wait("the timeout of rendezvous()", options.timeout);
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
  if (options.backoff <= Duration{}) {
    throw InvalidArgument(
        fmt::format("the backoff is {}: expected more than 0", duration_text(options.backoff)));
  }
}

// --- answers ---

Obstacles obstacles_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    Obstacles found;
    found.open_scope_count = static_cast<std::size_t>(count_at(object, "open_scope_count"));
    for (const auto each : objects_at(object, "open_scopes")) {
      OpenScope scope;
      scope.pid = static_cast<pid_t>(integer_at(each, "pid").value_or(0));
      scope.rank = rank_at(each);
      scope.scope = text_at(each, "scope");
      scope.elapsed = from_seconds(number_at(each, "elapsed_s").value_or(0));
      if (const auto remaining = number_at(each, "remaining_s")) {
        scope.remaining = from_seconds(*remaining);
      }
      found.scopes.push_back(std::move(scope));
    }
    for (const auto each : objects_at(object, "workers")) {
      found.workers.push_back({static_cast<pid_t>(integer_at(each, "pid").value_or(0)),
                               text_at(each, "comm"), rank_at(each)});
    }
    return found;
  });
}

std::string open_scopes_text(const Obstacles& obstacles) {
  std::string text;
  const std::size_t named = std::min(obstacles.scopes.size(), kMaxNamed);
  for (const OpenScope& scope : std::span(obstacles.scopes).first(named)) {
    text += fmt::format("{}'{}' of pid {}{}", text.empty() ? "" : ", ", printable(scope.scope),
                        scope.pid, scope.rank ? fmt::format(" (rank {})", *scope.rank) : "");
  }
  const std::size_t count = std::max(obstacles.open_scope_count, obstacles.scopes.size());
  return named < count && named > 0 ? fmt::format("{} and {} more", text, count - named) : text;
}

RendezvousResult rendezvous_in(const std::string& answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    return RendezvousResult{integer_at(object, "round").value_or(0), members_at(object)};
  });
}

DrainResult drain_in(const std::string& answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    bool draining = false;
    if (object.at_key("draining").get_bool().get(draining) != simdjson::SUCCESS) {
      draining = false;
    }
    return DrainResult{draining, count_at(object, "open_scope_count")};
  });
}

RendezvousTimeoutError rendezvous_timeout_in(const Reply& reply, const std::string& name) {
  struct Ranks {
    std::vector<int> joined;
    std::vector<int> missing;
    std::vector<int> left;
  };
  Ranks ranks = with_answer(reply.answer, [](simdjson::dom::object object) {
    Ranks found;
    for (const auto& member : members_at(object)) {
      found.joined.push_back(member.rank);
    }
    found.missing = ranks_at(object, "missing");
    found.left = ranks_at(object, "left");
    return found;
  });
  std::string what = fmt::format("rendezvous '{}': {}", printable(name), reply.why);
  if (!ranks.missing.empty()) {
    what += "; missing: " + list_of(ranks.missing);
  }
  if (!ranks.left.empty()) {
    what += "; had joined and left: " + list_of(ranks.left);
  }
  return {what, name, std::move(ranks.joined), std::move(ranks.missing), std::move(ranks.left)};
}

// --- questions ---

double wait_seconds(Duration wait) {
  return wait == kForever ? std::numeric_limits<double>::infinity()
                          : std::chrono::duration<double>(wait).count();
}

wire::Question question_of(const ShutdownOptions& options) {
  wire::Question question;
  question.request = "shutdown";
  question.wait_s = wait_seconds(options.timeout);
  question.force = options.force;
  if (options.workers) {
    question.graceful = "workers";
  } else if (options.graceful) {
    question.graceful = "scopes";
  }
  return question;
}

wire::Question question_of(const RendezvousOptions& options) {
  wire::Question question;
  question.request = "rendezvous";
  question.wait_s = wait_seconds(options.timeout);
  question.name = options.name;
  question.rank = options.rank;
  question.world = options.world;
  return question;
}

}  // namespace filetimer
