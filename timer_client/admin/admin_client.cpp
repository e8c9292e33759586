// SPDX-License-Identifier: MIT
#include <filetimer/admin.hpp>
#include <utility>

#include "timer_client/admin/ask.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/scope_terms.hpp"

namespace filetimer {
namespace {

thread_local RpcTimeout t_scoped_timeout;

RpcTimeout checked(RpcTimeout timeout) {
  if (timeout) {
    check_timeout("the RPC timeout", timeout->value());
  }
  return timeout;
}

// Returns the answer. The RPC timeout is that of the call, else that of the thread, else `how`'s.
Answer ask_within(RpcTimeout timeout, const wire::Question& asked, Asking how) {
  if (const RpcTimeout set = checked(timeout) ? timeout : t_scoped_timeout) {
    how.patience = set->value();
  }
  return ask(asked, how);
}

}  // namespace

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
  (void)ask_within(timeout, {.request = "ping"}, *how_);
}

ServerStatus AdminClient::status(RpcTimeout timeout) const {
  const Answer answer = ask_within(timeout, {.request = "status"}, *how_);
  return {.server_pid = static_cast<pid_t>(count_at(answer.fields, "server_pid")),
          .server_version = text_at(answer.fields, "server_version"),
          .announcement = text_at(answer.fields, "announcement"),
          .workers = count_at(answer.fields, "workers"),
          .open_scopes = count_at(answer.fields, "open_scopes"),
          .askers = count_at(answer.fields, "askers"),
          .json = answer.text};
}

std::int64_t AdminClient::drain(bool on, RpcTimeout timeout) const {
  const Answer answer = ask_within(timeout, {.request = "drain", .off = !on}, *how_);
  return count_at(answer.fields, "open_scope_count");
}

std::int64_t AdminClient::shutdown(ShutdownMode mode, Timeout wait, RpcTimeout timeout) const {
  check_timeout("the timeout of shutdown()", wait.value());
  const Answer answer = ask_within(timeout, shutdown_question(mode, wait.value()), *how_);
  return count_at(answer.fields, "open_scope_count");
}

RendezvousResult AdminClient::rendezvous(const RendezvousOptions& options,
                                         RpcTimeout timeout) const {
  check_timeout("the timeout of rendezvous()", options.timeout.value());
  const Answer answer = ask_within(timeout,
                                   {.request = "rendezvous",
                                    .wait_s = seconds_or_infinity(options.timeout.value()),
                                    .name = options.name,
                                    .rank = options.rank,
                                    .world = options.world},
                                   *how_);
  return {count_at(answer.fields, "round"), members_in(answer.fields)};
}

}  // namespace filetimer
