// The public client: checks arguments, turns them into what the page or an Outbox keeps, and speaks
// to the worker in exceptions where that is allowed. All state is behind the Keeper's lock, but for
// scopes on the page, see page_scope.hpp, and questions, see asker.hpp.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filetimer/timer_client.hpp>
#include <thread>
#include <unordered_set>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/scope_name.hpp"
#include "common/text.hpp"
#include "timer_client/src/keeper.hpp"
#include "timer_client/src/messages.hpp"
#include "timer_client/src/own_thread.hpp"
#include "timer_client/src/page/page_scope.hpp"
#include "timer_client/src/pipe/pipe_transport.hpp"
#include "timer_client/src/questions/asker.hpp"
#include "timer_client/src/server/meeting_place.hpp"
#include "timer_client/src/server/shutdown_watch.hpp"
#include "timer_client/src/warn_after.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;
namespace messages = client_messages;

constexpr std::string_view kJobScope = "job";
constexpr int kLastSignal = 64;
// The server looks so often, at the most, whether a worker that is in a scope still is.
constexpr Duration kLeastIdleTimeout = milliseconds{100};
constexpr Duration kFirstConnectPause = milliseconds{10};
constexpr Duration kLongestConnectPause = milliseconds{500};

bool is_timeout(Duration timeout) {
  return (timeout > Duration::zero() && timeout <= kMaxTimeout) || timeout == kNoDeadline;
}

bool is_signal(int signal) {
  return signal >= 0 && signal <= kLastSignal;
}

bool is_grace(std::optional<Duration> grace) {
  return !grace || *grace == Duration::zero() || is_timeout(*grace);
}

// Without what terms_of() and timeout_for() look at beyond plain_terms_of().
bool is_common(const ScopeOptions& options) {
  return !options.warn_after && !options.first_timeout && !options.spare_if_left;
}

void check_timeout(std::string_view what, Duration timeout) {
  if (!is_timeout(timeout)) {
    throw InvalidArgument(
        fmt::format("{} is {}: expected more than 0 and at most {}, or kNoDeadline", what,
                    duration_text(timeout), duration_text(kMaxTimeout)));
  }
}

void check_options(const ScopeOptions& options, Duration after) {
  if (!is_signal(options.signal)) {
    throw InvalidArgument(
        fmt::format("the signal is {}: expected 0 to {}", options.signal, kLastSignal));
  }
  if (!is_grace(options.grace)) {
    check_timeout("the grace", *options.grace);
  }
  if (!is_warn_after(options.warn_after, after)) {
    throw InvalidArgument(why_no_warn_after(*options.warn_after, after));
  }
  if (options.first_timeout) {
    check_timeout("the first timeout", *options.first_timeout);
  }
  if (options.pid < 0) {
    throw InvalidArgument(
        fmt::format("the pid is {}: expected a process, or 0 for this one", options.pid));
  }
}

// As a slot holds it: in whole milliseconds, rounded up.
std::uint32_t grace_ms(Duration grace) {
  if (grace == kNoDeadline) {
    return kNoSigkill;
  }
  const auto whole = std::chrono::ceil<milliseconds>(grace).count();
  return static_cast<std::uint32_t>(std::min<std::int64_t>(whole, kLongestGraceMs));
}

// Without what is not so common.
PageTerms plain_terms_of(Duration after, const ScopeOptions& options, std::uint64_t client) {
  return {.timeout = after.count(),
          .grace_ms = options.grace ? grace_ms(*options.grace) : kServersGrace,
          .signal = static_cast<std::uint16_t>(options.signal),
          .client = client};
}

PageTerms terms_of(Duration after, const ScopeOptions& options, std::uint64_t client) {
  PageTerms terms = plain_terms_of(after, options, client);
  if (options.warn_after) {
    terms.soft_ms = soft_ms(*options.warn_after);
  }
  if (options.spare_if_left) {
    terms.flags = slot_flag::kSpareIfLeft;
  }
  return terms;
}

[[noreturn]] void throw_limit(pid_t pid, std::string_view name) {
  throw TimerError(
      fmt::format("{} scopes are open in process {}, which is the limit: '{}' was not opened",
                  kMaxScopesPerWorker, pid, printable(name)));
}

