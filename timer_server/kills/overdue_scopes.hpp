// The ends of scopes that missed a deadline or a soft deadline and whose workers go on: they show
// whether the timeout is too short.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/records/record_log.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/scopes/scope_counts.hpp"
#include "timer_server/system/loop_thread.hpp"

namespace filetimer {

// Follows scopes after a verdict that spared the worker until they are released, and scopes after a
// warning until they are released or renewed. Records when that was. A scope that a look finds
// expired after its warning, and one whose worker ends inside it, is followed no longer: other
// records say so. Used on the loop thread. The references that the constructor takes must outlive
// this object.
//
// The time of a release is exact if the worker's page has statistics and at most kEndedScopes - 1
// scopes of the name ended between the release and the next look; else it is the time of the look.
// The time of a renewal is that of the last one before the look.
class OverdueScopes {
 public:
  // Scopes beyond are not followed.
  static constexpr std::size_t kMaxFollowed = 4096;
  // The first look at a scope is kFirstLook after the deadline, or the soft deadline. The pause
  // before the next look is a kLooksPerAge-th of the time since that deadline, but not shorter than
  // kFirstLook and not longer than kLongestPause.
  static constexpr Duration kFirstLook = std::chrono::milliseconds{50};
  static constexpr Duration kLongestPause = std::chrono::seconds{10};
  static constexpr int kLooksPerAge = 16;

  OverdueScopes(const Records& records, RecordLog& log) : records_(records), log_(log) {}

  // Follows a scope whose kill has ended with the worker spared.
  void follow(const WorkerIdentity& worker, const Expiry& expiry);
  // Follows a scope of the pipe likewise. Its slot is free after the verdict, so its release is
  // seen in requests only. `request_id`: that of the request that opened it.
  void follow_on_pipe(const WorkerIdentity& worker, const Expiry& expiry, std::string request_id);
  // Follows a scope with a warning.
  void follow(const WorkerIdentity& worker, const SoftDeadline& warned);
  // Looks at the scopes that are due. Returns when it must be called again, or never().
  Instant advance(Instant now);
  // Follows no longer a scope with a warning that has expired: there are records of the expiry.
  void note_expired(const Process& worker, const Expiry& expiry);
  // Follows no warned scope of this page any more: a kill has cancelled them.
  void note_cancelled(const WorkerPage& page);
  // Notes a request of the pipe that releases a scope, or opens it again.
  void note_request(const Process& worker, std::string_view request_id, Instant when);
  // Looks at the scopes of a worker that has ended, and then follows them no longer. Must be called
  // before its pages are removed.
  void forget(const Process& worker);

  // Returns the number of scopes that are followed.
  [[nodiscard]] std::size_t count() const { return scopes_.size(); }
  // Returns the number of `released_late` records by scope name.
  [[nodiscard]] const CountsByScope& released_late() const { return released_late_; }

 private:
  enum class Missed { kDeadline, kSoftDeadline };
  struct Followed {
    WorkerIdentity worker;
    Missed missed = Missed::kDeadline;
    std::string id;  // of the expiry or the warning
    std::string name;
    Instant acquired;
    Instant deadline;
    PageVerdict place;
    Instant next_look;         // never(): the scope ends with a request
    std::string request_id{};  // of a scope of the pipe that was spared
  };

  static Followed spared_scope(const WorkerIdentity& worker, const Expiry& expiry);
  void follow(Followed scope);
  // Returns whether the scope is still to be followed.
  bool look_at(Followed& scope);
  void record_end(const Followed& scope, Instant ended, bool is_released);

  const Records& records_;
  RecordLog& log_;
  std::vector<Followed> scopes_;
  std::size_t on_pipe_ = 0;  // of scopes_, those with a request_id
  CountsByScope released_late_;
  LoopThread loop_thread_;
};

}  // namespace filetimer
