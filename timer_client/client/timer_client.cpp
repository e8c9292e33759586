// The public client: checks arguments and opens, renews and ends scopes on this process's page.
// The ProcessLock guards what clients share, except for the page (page_scope.hpp).
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filetimer/timer_client.hpp>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/client/client_state.hpp"
#include "timer_client/client/environment.hpp"
#include "timer_client/client/messages.hpp"
#include "timer_client/client/page/page_file.hpp"
#include "timer_client/client/page/timeouts_file.hpp"
#include "timer_client/client/scope_terms.hpp"
#include "timer_client/client/server/server_look.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;
namespace messages = client_messages;

constexpr std::string_view kJobScope = "job";
constexpr const char* kTimeoutsVariable = "FILETIMER_TIMEOUTS";
// The server checks at most this often whether a worker is still in a scope.
constexpr Duration kLeastIdleTimeout = milliseconds{100};

void check_connect_options(const ConnectOptions& options) {
  const Duration idle = options.idle_timeout.value();
  if (idle != Duration::zero() && (idle < kLeastIdleTimeout || idle > kMaxTimeout)) {
    throw InvalidArgument(fmt::format("the idle timeout is {}: expected 0 for none, or {} to {}",
                                      duration_text(idle), duration_text(kLeastIdleTimeout),
                                      duration_text(kMaxTimeout)));
  }
  if (options.timeout.value() < Duration::zero()) {
    throw InvalidArgument(fmt::format("the timeout of connect() is {}: expected 0 or more",
                                      duration_text(options.timeout.value())));
  }
}

// Returns the timeouts of the file that the environment or `chosen` names; nothing if neither names
// one. If the environment names a wrong file, that is a notice.
std::optional<ReplacedTimeouts> timeouts_of_file(const std::string& chosen) {
  const std::string named(environment_word(kTimeoutsVariable));
  const std::string& path = named.empty() ? chosen : named;
  if (path.empty()) {
    return std::nullopt;
  }
  auto timeouts = read_timeouts_file(path);
  if (!timeouts && named.empty()) {
    throw InvalidArgument(timeouts.error().message);
  }
  if (!timeouts) {
    messages::notice("${}: {}; the timeouts in the code count", kTimeoutsVariable,
                     timeouts.error().message);
    return std::nullopt;
  }
  messages::info("timeouts of {} names from '{}'", timeouts->size(), path);
  return std::move(*timeouts);
}

// Writes a notice once in each process; further clients write a warning.
void notice_missing_server(const std::string& why, bool has_page, bool was_named) {
  static std::atomic<bool> is_noticed{false};
  const bool has_torch_pipe = !was_named && !environment_word(kTorchPipeVariable).empty();
  const std::string text = fmt::format(
      "{}{}{}", why, has_page ? ": scopes are watched once one is there" : "",
      has_torch_pipe
          ? fmt::format(" (${} is for PyTorch's client and does not count)", kTorchPipeVariable)
          : std::string());
  if (!is_noticed.exchange(true, std::memory_order_relaxed)) {
    messages::notice("{}", text);
  } else {
    messages::warning("{}", text);
  }
}

}  // namespace

// --- the state ---

TimerClient::State::~State() {
  const auto held = ProcessLock::instance().lock();
  for (OwnPage* each = &first_page_; each != nullptr; each = each->successor()) {
    each->end_idle_timeout_of(this);
  }
}

SlotHandle* TimerClient::State::claim_with_lock(ScopeKey key) {
  const NoCancellation uncancelled;
  const auto held = ProcessLock::instance().lock();
  if (!page().is_made() || page().has_all_slots()) {  // no opening there asks for a look
    look_again();
  }
  SlotHandle* const handle = page().claim(key);
  if (handle == nullptr && page().is_made() &&
      said_limit_in.exchange(fork_watch::count()) != fork_watch::count()) {
    const std::string reason =
        page().has_all_slots()
            ? fmt::format(
                  "the threads of this process hold {} slots for scopes, which is the limit",
                  kMaxScopesPerWorker)
            : std::string("the scope page of this process cannot grow, as on a full disk");
    messages::notice("{}: '{}' is not watched, and neither are others beyond it", reason,
                     printable(shown_name(key)));
  }
  return handle;
}

void TimerClient::State::look_again() noexcept {
  page_.store(&ProcessPages::instance().look_again(page()), std::memory_order_release);
}

void TimerClient::State::swap_job(TimerScope& scope) {
  const auto held = ProcessLock::instance().lock();
  std::swap(job_, scope);  // releases neither
}

