// The public client: checks arguments, turns them into what an Outbox keeps, and speaks to the
// worker in exceptions where that is allowed. All state is behind the Keeper's lock.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filetimer/timer_client.hpp>
#include <thread>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/scope_name.hpp"
#include "common/text.hpp"
#include "timer_client/src/keeper.hpp"
#include "timer_client/src/pipe_transport.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kJobScope = "job";
constexpr int kLastSignal = 64;
constexpr Duration kFirstConnectPause = milliseconds{10};
constexpr Duration kLongestConnectPause = milliseconds{500};

void check_timeout(std::string_view what, Duration timeout) {
  if (timeout == kNoDeadline) {
    return;
  }
  if (timeout <= Duration::zero() || timeout > kMaxTimeout) {
    throw InvalidArgument(
        fmt::format("{} is {}: expected more than 0 and at most {}, or kNoDeadline", what,
                    duration_text(timeout), duration_text(kMaxTimeout)));
  }
}

void check_scope(std::string_view name, const ScopeOptions& options) {
  if (name.empty()) {
    throw InvalidArgument("the scope's name is empty: expected at least one byte");
  }
  if (options.signal < 0 || options.signal > kLastSignal) {
    throw InvalidArgument(
        fmt::format("the signal is {}: expected 0 to {}", options.signal, kLastSignal));
  }
  if (options.grace && *options.grace != Duration::zero()) {
    check_timeout("the grace", *options.grace);
  }
  if (options.pid < 0) {
    throw InvalidArgument(
        fmt::format("the pid is {}: expected a process, or 0 for this one", options.pid));
  }
}

std::string file_and_line(std::string_view path, int line) {
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), line);
}

// Returns false when there is still none after `timeout`.
bool wait_for_server(Transport& transport, Duration timeout, std::string& why) {
  const Instant until = Instant::now() + timeout;
  Duration pause = kFirstConnectPause;
  for (;;) {
    if (transport.server_is_there(why)) {
      return true;
    }
    const Duration left = until - Instant::now();
    if (left <= Duration::zero()) {
      return false;
    }
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min(2 * pause, kLongestConnectPause);
  }
}

}  // namespace

struct TimerClient::State {
  explicit State(std::unique_ptr<Transport> transport)
      : outbox(Keeper::instance().add(std::move(transport))) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Wants the lock not to be held: nobody but the last owner gets here.
  ~State() {
    const auto held = Keeper::instance().lock();
    Keeper::instance().abandon(outbox);
  }

  // These want the lock to be held.
  TimerId acquire(std::string_view name, Duration after, const ScopeOptions& options,
                  Outbox::Owner owner) {
    Keeper& keeper = Keeper::instance();
    TimerRequest request;
    const pid_t self = ::getpid();
    request.pid = options.pid == 0 ? self : options.pid;
    // The thread tells whose stack is of interest; another process' scope is no thread of ours.
    request.tid = request.pid == self ? ::gettid() : 0;
    // Made valid before it is cut: what a reader of the wire sees is what tells two names apart.
    request.scope = bounded_scope_name(valid_utf8(name));
    request.whole_process = options.whole_process;
    // Of one process two clients speak then: itself, and we who watch it from outside.
    auto id = keeper.ids().open(
        request.pid, options.whole_process ? request.scope + "#process" : request.scope);
    if (!id) {
      throw TimerError(
          fmt::format("{} scopes are open in process {}, which is the limit: '{}' was not opened",
                      kMaxScopesPerWorker, request.pid, printable(request.scope)));
    }
    request.timer_id = std::move(*id);
    request.timeout = after;
    request.signal = options.signal;
    request.grace = options.grace.value_or(Duration{-1});
    const TimerId timer(keeper.next_number(), keeper.fork_count());
    outbox.acquire(timer.number_, std::move(request), Instant::now() + after, owner);
    keeper.deliver(outbox);
    return timer;
  }

  bool is_ours(TimerId timer) const {
    return timer && timer.fork_count_ == Keeper::instance().fork_count();
  }

  bool renew(TimerId timer, Duration after) {
    if (!is_ours(timer) || !outbox.renew(timer.number_, after, Instant::now() + after)) {
      return false;
    }
    Keeper::instance().deliver(outbox);
    return true;
  }