bool is_open_here(const SlotHandle& handle, unsigned long long generation, unsigned fork_count) {
  return fork_count == fork_watch::count() &&
         handle.generation.load(std::memory_order_relaxed) == generation;
}

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

struct TimerClient::State {
  State(std::unique_ptr<Transport> transport, Asker questions)
      : outbox(Keeper::instance().add(std::move(transport))),
        number(Keeper::instance().next_number()),
        asker(std::move(questions)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Wants the lock not to be held: nobody but the last owner gets here.
  ~State() {
    const auto held = Keeper::instance().lock();
    Keeper::instance().abandon(outbox);
  }

  [[nodiscard]] bool uses_page(const ScopeOptions& options) const {
    return page != nullptr && !options.whole_process &&
           (options.pid == 0 || options.pid == ::getpid());
  }

  // While the server has announced its end, scopes on the page are not opened. Relaxed: a scope
  // that is opened in the same moment is watched for as long as there is a server.
  [[nodiscard]] [[gnu::always_inline]] bool is_page_closed() const {
    return page->board().announcement.load(std::memory_order_relaxed) !=
           static_cast<std::uint32_t>(Announcement::kNone);
  }

  // A slot for a scope on the page; see open_scope(). Null: there is no room for one, and it has to
  // go over the pipe.
  [[gnu::always_inline]] SlotHandle* claim(ScopeKey key, bool has_lock) {
    SlotHandle* const handle = claim_without_lock(*page, key);
    return handle != nullptr ? handle : claim_with_lock(key, has_lock);
  }

  SlotHandle* claim_with_lock(ScopeKey key, bool has_lock) {
    std::unique_lock<std::mutex> held;
    if (!has_lock) {
      held = Keeper::instance().lock();
    }
    OwnPage::Refusal why{};
    SlotHandle* const handle = page->claim(key, why);
    if (handle == nullptr && why == OwnPage::Refusal::kLimit) {
      throw_limit(::getpid(), shown_name(key));
    }
    return handle;
  }

  // These want the lock to be held.
  TimerId acquire(std::string_view name, Duration after, const ScopeOptions& options, bool& wake) {
    if (uses_page(options)) {
      if (is_page_closed()) {
        page->note_unwatched();
        return {};
      }
      if (SlotHandle* const handle = claim(ScopeKey::of_name(name, has_statistics), true)) {
        const TimerId timer = timer_in(*handle);
        wake = open_scope(*handle, terms_of(after, options, number));
        return timer;
      }
    }
    // Made valid before it is cut: what a reader of the wire sees is what tells two names apart.
    return acquire_on_pipe(bounded_scope_name(valid_utf8(name)), after, options,
                           Outbox::Owner::kClient);
  }

  TimerId acquire_on_pipe(std::string scope, Duration after, const ScopeOptions& options,
                          Outbox::Owner owner) {
    if (page != nullptr && page->server_has_other_pids()) {
      if (uses_page(options)) {
        // No room on the page: unwatched, since a worker never fails for its watchdog.
        page->note_unwatched();
        return {};
      }
      throw TimerError(fmt::format(
          "'{}' is a scope of another process, and this client's server is in another pid "
          "namespace: it would take pid {} for somebody else's",
          printable(scope), options.pid));
    }
    Keeper& keeper = Keeper::instance();
    TimerRequest request;
    const pid_t self = ::getpid();
    request.pid = options.pid == 0 ? self : options.pid;
    // The thread tells whose stack is of interest; another process' scope is no thread of ours.
    request.tid = request.pid == self ? ::gettid() : 0;
    request.scope = std::move(scope);
    request.whole_process = options.whole_process;
    request.spare_if_left = options.spare_if_left;
    // Of one process two clients speak then: itself, and we who watch it from outside.
    auto id = keeper.ids().open(request.pid,
                                options.whole_process ? request.scope + "#process" : request.scope);
    if (!id) {
      throw_limit(request.pid, request.scope);
    }
    request.timer_id = std::move(*id);
    request.timeout = after;
    request.signal = options.signal;
    request.grace = options.grace.value_or(Duration{-1});
    request.warn_after = options.warn_after.value_or(Duration{0});
    const TimerId timer(nullptr, keeper.next_number(), keeper.fork_count());
    outbox.acquire(timer.number_, std::move(request), Instant::now() + after, owner);
    keeper.deliver(outbox);
    return timer;
  }

  bool renew(TimerId timer, Duration after, bool& wake) {
    if (timer.slot_ != nullptr) {
      return is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
             renew_scope(*timer.slot_, timer.number_, after.count(), true, wake);
    }
    if (!is_ours(timer) || !outbox.renew(timer.number_, after, Instant::now() + after)) {
      return false;
    }
    Keeper::instance().deliver(outbox);
    return true;
  }

  bool release(TimerId timer) noexcept {
    if (timer.slot_ != nullptr) {
      return is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
             release_scope(*timer.slot_, timer.number_, true);
    }
    if (!is_ours(timer)) {
      return false;
    }
    const Outbox::Released released = outbox.release(timer.number_, Instant::now());
    if (released != Outbox::Released::kNotOpen) {
      Keeper::instance().deliver(outbox);
    }
    return released == Outbox::Released::kInTime;
  }

  // `state`: null for a timer on the page that its scope has. Wants the lock not to be held.
  static bool set_paused(State* state, TimerId timer, bool is_paused) {
    bool wake = false;
    bool is_open = false;
    {
      const auto held = Keeper::instance().lock();
      if (timer.slot_ != nullptr) {
        const auto change = is_paused ? pause_scope : resume_scope;
        is_open = is_open_here(*timer.slot_, timer.number_, timer.fork_count_) &&
                  change(*timer.slot_, slot_flag::kPausedByCaller, wake);
      } else if (state != nullptr && is_ours(timer)) {
        const auto change = is_paused ? &Outbox::pause : &Outbox::resume;
        is_open = (state->outbox.*change)(timer.number_, Outbox::Pauser::kCaller, Instant::now());
        Keeper::instance().deliver(state->outbox);
      }
    }
    if (wake) {
      timer.slot_->page->wake();
    }
    return is_open;
  }

  // The timeout of a scope that is about to be opened.
  [[nodiscard]] Duration timeout_for(std::string_view shown, Duration after,
                                     const ScopeOptions& options) {
    if (!options.first_timeout) {
      return after;
    }
    if (begun_in != Keeper::instance().fork_count()) {
      begun.clear();
      begun_in = Keeper::instance().fork_count();
    }
    return begun.emplace(shown).second ? *options.first_timeout : after;
  }

  [[nodiscard]] std::optional<TimerTimes> times(TimerId timer) const {
    if (timer.slot_ != nullptr) {
      return is_open_here(*timer.slot_, timer.number_, timer.fork_count_)
                 ? std::optional(times_of(*timer.slot_))
                 : std::nullopt;
    }
    const auto times = is_ours(timer) ? outbox.times(timer.number_) : std::nullopt;
    if (!times) {
      return std::nullopt;
    }
    const Instant now = Instant::now();
    const Duration remaining = times->deadline.is_never() ? kNoDeadline : times->deadline - now;
    return TimerTimes{now - times->acquired, times->left.value_or(remaining),
                      times->left.has_value(), !times->left && remaining <= Duration::zero()};
  }

  // Before the scope is opened: the processor lets nothing be read while it sets the deadline.
  static TimerId timer_in(SlotHandle& handle) {
    return {&handle, handle.generation.load(std::memory_order_relaxed), fork_watch::count()};
  }

  // A function of its own, so that the scope is made in its place and not copied there.
  [[gnu::always_inline]] static TimerScope expires(SlotHandle& handle, const PageTerms& terms) {
    TimerScope scope(timer_in(handle));
    if (open_scope(handle, terms)) [[unlikely]] {
      handle.page->wake();
    }
    return scope;
  }

  static bool is_ours(TimerId timer) {
    return timer && timer.fork_count_ == Keeper::instance().fork_count();
  }

  Outbox& outbox;
  const std::uint64_t number;  // on the page, of what is this client's to release
  OwnPage* page = nullptr;     // null: all goes over the pipe
  bool has_statistics = false;
  TimerId job;
  // Names of which a scope with a first timeout was opened, and in which process.
  std::unordered_set<std::string> begun;
  unsigned begun_in = 0;
  const Asker asker;
  std::shared_ptr<ShutdownWatch> shutdown_watch;  // with the lock; null: nobody asked for it
};

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
    transport = std::make_unique<PipeTransport>(place.pipe);
  }
  Asker asker(place, options.rpc_timeout);
  const bool must_be_there = options.when_missing == ConnectOptions::Missing::kThrow;
  const Duration patience = must_be_there ? options.timeout : Duration::zero();
  std::string why;
  const bool is_there = wait_for_server(*transport, patience, options.while_waiting, why);
  if (!is_there && must_be_there) {
    throw ServerUnavailable(fmt::format("no timer server at '{}': {} (tried for {})",
                                        transport->target(), why, duration_text(patience)));
  }
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