void TimerClient::State::after_opening(TimerScope& scope, unsigned todo_next,
                                       const PageTerms& terms) {
  if ((todo_next & todo::kLook) != 0) {
    auto held = ProcessLock::instance().lock();
    look_again();
    held.unlock();
    if (scope.follow_page(Duration{terms.timeout}, terms.opening)) {
      return;
    }
  }
  if ((todo_next & todo::kWake) != 0) {
    scope.slot_->page->wake();
  }
}

bool TimerClient::State::note_first(const std::string& shown, bool is_longer) {
  const auto held = ProcessLock::instance().lock();
  if (begun_in != fork_watch::count()) {
    begun.clear();
    begun_in = fork_watch::count();
  }
  // Beyond the limit every scope counts as the first of its name if its deadline is then later.
  return begun.size() < kMaxBegunNames ? begun.insert(shown).second
                                       : is_longer && !begun.contains(shown);
}

// --- the client ---

TimerClient::TimerClient(std::shared_ptr<State> state) : state_(std::move(state)) {}

// Returns the state of clients that are switched off or moved from.
const std::shared_ptr<TimerClient::State>& TimerClient::inactive_state() {
  static const std::shared_ptr<State>& state = *new std::shared_ptr<State>([] {
    const auto held = ProcessLock::instance().lock();
    return std::make_shared<State>(ProcessPages::instance().inactive_page());
  }());
  return state;
}

[[maybe_unused]] const bool TimerClient::has_inactive_state = inactive_state() != nullptr;

TimerClient TimerClient::connect(ConnectOptions options) {
  const std::shared_ptr<State>& off = inactive_state();
  check_connect_options(options);
  if (const Status level = messages::take_level_of_environment(); !level) {
    messages::notice("{}", level.error().message);
  }
  if (is_switched_off()) {
    return TimerClient(off);
  }
  auto timeouts = timeouts_of_file(options.timeouts);
  const ServerLocation place = locate_server(options.dir);
  const auto missing = missing_by_environment().value_or(options.missing);
  const bool must_be_there = missing != ConnectOptions::Missing::kIgnore;
  const Duration patience =
      missing == ConnectOptions::Missing::kWait ? options.timeout.value() : Duration::zero();
  const std::string why = wait_for_server(place.pipe, patience, options.while_waiting);
  if (!why.empty() && must_be_there) {
    throw ServerUnavailable(why);
  }
  std::shared_ptr<State> state;
  Status made;
  {
    const NoCancellation uncancelled;
    const auto held = ProcessLock::instance().lock();
    OwnPage& page = ProcessPages::instance().page_in(place.run_folder, place.pipe, made);
    if (timeouts) {
      page.replace_timeouts(ProcessPages::instance().keep(std::move(*timeouts)));
    }
    if (made) {
      made = page.make(options.stacks);
    }
    if (!made && must_be_there) {
      throw TimerError(made.error().message);
    }
    if (!made) {
      messages::notice("no scope page, scopes are not watched: {}", made.error().message);
    } else if (!page.has_server()) {
      remove_abandoned_pages(page.pages_folder());
    }
    state = std::make_shared<State>(page);
    const Duration idle = options.idle_timeout.value();
    const bool is_idleness_watched =
        idle == Duration::zero() || page.watch_idleness({idle, state.get()});
    if (!is_idleness_watched && must_be_there) {
      throw TimerError("there is no room on this process's page for its idle timeout");
    }
  }
  if (why.empty()) {
    messages::info("connected to the timer server in '{}'", place.run_folder);
  } else {
    const bool was_named = !options.dir.empty() || !environment_word(kDirVariable).empty();
    notice_missing_server(why, made.has_value(), was_named);
  }
  return TimerClient(std::move(state));
}

TimerClient::TimerClient(TimerClient&& other) noexcept
    : state_(std::exchange(other.state_, inactive_state())) {}

TimerClient& TimerClient::operator=(TimerClient&& other) noexcept {
  state_ = std::exchange(other.state_, inactive_state());
  return *this;
}

PausedRegion TimerClient::paused(std::string_view name, const char* file, int line) {
  // Its opening may move to a new page, which is the one to pause.
  TimerScope marker = expires(kNoDeadline, name, kDefaultScopeOptions, file, line);
  return PausedRegion(std::move(marker), state_->page());
}

