// The public client: checks arguments, turns them into what the page or an Outbox keeps, and speaks
// to the worker in exceptions where that is allowed. All state is behind the Keeper's lock, but for
// scopes on the page, see page_scope.hpp, and questions, see asker.hpp.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filetimer/timer_client.hpp>
#include <thread>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_name.hpp"
#include "timer_client/src/client_state.hpp"
#include "timer_client/src/messages.hpp"
#include "timer_client/src/pipe/pipe_transport.hpp"
#include "timer_client/src/scope_terms.hpp"
#include "timer_client/src/server/meeting_place.hpp"
#include "timer_client/src/server/server_look.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;
namespace messages = client_messages;

constexpr std::string_view kJobScope = "job";
// The server looks so often, at the most, whether a worker that is in a scope still is.
constexpr Duration kLeastIdleTimeout = milliseconds{100};
constexpr Duration kFirstConnectPause = milliseconds{10};
constexpr Duration kLongestConnectPause = milliseconds{500};

// Returns false when there is still none after `timeout`.
bool wait_for_server(Transport& transport, Duration timeout,
                     const std::function<void()>& while_waiting, std::string& why) {
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
    if (while_waiting) {
      while_waiting();
    }
    pause = std::min(2 * pause, kLongestConnectPause);
  }
}

}  // namespace

TimerClient::TimerClient(std::shared_ptr<State> state) : state_(std::move(state)) {}

TimerClient TimerClient::connect(ConnectOptions options) {
  if (options.idle_timeout != Duration::zero() &&
      (options.idle_timeout < kLeastIdleTimeout || options.idle_timeout > kMaxTimeout)) {
    throw InvalidArgument(fmt::format("the idle timeout is {}: expected 0 for none, or {} to {}",
                                      duration_text(options.idle_timeout),
                                      duration_text(kLeastIdleTimeout),
                                      duration_text(kMaxTimeout)));
  }
  if (options.timeout < Duration::zero()) {
    throw InvalidArgument(fmt::format("the timeout of connect() is {}: expected 0 or more",
                                      duration_text(options.timeout)));
  }
  if (const Status level = messages::take_level_of_environment(); !level) {
    throw InvalidArgument(level.error().message);
  }
  std::unique_ptr<Transport> transport = std::move(options.transport);
  MeetingPlace place;
  if (!transport) {
    auto found = find_meeting_place(options.dir, options.fifo);
    if (!found) {
      throw InvalidArgument(found.error().message);
    }
    place = std::move(*found);
    transport = std::make_unique<PipeTransport>(place.pipe, place.run_folder);
  }
  Asker asker(place, options.rpc_timeout);
  const bool must_be_there = options.when_missing == ConnectOptions::Missing::kThrow;
  const Duration patience = must_be_there ? options.timeout : Duration::zero();
  std::string why;
  bool is_there = wait_for_server(*transport, patience, options.while_waiting, why);
  const auto throw_if_missing = [&] {
    if (!is_there && must_be_there) {
      throw ServerUnavailable(fmt::format("no timer server at '{}': {} (tried for {})",
                                          transport->target(), why, duration_text(patience)));
    }
  };
  throw_if_missing();
  std::optional<BoardView> board;
  if (is_there && place.may_have_page) {
    board = serving_board(place.run_folder, patience);
  }
  OwnPage* page = nullptr;
  if (board) {
    const auto held = Keeper::instance().lock();
    page = &Keeper::instance().page_on(std::move(*board), place.run_folder, place.pipe);
    if (const Status made = page->make(options.statistics); !made) {
      if (must_be_there) {
        throw TimerError(made.error().message);
      }
      messages::warning("no scope page, scopes go through the pipe: {}", made.error().message);
      page = nullptr;
    }
  }
  if (page == nullptr && is_there) {
    why = why_no_pids(place.run_folder);
    is_there = why.empty();
    throw_if_missing();
  }
  if (!is_there) {
    messages::warning("no timer server at '{}': {}: scopes are watched once one is there",
                      transport->target(), why);
  } else if (page != nullptr) {
    messages::info("connected to the timer server in '{}': scopes go on a page", place.run_folder);
  } else {
    messages::info("connected to the timer server at '{}': scopes go through the pipe",
                   transport->target());
  }
  std::shared_ptr<State> state;
  {
    const auto held = Keeper::instance().lock();
    state = std::make_shared<State>(std::move(transport), std::move(asker));
    state->outbox.set_watched(is_there);
    state->page = page;
    state->has_statistics = options.statistics;
  }
  TimerClient client(std::move(state));
  if (options.idle_timeout != Duration::zero()) {
    client.set_idle_timeout(options.idle_timeout, must_be_there);
  }
  return client;
}

void TimerClient::set_idle_timeout(std::chrono::nanoseconds timeout, bool must_be_there) {
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    OwnPage::Refusal why{};
    if (state_->page == nullptr) {
      TimerRequest request;
      request.pid = ::getpid();
      request.scope = kIdleScopeName;
      request.idle = true;
      request.timeout = timeout;
      state_->outbox.watch_idleness(Keeper::instance().next_number(), std::move(request));
    } else if (!state_->page->watch_idleness(timeout, state_->number, why, wake) && must_be_there) {
      throw TimerError("there is no room on this process's page for its idle timeout");
    }
  }
  if (wake) {
    state_->page->wake();
  }
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
    stop_watching();
    const auto held = Keeper::instance().lock();
    if (state_->page != nullptr) {
      state_->page->release_those_of(state_->number);
    }
    state_->outbox.release_those_of_client(Instant::now());
    Keeper::instance().deliver(state_->outbox);
  }
}

