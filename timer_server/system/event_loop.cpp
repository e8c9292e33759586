// SPDX-License-Identifier: MIT
#include "timer_server/system/event_loop.hpp"

#include <signal.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <system_error>

#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

int check(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
  return result;
}

}  // namespace

Source::Source(EventLoop& loop, int fd, std::uint32_t events, Priority priority, Handler handler,
               UniqueFd owned)
    : loop_(loop),
      fd_(fd),
      priority_(priority),
      handler_(std::make_shared<const Handler>(std::move(handler))),
      owned_(std::move(owned)) {
  if (loop_.events_.size() <= loop_.sources_) {
    loop_.events_.resize(loop_.sources_ + 1);
    loop_.pending_.reserve(loop_.events_.capacity());
  }
  epoll_event event{.events = events, .data = {.ptr = this}};
  check(::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_ADD, fd_, &event), "cannot watch a descriptor");
  ++loop_.sources_;
}

Source::~Source() {
  ::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  loop_.drop_pending(*this);
  --loop_.sources_;
}

EventLoop::EventLoop()
    : epoll_(check(::epoll_create1(EPOLL_CLOEXEC), "cannot make an event loop")) {}

bool EventLoop::dispatch(int timeout_ms, const Source::Handler& iterate) {
  if (!dispatch_one(timeout_ms)) {
    return false;
  }
  while (dispatch_one(0, kDeathsFirst)) {
  }
  messages::guard(iterate);
  return true;
}

bool EventLoop::dispatch_one(int timeout_ms, Priority last) {
  // Between two handlers an event may come that is more urgent than those that wait.
  if (pending_.empty() || pending_.front()->priority_ > kDeathsFirst) {
    collect(pending_.empty() ? timeout_ms : 0);
  }
  if (pending_.empty() || pending_.front()->priority_ > last) {
    return false;
  }
  Source& source = *pending_.front();
  drop_pending(source);
  source.armed_ns_ = 0;
  const auto handler = source.handler_;
  messages::guard(*handler);
  return true;
}

void EventLoop::collect(int timeout_ms) {
  const int count = retry_eintr([&] {
    return ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
  });
  check(count, "the event loop failed");
  for (int i = 0; i < count; ++i) {
    add_pending(*static_cast<Source*>(events_[static_cast<std::size_t>(i)].data.ptr));
  }
}

void EventLoop::add_pending(Source& source) {
  if (!std::exchange(source.is_pending_, true)) {
    const auto comes_before = [](const Source* a, const Source* b) {
      return a->priority_ < b->priority_;
    };
    pending_.insert(std::upper_bound(pending_.begin(), pending_.end(), &source, comes_before),
                    &source);
  }
}

void EventLoop::drop_pending(Source& source) {
  if (std::exchange(source.is_pending_, false)) {
    pending_.erase(std::find(pending_.begin(), pending_.end(), &source));
  }
}

void Source::change_events(std::uint32_t events) {
  epoll_event event{.events = events, .data = {.ptr = this}};
  ::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_MOD, fd_, &event);
}

EventSource watch_signals(EventLoop& loop, std::span<const int> signals,
                          std::function<void(const signalfd_siginfo&)> handler) {
  const sigset_t set = signal_set(signals);
  UniqueFd owned(check(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "cannot take signals"));
  const int fd = owned.get();
  return std::make_unique<Source>(
      loop, fd, EPOLLIN, kOrdinary,
      [fd, handler = std::move(handler)] {
        signalfd_siginfo info{};
        if (retry_eintr([&] { return ::read(fd, &info, sizeof info); }) == sizeof info) {
          handler(info);
        }
      },
      std::move(owned));
}

EventSource make_timer(EventLoop& loop, Priority priority, Source::Handler handler) {
  UniqueFd owned(
      check(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "cannot make a timer"));
  const int fd = owned.get();
  return std::make_unique<Source>(loop, fd, EPOLLIN | EPOLLET, priority, std::move(handler),
                                  std::move(owned));
}

void Source::arm(Instant when) {
  const std::int64_t ns = when.is_never() ? 0 : std::max<std::int64_t>(when.ns, 1);
  if (std::exchange(armed_ns_, ns) == ns) {
    return;
  }
  loop_.drop_pending(*this);
  constexpr std::int64_t kSecond = 1'000'000'000;
  const itimerspec next{{0, 0}, {ns / kSecond, ns % kSecond}};
  ::timerfd_settime(fd_, TFD_TIMER_ABSTIME, &next, nullptr);
}

}  // namespace filetimer