TimerScope TimerClient::expires(Timeout timeout, std::string_view name, const ScopeOptions& options,
                                const char* file, int line) {
  const Duration after = timeout.value();
  State& state = *state_;
  const ScopeKey key = name.empty() ? ScopeKey::of_line(file, line) : ScopeKey::of_name(name);
  if (is_timeout(after) && is_signal(options.signal) && is_grace(options.grace) &&
      is_common(options) && !state.is_closed()) [[likely]] {
    if (SlotHandle* const handle = state.claim(key)) [[likely]] {
      return state.expires(*handle, plain_terms_of(after, options));
    }
  }
  return expires_otherwise(after, key, options, Opening::kScope);
}

// Slow path of expires(): invalid arguments, a draining server, options beyond the common ones, or
// no room on the page; and heartbeats, with another `opening`.
TimerScope TimerClient::expires_otherwise(std::chrono::nanoseconds after, const ScopeKey& key,
                                          const ScopeOptions& options, Opening opening) {
  if (opening == Opening::kScope) {  // heartbeat() has checked; its first timeout may be shorter
    check_timeout("the timeout", after);
    check_options(options, after);
  }
  if (state_->is_closed()) {  // perhaps by a server whose directory was made again since
    const auto held = ProcessLock::instance().lock();
    state_->look_again();
  }
  if (!state_->is_closed_by_server()) {
    const bool is_first =
        options.first_timeout &&
        state_->note_first(shown_name(key), options.first_timeout->value() > after);
    PageTerms terms = terms_of(is_first ? options.first_timeout->value() : after, options);
    terms.opening = is_first ? Opening::kFirst : opening;
    if (SlotHandle* const handle = state_->claim(key)) {
      return state_->expires(*handle, terms);
    }
  }
  const auto held = ProcessLock::instance().lock();
  state_->page().note_unwatched(std::max(after, options.first_timeout.value_or(after).value()));
  return {};
}

void TimerClient::start(Timeout after) {
  check_timeout("the timeout", after.value());
  TimerScope job;
  state_->swap_job(job);
  if (!job.renew(after)) {
    job = expires(after, kJobScope);
  }
  state_->swap_job(job);  // one that another thread has opened meanwhile is released
}

void TimerClient::start() {
  if (state_->page().is_off()) {
    return;
  }
  {  // a renewal of the job's scope does not make the client find a directory that was made again
    const auto held = ProcessLock::instance().lock();
    state_->look_again();
  }
  const std::int64_t timeout =
      state_->page().board().default_timeout.load(std::memory_order_relaxed);
  if (timeout <= 0) {
    throw InvalidArgument(fmt::format(
        "start() without a timeout: expected the server at '{}' to have a --default-timeout",
        target()));
  }
  start(Duration{timeout});
}

TimerHeartbeat TimerClient::heartbeat(Timeout timeout, std::string_view name,
                                      const ScopeOptions& options, const char* file, int line) {
  check_timeout("the timeout", timeout.value());
  check_options(options, timeout.value());
  ScopeOptions of_scope = options;
  of_scope.first_timeout.reset();  // of every heartbeat, not of the first of its name
  const ScopeKey key = name.empty() ? ScopeKey::of_line(file, line) : ScopeKey::of_name(name);
  return {expires_otherwise(options.first_timeout.value_or(timeout).value(), key, of_scope,
                            options.first_timeout ? Opening::kFirst : Opening::kHeartbeat),
          timeout, shown_name(key), of_scope, state_};
}

bool TimerHeartbeat::begin_again() {
  const bool has_expired = number_ != 0 && fork_count_ == fork_watch::count();
  if (const auto state = has_expired ? state_.lock() : nullptr) {
    TimerScope::operator=(TimerClient(state).expires_otherwise(
        timeout_.value(), ScopeKey::of_name(name_), options_, Opening::kHeartbeat));
  }
  return false;
}

ReleaseResult TimerClient::stop() noexcept {
  TimerScope job;
  state_->swap_job(job);
  return job.release();
}

bool TimerClient::is_watched() const noexcept {
  const OwnPage& page = state_->page();
  return page.has_board() && has_reader(page.pipe());
}

std::string TimerClient::target() const {
  return state_->page().pipe();
}

std::string TimerClient::stacks_file() const {
  const auto held = ProcessLock::instance().lock();
  return state_->page().latest().stacks_file();
}

bool TimerClient::offer_stacks(int signal, int file) {
  if (!is_signal(signal)) {
    throw InvalidArgument(
        fmt::format("the signal for stacks is {}: expected 0 to {}", signal, kLastSignal));
  }
  const auto held = ProcessLock::instance().lock();
  return state_->page().latest().offer_stacks(signal, file);
}

}  // namespace filetimer