TimerId TimerClient::acquire(std::string_view name, std::chrono::nanoseconds after,
                             const ScopeOptions& options) {
  if (name.empty()) {
    throw InvalidArgument("the scope's name is empty: expected at least one byte");
  }
  check_timeout("the timeout", after);
  check_options(options, after);
  bool wake = false;
  TimerId timer;
  {
    const auto held = Keeper::instance().lock();
    timer = state_->acquire(name, state_->timeout_for(name, after, options), options, wake);
  }
  if (wake) {
    state_->page->wake();
  }
  return timer;
}

bool TimerClient::renew(TimerId timer, std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  bool wake = false;
  bool renewed = false;
  {
    const auto held = Keeper::instance().lock();
    renewed = state_->renew(timer, after, wake);
  }
  if (wake) {
    timer.slot_->page->wake();
  }
  return renewed;
}

bool TimerClient::pause(TimerId timer) {
  return State::set_paused(state_.get(), timer, true);
}

bool TimerClient::resume(TimerId timer) {
  return State::set_paused(state_.get(), timer, false);
}

UnlimitedRegion TimerClient::unlimited(std::string_view name, const char* file, int line) {
  return {state_, expires(kNoDeadline, name, kDefaultScopeOptions, file, line)};
}

bool TimerClient::release(TimerId timer) noexcept {
  const auto held = Keeper::instance().lock();
  return state_->release(timer);
}

TimerScope TimerClient::expires(std::chrono::nanoseconds after, std::string_view name,
                                const ScopeOptions& options, const char* file, int line) {
  State& state = *state_;
  const auto key = name.empty() ? ScopeKey::of_line(file, line, state.has_statistics)
                                : ScopeKey::of_name(name, state.has_statistics);
  if (is_timeout(after) && is_signal(options.signal) && is_grace(options.grace) &&
      is_common(options) && state.uses_page(options) && !state.is_page_closed()) [[likely]] {
    if (SlotHandle* const handle = state.claim(key, false)) [[likely]] {
      return State::expires(*handle, plain_terms_of(after, options, 0));
    }
  }
  return expires_otherwise(after, key, options);
}

// What is not so common, wrong arguments too.
TimerScope TimerClient::expires_otherwise(std::chrono::nanoseconds after, const ScopeKey& key,
                                          const ScopeOptions& options) {
  check_timeout("the timeout", after);
  check_options(options, after);
  if (state_->uses_page(options) && state_->is_page_closed()) {
    const auto held = Keeper::instance().lock();
    state_->page->note_unwatched();
    return TimerScope(TimerId{});
  }
  if (options.first_timeout) {
    const auto held = Keeper::instance().lock();
    after = state_->timeout_for(shown_name(key), after, options);
  }
  if (!is_common(options) && state_->uses_page(options)) {
    if (SlotHandle* const handle = state_->claim(key, false)) {
      return State::expires(*handle, terms_of(after, options, 0));
    }
  }
  std::string shown = shown_name(key);
  const auto held = Keeper::instance().lock();
  return {state_, state_->acquire_on_pipe(std::move(shown), after, options, Outbox::Owner::kScope)};
}

void TimerClient::start(std::chrono::nanoseconds after) {
  check_timeout("the timeout", after);
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    if (!state_->renew(state_->job, after, wake)) {
      state_->job = state_->acquire(kJobScope, after, {}, wake);
    }
  }
  if (wake) {
    state_->page->wake();
  }
}

void TimerClient::start() {
  const std::int64_t timeout =
      state_->page == nullptr
          ? 0
          : state_->page->board().default_timeout.load(std::memory_order_relaxed);
  if (timeout <= 0) {
    throw InvalidArgument(fmt::format(
        "start() without a timeout: expected the server at '{}' to have a --default-timeout",
        target()));
  }
  start(Duration{timeout});
}

TimerHeartbeat TimerClient::heartbeat(std::chrono::nanoseconds timeout, std::string_view name,
                                      const ScopeOptions& options, const char* file, int line) {
  check_timeout("the timeout", timeout);
  check_options(options, timeout);
  ScopeOptions of_scope = options;
  of_scope.first_timeout.reset();  // of every heartbeat, not of the first of its name
  return {expires(options.first_timeout.value_or(timeout), name, of_scope, file, line), timeout};
}

std::optional<TimerTimes> TimerClient::times(TimerId timer) const {
  const auto held = Keeper::instance().lock();
  return state_->times(timer);
}

bool TimerClient::stop() noexcept {
  const auto held = Keeper::instance().lock();
  return state_->release(std::exchange(state_->job, {}));
}

bool TimerClient::is_watched() const noexcept {
  if (state_->page != nullptr) {
    return state_->page->is_watched();
  }
  const auto held = Keeper::instance().lock();
  return state_->outbox.is_watched();
}

std::string TimerClient::target() const {
  const auto held = Keeper::instance().lock();
  return state_->outbox.transport().target();
}

std::string TimerClient::stacks_file() const {
  const auto held = Keeper::instance().lock();
  return state_->page == nullptr ? std::string() : state_->page->stacks_file();
}

bool TimerClient::offer_stacks(int signal) {
  if (!is_signal(signal)) {
    throw InvalidArgument(
        fmt::format("the signal for stacks is {}: expected 0 to {}", signal, kLastSignal));
  }
  const auto held = Keeper::instance().lock();
  return state_->page != nullptr && state_->page->offer_stacks(signal);
}

}  // namespace filetimer
