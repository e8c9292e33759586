// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <filetimer/admin.hpp>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "timer_client/admin/requests.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"

namespace filetimer {
namespace {

namespace messages = client_messages;

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

[[noreturn]] void throw_failed(const Reply& reply, std::string_view request) {
  using Kind = Reply::Kind;
  switch (reply.kind) {
    case Kind::kRefused:
    case Kind::kTimedOut:
      throw busy_in(reply);
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

}  // namespace

// One call of the public client.
struct AdminClient::Call {
  ServerLocation place;
  Duration timeout;
  const WhileWaiting& while_waiting;

  Reply ask(const wire::Question& question, const OnAnswer& on_answer = {}) const {
    return filetimer::ask(place, question, timeout, on_answer, while_waiting);
  }
  Reply ask_until_done(const wire::Question& question) const {
    Reply reply = ask(question);
    if (reply.kind != Reply::Kind::kDone) {
      throw_failed(reply, question.request);
    }
    return reply;
  }
  RendezvousResult meet(const RendezvousOptions& options) const;
};

RendezvousResult AdminClient::Call::meet(const RendezvousOptions& options) const {
  const std::string& name = options.name;
  messages::debug("rendezvous '{}': rank {} of {} joins, for {}", name, options.rank, options.world,
                  duration_text(options.timeout.value()));
  const Reply reply = ask(question_of(options), [&](std::string_view answer) {
    if (const auto wait = granted_in(answer)) {
      messages::debug("rendezvous '{}': joined, granted {}", name, duration_text(*wait));
    }
  });
  if (reply.kind == Reply::Kind::kTimedOut) {
    const RendezvousTimeoutError late = rendezvous_timeout_in(reply, name);
    messages::debug("{}", late.what());
    throw late;
  }
  if (reply.kind != Reply::Kind::kDone) {
    messages::debug("rendezvous '{}': {}", name, reply.why);
    throw_failed(reply, "rendezvous");
  }
  RendezvousResult met = rendezvous_in(reply.answer);
  messages::debug("rendezvous '{}': round {} is full: {}", name, met.round, members_text(met));
  return met;
}

ScopedRpcTimeout::ScopedRpcTimeout(RpcTimeout timeout)
    : outer_(std::exchange(t_scoped_timeout, checked_rpc_timeout(timeout))) {}

ScopedRpcTimeout::~ScopedRpcTimeout() {
  t_scoped_timeout = outer_;
}

AdminClient::AdminClient(const AdminOptions& options) : while_waiting_(options.while_waiting) {
  if (const Status level = messages::take_level_of_environment(); !level) {
    messages::notice("{}", level.error().message);
  }
  ServerLocation place =
      options.fifo.empty() ? locate_server(options.dir) : locate_server(options.dir, options.fifo);
  pipe_ = std::move(place.pipe);
  run_folder_ = std::move(place.run_folder);
  if (const RpcTimeout given = checked_rpc_timeout(options.rpc_timeout)) {
    rpc_timeout_ = given->value();
    return;
  }
  const auto found = rpc_timeout_of_environment();
  if (!found) {
    throw InvalidArgument(found.error().message);
  }
  rpc_timeout_ = *found;
}

AdminClient::Call AdminClient::call(RpcTimeout timeout) const {
  checked_rpc_timeout(timeout);
  const Timeout longest = timeout.value_or(t_scoped_timeout.value_or(rpc_timeout_));
  return {{.pipe = pipe_, .run_folder = run_folder_}, longest.value(), while_waiting_};
}

void AdminClient::ping(RpcTimeout timeout) const {
  const Call ping_call = call(timeout);
  (void)ping_call.ask_until_done(question_of("ping", ping_call.timeout));
}

ServerStatus AdminClient::status(RpcTimeout timeout) const {
  const Call status_call = call(timeout);
  return status_in(status_call.ask_until_done(question_of("status", status_call.timeout)).answer);
}

DrainResult AdminClient::drain(bool on, RpcTimeout timeout) const {
  const Call drain_call = call(timeout);
  wire::Question question = question_of("drain", drain_call.timeout);
  question.off = !on;
  return drain_in(drain_call.ask_until_done(question).answer);
}

ShutdownResult AdminClient::shutdown(ShutdownMode mode, Timeout wait, RpcTimeout timeout) const {
  const wire::Question question =
      question_of(mode, checked_wait("the timeout of shutdown()", wait));
  const Reply reply = call(timeout).ask_until_done(question);
  return {static_cast<std::int64_t>(obstacles_in(reply.answer).open_scope_count)};
}

RendezvousResult AdminClient::rendezvous(const RendezvousOptions& options,
                                         RpcTimeout timeout) const {
  check(options);
  const Call rendezvous_call = call(timeout);
  Duration pause = options.backoff.value();
  for (int retries_left = options.retries;; --retries_left) {
    try {
      return rendezvous_call.meet(options);
    } catch (const RendezvousTimeoutError&) {
      if (retries_left <= 0) {
        throw;
      }
    }
    pause = std::min(pause, kLongestBackoff);
    messages::debug("rendezvous '{}': retry {} of {} after a pause of {}", options.name,
                    options.retries - retries_left + 1, options.retries, duration_text(pause));
    wait_for(pause, while_waiting_);
    pause *= 2;
  }
}

}  // namespace filetimer