  bool release(TimerId timer) noexcept {
    if (!is_ours(timer)) {
      return false;
    }
    const Outbox::Released released = outbox.release(timer.number_, Instant::now());
    if (released != Outbox::Released::kNotOpen) {
      Keeper::instance().deliver(outbox);
    }
    return released == Outbox::Released::kInTime;
  }

  Outbox& outbox;
  TimerId job;
};

TimerClient::TimerClient(std::shared_ptr<State> state) : state_(std::move(state)) {}

TimerClient TimerClient::connect(ConnectOptions options) {
  if (options.timeout < Duration::zero()) {
    throw InvalidArgument(fmt::format("the timeout of connect() is {}: expected 0 or more",
                                      duration_text(options.timeout)));
  }
  std::unique_ptr<Transport> transport = std::move(options.transport);
  if (!transport) {
    transport = std::make_unique<PipeTransport>(resolve_pipe(options.dir, options.fifo));
  }
  const bool must_be_there = options.when_missing == ConnectOptions::Missing::kThrow;
  const Duration patience = must_be_there ? options.timeout : Duration::zero();
  std::string why;
  const bool is_there = wait_for_server(*transport, patience, why);
  if (!is_there && must_be_there) {
    throw ServerUnavailable(fmt::format("no timer server at '{}': {} (tried for {})",
                                        transport->target(), why, duration_text(patience)));
  }
  const auto held = Keeper::instance().lock();
  auto state = std::make_shared<State>(std::move(transport));
  state->outbox.set_watched(is_there);
  return TimerClient(std::move(state));
}

TimerClient::TimerClient(TimerClient&&) noexcept = default;

TimerClient& TimerClient::operator=(TimerClient&& other) noexcept {
  if (this != &other) {
    const TimerClient old(std::move(*this));  // releases on its way out
    state_ = std::move(other.state_);
  }
  return *this;
}

TimerClient::~TimerClient() {
  if (state_) {
    const auto held = Keeper::instance().lock();
    state_->outbox.release_those_of_client(Instant::now());
    Keeper::instance().deliver(state_->outbox);
  }
}

TimerId TimerClient::acquire(std::string_view name, std::chrono::nanoseconds after,
                             const ScopeOptions& options) {
  check_scope(name, options);
  check_timeout("the timeout", after);
  const auto held = Keeper::instance().lock();
  return state_->acquire(name, after, options, Outbox::Owner::kClient);
}

bool TimerClient::renew(TimerId timer, std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  const auto held = Keeper::instance().lock();
  return state_->renew(timer, after);
}

bool TimerClient::release(TimerId timer) noexcept {
  const auto held = Keeper::instance().lock();
  return state_->release(timer);
}

TimerScope TimerClient::expires(std::chrono::nanoseconds after, std::string_view name,
                                const ScopeOptions& options, const char* file, int line) {
  const std::string own_name = name.empty() ? file_and_line(file, line) : std::string(name);
  check_scope(own_name, options);
  check_timeout("the timeout", after);
  const auto held = Keeper::instance().lock();
  return {state_, state_->acquire(own_name, after, options, Outbox::Owner::kScope)};
}

void TimerClient::start(std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  const auto held = Keeper::instance().lock();
  if (!state_->renew(state_->job, after)) {
    state_->job = state_->acquire(kJobScope, after, {}, Outbox::Owner::kClient);
  }
}

bool TimerClient::stop() noexcept {
  const auto held = Keeper::instance().lock();
  return state_->release(std::exchange(state_->job, {}));
}

bool TimerClient::is_watched() const noexcept {
  const auto held = Keeper::instance().lock();
  return state_->outbox.is_watched();
}

std::string TimerClient::target() const {
  const auto held = Keeper::instance().lock();
  return state_->outbox.transport().target();
}

TimerScope::TimerScope(std::shared_ptr<TimerClient::State> state, TimerId timer)
    : state_(std::move(state)), timer_(timer) {}

TimerScope::TimerScope(TimerScope&& other) noexcept
    : state_(std::move(other.state_)), timer_(std::exchange(other.timer_, {})) {}

TimerScope& TimerScope::operator=(TimerScope&& other) noexcept {
  if (this != &other) {
    release();
    state_ = std::move(other.state_);
    timer_ = std::exchange(other.timer_, {});
  }
  return *this;
}

bool TimerScope::renew(std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->renew(timer_, after);
}

bool TimerScope::release() noexcept {
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->release(std::exchange(timer_, {}));
}

}  // namespace filetimer