// --- questions ---

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
  const auto held = Keeper::instance().lock();
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
    const auto held = Keeper::instance().lock();
    watch = std::move(state_->shutdown_watch);
  }
  // Without the Keeper's lock: the callback that is waited for may want it.
  if (watch && watch->is_of_this_process()) {
    watch->stop();
  } else if (watch) {
    ShutdownWatch::leave_to_parent(std::move(watch));
  }
}

TimerScope::TimerScope(std::shared_ptr<TimerClient::State> state, TimerId timer) noexcept
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
  bool wake = false;
  if (SlotHandle* const handle = timer_.slot_) {
    const bool renewed = is_open_here(*handle, timer_.number_, timer_.fork_count_) &&
                         renew_scope(*handle, timer_.number_, after.count(), false, wake);
    if (wake) {
      handle->page->wake();
    }
    return renewed;
  }
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->renew(timer_, after, wake);
}

bool TimerScope::pause() {
  return TimerClient::State::set_paused(state_.get(), timer_, true);
}

bool TimerScope::resume() {
  return TimerClient::State::set_paused(state_.get(), timer_, false);
}

UnlimitedRegion::UnlimitedRegion(std::shared_ptr<TimerClient::State> state, TimerScope marker)
    : state_(std::move(state)),
      marker_(std::move(marker)),
      tid_(::gettid()),
      fork_count_(fork_watch::count()) {
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    // Before what may throw a second time, so that nothing has to be undone.
    slots_ = state_->page != nullptr ? state_->page->slots_to_suspend() : nullptr;
    state_->outbox.suspend_thread(tid_, Instant::now());
    if (slots_ != nullptr) {
      OwnPage::suspend_thread(*slots_, wake);
    }
    Keeper::instance().deliver(state_->outbox);
  }
  if (wake) {
    state_->page->wake();
  }
}

