// SPDX-License-Identifier: MIT
#include "timer_server/evidence/group_collection.hpp"

#include <algorithm>
#include <utility>

namespace filetimer {

void GroupCollection::Member::finish() {
  if (collection_) {
    evidence_ = collection_->take();
    collection_.reset();
  }
  is_done_ = true;
}

GroupCollection::GroupCollection(SideThreads& side_threads, const CollectionSlots& slots,
                                 const Options& options, std::vector<Member> members)
    : side_threads_(side_threads), slots_(slots), options_(options) {
  for (Member& member : members) {
    members_.push_back(std::make_shared<Member>(std::move(member)));
  }
}

Instant GroupCollection::advance(Instant now) {
  Instant next = Instant::never();
  for (const std::shared_ptr<Member>& member : members_) {
    if (now >= options_.until || (member->collection_ && now >= member->until_)) {
      member->finish();
    }
    if (!member->is_done_ && !member->collection_ && slots_.has_free()) {
      start(member, now);
    }
    next = std::min(next, member->collection_ ? member->until_ : Instant::never());
  }
  return is_done() ? Instant::never() : std::min(next, options_.until);
}

void GroupCollection::start(const std::shared_ptr<Member>& member, Instant now) {
  member->until_ = std::min(options_.until, now + options_.timeout);
  member->collection_ =
      EvidenceCollection::start(side_threads_, member->worker_.process,
                                {options_.level, member->until_, member->python_, false},
                                [weak = std::weak_ptr(member), token = slots_.take()] {
                                  if (const auto waiting = weak.lock()) {
                                    waiting->finish();
                                  }
                                });
}

void GroupCollection::withdraw(const Process& worker) {
  std::erase_if(members_, [&](const auto& member) {
    return member->worker_.process.get() == &worker && !member->is_done_ && !member->collection_;
  });
}

void GroupCollection::stop() {
  for (const std::shared_ptr<Member>& member : members_) {
    member->finish();
  }
}

bool GroupCollection::is_done() const {
  return std::ranges::all_of(members_, [](const auto& member) { return member->is_done_; });
}

std::vector<std::shared_ptr<GroupCollection::Member>> GroupCollection::take_done() {
  const auto done = std::stable_partition(members_.begin(), members_.end(),
                                          [](const auto& member) { return !member->is_done_; });
  std::vector<std::shared_ptr<Member>> taken(done, members_.end());
  members_.erase(done, members_.end());
  return taken;
}

}  // namespace filetimer
