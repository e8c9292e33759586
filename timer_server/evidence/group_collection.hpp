// Collects the evidence of several workers, a few of them at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence_collection.hpp"
#include "timer_server/records/records.hpp"
#include "timer_server/system/side_threads.hpp"

namespace filetimer {

// Counts the collections that are under way of workers that have not expired, so that a lane of
// side threads has one for each. Warnings, peers and `dump` requests have kCount slots each. A
// collection that hangs occupies its slot until it has ended, even if its group has ended before.
class CollectionSlots {
 public:
  static constexpr long kCount = 2;
  static_assert(SideThreads::max_threads(SideThreads::Lane::kUnexpired) >= 3 * kCount);

  [[nodiscard]] bool has_free() const { return in_use() < kCount; }
  [[nodiscard]] long in_use() const { return token_.use_count() - 1; }
  // Returns a token that occupies a slot for as long as it lives.
  [[nodiscard]] std::shared_ptr<const char> take() const { return token_; }

 private:
  const std::shared_ptr<const char> token_ = std::make_shared<const char>();
};

// Collects the evidence of the members of a group, in their order. They have not expired.
//
//   GroupCollection group(side_threads, slots, {.level = level, .timeout = 2s, .until = until},
//                         std::move(members));
//   ...
//   next = group.advance(now);
//   if (group.is_done()) { use(group.members()); }  // or take_done() as they come
//
// Used on the loop thread. `side_threads` and `slots` must outlive the group.
class GroupCollection {
 public:
  struct Options {
    EvidenceLevel level = EvidenceLevel::kStacks;
    Duration timeout{};  // of each member
    Instant until;       // of the whole group
  };
  class Member {
   public:
    Member(WorkerIdentity worker, std::optional<PythonDump> python)
        : worker_(std::move(worker)), python_(std::move(python)) {}
    [[nodiscard]] const WorkerIdentity& worker() const { return worker_; }
    [[nodiscard]] bool is_done() const { return is_done_; }
    // Returns what was collected, or null: there was no time for this member.
    [[nodiscard]] const Evidence* evidence() const { return evidence_ ? &*evidence_ : nullptr; }

   private:
    friend class GroupCollection;
    void finish();

    WorkerIdentity worker_;
    std::optional<PythonDump> python_;
    std::shared_ptr<EvidenceCollection> collection_;  // null: not begun, or done
    Instant until_;                                   // of the collection
    std::optional<Evidence> evidence_;
    bool is_done_ = false;
  };

  GroupCollection(SideThreads& side_threads, const CollectionSlots& slots, const Options& options,
                  std::vector<Member> members);

  // Takes the collections as far as they can go. Returns when it must be called again at the
  // latest, or never(); it must also be called when the side threads have delivered.
  Instant advance(Instant now);
  // Removes a member whose collection has not begun.
  void withdraw(const Process& worker);
  // Ends all collections. Members then have what was collected so far.
  void stop();
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] const std::vector<std::shared_ptr<Member>>& members() const { return members_; }
  // Removes the members that are done, and returns them.
  std::vector<std::shared_ptr<Member>> take_done();

 private:
  void start(const std::shared_ptr<Member>& member, Instant now);

  SideThreads& side_threads_;
  const CollectionSlots& slots_;
  const Options options_;
  std::vector<std::shared_ptr<Member>> members_;
};

}  // namespace filetimer
