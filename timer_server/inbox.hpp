// The inbox: carries out what comes through the request pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "common/wire.hpp"
#include "timer_server/control/control_requests.hpp"
#include "timer_server/control/life_cycle.hpp"
#include "timer_server/core.hpp"
#include "timer_server/requests/request_reader.hpp"
#include "timer_server/watch/registry.hpp"

namespace filetimer {

// Reads the request pipe and carries out each request: a wake-up message goes to WatchRegistry, an
// acquire or a release to the pipe page of its worker, and what cannot be carried out to
// Rejections.
class Inbox {
 public:
  Inbox(Core& core, WatchRegistry& registry, const ControlRequests& control, const LifeCycle& life)
      : core_(core), registry_(registry), control_(control), life_(life) {}

  // Lets requests wake the loop. Called again after the pipe was replaced. If that fails, next()
  // says when to read.
  void listen();
  // Must be called before the pipe is replaced.
  void stop_listening() { source_.reset(); }

  // Reads and carries out the requests that are in the pipe, but no more bytes than `most` and than
  // the pipe can hold, so that writers that never pause do not delay deadlines.
  void read(std::size_t most = std::numeric_limits<std::size_t>::max());
  // Returns when read() must be called at the latest; never() if a request wakes the loop.
  [[nodiscard]] Instant next() const { return read_again_; }
  // Returns whether the pipe may have been so full since the last call that a client found no room
  // for its wake-up message: it looks for none, so all pages must be read.
  [[nodiscard]] bool take_was_full() { return std::exchange(was_full_, false); }
  // Carries out the requests again that could not be carried out for now. Called by sweeps.
  void retry();
  // Returns since when the first request of the last reading has waited, if a server that can run
  // would have read it earlier; otherwise never().
  [[nodiscard]] Instant waited_since() const { return waited_since_; }
  // Lets the timeouts of scopes of the last two readings begin at `begun`, if their requests have
  // no time: they may have waited since. A stop after a reading is noticed only after the next one.
  void antedate_requests(Instant begun) {
    for (const Undated& scope : undated_) {
      scope.page->antedate(scope.id, begun);
    }
  }
  // Return what was asked for since the last call; never() and kForever: nothing.
  Instant take_earliest_deadline() { return std::exchange(earliest_, Instant::never()); }
  Duration take_shortest_timeout() { return std::exchange(shortest_, kForever); }

 private:
  void on_line(const Result<wire::Request>& request, std::string_view line);
  void release(const wire::Request& request);
  // Fail with the reason for which the request is rejected.
  Status acquire(const wire::Request& request, std::string_view line);
  Status open_scope(const wire::Request& request, const SlotReading& terms, Instant written);
  // Drops the request for this scope that is to be tried again: a later one replaces it.
  void forget_retried(const wire::Request& request) {
    std::erase_if(retried_, [&](const Retried& each) {
      return each.pid == request.pid && each.id == request.scope_id;
    });
  }
  void note_wait(const Worker& worker, const wire::Request& request, std::string_view id,
                 const SlotReading& terms);

  Core& core_;
  WatchRegistry& registry_;
  const ControlRequests& control_;
  const LifeCycle& life_;
  RequestReader reader_{[this](const Result<wire::Request>& request, std::string_view line) {
    on_line(request, line);
  }};
  EventSource source_;
  ClockReading now_ = ClockReading::now();  // when the last bytes were read
  Instant read_again_ = Instant::never();
  bool was_full_ = false;
  Instant earliest_ = Instant::never();
  Duration shortest_ = kForever;
  Instant emptied_ = Instant::never();  // just before the last read() that emptied the pipe
  // The wall clock less the monotonic one, at that moment: when the next lines are written, the
  // wall clock may not have been set yet.
  std::int64_t wall_offset_ = now_.offset();
  Instant waited_since_ = Instant::never();
  // The requests that are tried again, at most.
  static constexpr std::size_t kMostRetried = 1024;
  struct Retried {
    pid_t pid = 0;
    std::string id;
    std::string line;
    ClockReading read;  // by the wall clock with which its deadline was converted
  };
  std::vector<Retried> retried_;
  struct Undated {
    std::shared_ptr<PipePage> page;
    std::string id;
    bool is_earlier = false;  // not of the last reading but of the one before
  };
  std::vector<Undated> undated_;  // scopes whose requests may have waited, and have no time
};

}  // namespace filetimer