UnlimitedRegion::~UnlimitedRegion() {
  if (fork_count_ != fork_watch::count()) {
    return;  // its parent's
  }
  bool wake = false;
  {
    const auto held = Keeper::instance().lock();
    if (slots_ != nullptr) {
      state_->page->end_suspension(slots_, tid_, wake);
    }
    state_->outbox.end_suspension(tid_, Instant::now());
    Keeper::instance().deliver(state_->outbox);
  }
  if (wake) {
    state_->page->wake();
  }
}

std::optional<TimerTimes> TimerScope::times() const {
  if (const SlotHandle* const handle = timer_.slot_) {
    return is_open_here(*handle, timer_.number_, timer_.fork_count_)
               ? std::optional(times_of(*handle))
               : std::nullopt;
  }
  if (!state_) {
    return std::nullopt;
  }
  const auto held = Keeper::instance().lock();
  return state_->times(timer_);
}

bool TimerScope::release() noexcept {
  // Not copied whole: reading in one what was written in two halves stalls the processor.
  const unsigned long long number = std::exchange(timer_.number_, 0);
  if (SlotHandle* const handle = timer_.slot_) [[likely]] {
    return is_open_here(*handle, number, timer_.fork_count_) &&
           release_scope(*handle, number, false);
  }
  return release_on_pipe(number);
}

bool TimerScope::release_on_pipe(unsigned long long number) noexcept {
  if (!state_) {
    return false;
  }
  const auto held = Keeper::instance().lock();
  return state_->release(TimerId(nullptr, number, timer_.fork_count_));
}

}  // namespace filetimer
