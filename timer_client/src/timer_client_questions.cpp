// The questions of the public client: checked here, asked by the Asker.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <filetimer/timer_client.hpp>

#include "common/run_folder.hpp"
#include "timer_client/src/client_state.hpp"
#include "timer_client/src/own_thread.hpp"

namespace filetimer {

void TimerClient::ping(RpcTimeout timeout) {
  state_->asker.ping(state_->asker.timeout_for(timeout));
}

ServerStatus TimerClient::status(RpcTimeout timeout) {
  return state_->asker.status(state_->asker.timeout_for(timeout));
}

DrainResult TimerClient::drain(bool on, RpcTimeout timeout) {
  return state_->asker.drain(on, state_->asker.timeout_for(timeout));
}

ShutdownResult TimerClient::shutdown(const ShutdownOptions& options, RpcTimeout timeout) {
  Asker::check(options);
  return state_->asker.shutdown(options, state_->asker.timeout_for(timeout));
}

RendezvousResult TimerClient::rendezvous(const RendezvousOptions& options, RpcTimeout timeout) {
  Asker::check(options);
  return state_->asker.rendezvous(options, state_->asker.timeout_for(timeout));
}

// Each owns what it needs: the client may be gone before the answer is there.

std::future<void> TimerClient::ping_async(RpcTimeout timeout) {
  const Duration time = state_->asker.timeout_for(timeout);
  return in_own_thread([asker = state_->asker, time] { asker.ping(time); });
}

std::future<ServerStatus> TimerClient::status_async(RpcTimeout timeout) {
  const Duration time = state_->asker.timeout_for(timeout);
  return in_own_thread([asker = state_->asker, time] { return asker.status(time); });
}

std::future<DrainResult> TimerClient::drain_async(bool on, RpcTimeout timeout) {
  const Duration time = state_->asker.timeout_for(timeout);
  return in_own_thread([asker = state_->asker, on, time] { return asker.drain(on, time); });
}

std::future<ShutdownResult> TimerClient::shutdown_async(ShutdownOptions options,
                                                        RpcTimeout timeout) {
  Asker::check(options);
  const Duration time = state_->asker.timeout_for(timeout);
  return in_own_thread(
      [asker = state_->asker, options, time] { return asker.shutdown(options, time); });
}

std::future<RendezvousResult> TimerClient::rendezvous_async(RendezvousOptions options,
                                                            RpcTimeout timeout) {
  Asker::check(options);
  const Duration time = state_->asker.timeout_for(timeout);
  return in_own_thread([asker = state_->asker, options = std::move(options), time] {
    return asker.rendezvous(options, time);
  });
}

void TimerClient::on_shutdown(std::function<void()> call) {
  const std::string& folder = state_->asker.place().run_folder;
  if (folder.empty()) {
    throw ServerUnavailable(fmt::format(
        "the server at '{}' announces nothing: it has no run folder that is known", target()));
  }
  const auto held = ProcessLock::instance().lock();
  auto& watch = state_->shutdown_watch;
  if (watch && !watch->is_of_this_process()) {
    ShutdownWatch::leave_to_parent(std::move(watch));
  }
  if (!watch) {
    watch = std::make_shared<ShutdownWatch>(fmt::format("{}/{}", folder, kBoardName));
  }
  watch->add(std::move(call));
}

void TimerClient::stop_watching() {
  std::shared_ptr<ShutdownWatch> watch;
  {
    const auto held = ProcessLock::instance().lock();
    watch = std::move(state_->shutdown_watch);
  }
  // Without the ProcessLock: the callback that is waited for may want it.
  if (watch && watch->is_of_this_process()) {
    watch->stop();
  } else if (watch) {
    ShutdownWatch::leave_to_parent(std::move(watch));
  }
}

}  // namespace filetimer
