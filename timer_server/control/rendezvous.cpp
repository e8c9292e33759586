// SPDX-License-Identifier: MIT
#include "timer_server/control/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/limits.hpp"
#include "common/text.hpp"

namespace filetimer {

Status Rendezvous::join(const std::string& name, int world, const Member& member, Instant until,
                        Instant now) {
  if (name.empty() || name.size() > kMaxScopeNameBytes) {
    return failure(fmt::format("the rendezvous' name has {} bytes: expected 1 to {}", name.size(),
                               kMaxScopeNameBytes));
  }
  if (world < 1 || world > most_ranks_) {
    return failure(fmt::format("the world is {}: expected 1 to {} ranks", world, most_ranks_));
  }
  if (member.rank < 0 || member.rank >= world) {
    return failure(fmt::format("the rank is {}: expected 0 to {}", member.rank, world - 1));
  }
  const auto found = waiting_.find(name);
  if (found != waiting_.end()) {
    if (found->second.world != world) {
      return failure(fmt::format("the world is {}: the ranks that wait in rendezvous '{}' gave {}",
                                 world, printable(name), found->second.world));
    }
    if (const auto same = found->second.members.find(member.rank);
        same != found->second.members.end()) {
      return failure(fmt::format("rank {} has joined rendezvous '{}' already (pid {})", member.rank,
                                 printable(name), same->second.member.pid));
    }
  }
  Waiting& waiting = found != waiting_.end() ? found->second : waiting_[name];
  if (waiting.members.empty()) {
    waiting.world = world;
    waiting.begun = now;
  }
  waiting.members[member.rank] = {member, until};
  waiting.left.erase(member.rank);
  return {};
}

Instant Rendezvous::Waiting::until() const {
  Instant first = Instant::never();
  for (const auto& [rank, place] : members) {
    first = std::min(first, place.until);
  }
  return first;
}

std::optional<Rendezvous::Client> Rendezvous::waiting_as(const std::string& name, int rank) const {
  const auto found = waiting_.find(name);
  if (found == waiting_.end() || !found->second.members.contains(rank)) {
    return std::nullopt;
  }
  return found->second.members.at(rank).member.client;
}

std::vector<Rendezvous::Client> Rendezvous::in_full_rounds() const {
  std::vector<Client> clients;
  for (const auto& [name, waiting] : waiting_) {
    for (const auto& [rank, place] : waiting.members) {
      if (waiting.is_full()) {
        clients.push_back(place.member.client);
      }
    }
  }
  return clients;
}

std::optional<Rendezvous::Left> Rendezvous::leave(Client client) {
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
    auto& [name, waiting] = *at;
    const auto member = std::ranges::find_if(waiting.members, [client](const auto& entry) {
      return entry.second.member.client == client;
    });
    if (member == waiting.members.end()) {
      continue;
    }
    Left left{name, member->first};
    waiting.left.insert(left.rank);
    waiting.members.erase(member);
    if (waiting.members.empty()) {
      waiting_.erase(at);
    }
    return left;
  }
  return std::nullopt;
}

Rendezvous::Round Rendezvous::end(const std::string& name, Waiting&& waiting) {
  Round round;
  round.name = name;
  round.world = waiting.world;
  round.begun = waiting.begun;
  for (int rank = 0; rank < waiting.world; ++rank) {
    if (const auto member = waiting.members.find(rank); member != waiting.members.end()) {
      round.joined.push_back(member->second.member);
    } else {
      round.missing.push_back(rank);
    }
  }
  round.left.assign(waiting.left.begin(), waiting.left.end());
  if (counts_.size() >= kMaxNames && !counts_.contains(name)) {
    counts_.erase(
        std::ranges::min_element(counts_, {}, [](const auto& entry) { return entry.second.used; }));
  }
  Count& count = counts_[name];
  count.used = waiting.begun;
  round.number = ++count.rounds;
  return round;
}

template <class Over>
std::vector<Rendezvous::Round> Rendezvous::take(Over&& is_over) {
  std::vector<Round> rounds;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (is_over(at->second)) {
      rounds.push_back(end(at->first, std::move(at->second)));
      at = waiting_.erase(at);
    } else {
      ++at;
    }
  }
  return rounds;
}

std::vector<Rendezvous::Round> Rendezvous::take_full() {
  return take([](const Waiting& waiting) { return waiting.is_full(); });
}

std::vector<Rendezvous::Round> Rendezvous::take_failed(Instant now) {
  return take([now](const Waiting& waiting) { return waiting.until() <= now; });
}

std::vector<Rendezvous::Round> Rendezvous::take_all() {
  return take([](const Waiting&) { return true; });
}

Instant Rendezvous::next_failure() const {
  Instant next = Instant::never();
  for (const auto& [name, waiting] : waiting_) {
    next = std::min(next, waiting.until());
  }
  return next;
}

}  // namespace filetimer
