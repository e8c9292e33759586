// SPDX-License-Identifier: MIT
#include "timer_server/control/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// Returns the first kMostNamed ranks and the number of the others: "0, 2 and 5 more".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 32;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kMostNamed; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kMostNamed ? fmt::format("{} and {} more", text, ranks.size() - kMostNamed)
                                   : text;
}

}  // namespace

Instant Rendezvous::Round::until() const {
  Instant first = Instant::never();
  for (const auto& [rank, member] : members) {
    first = std::min(first, member.until);
  }
  return first;
}

Status Rendezvous::check(const Rank& rank) const {
  if (rank.name.empty() || rank.name.size() > kMaxScopeNameBytes) {
    return failure(fmt::format("the rendezvous' name has {} bytes: expected 1 to {}",
                               rank.name.size(), kMaxScopeNameBytes));
  }
  if (rank.world < 1 || rank.world > most_ranks_) {
    return failure(fmt::format("the world is {}: expected 1 to {} ranks", rank.world, most_ranks_));
  }
  if (rank.rank < 0 || rank.rank >= rank.world) {
    return failure(fmt::format("the rank is {}: expected 0 to {}", rank.rank, rank.world - 1));
  }
  const auto found = rounds_.find(rank.name);
  if (found == rounds_.end()) {
    return {};
  }
  const Round& round = found->second;
  if (round.world != rank.world) {
    return failure(fmt::format("the world is {}: the ranks that wait in rendezvous '{}' gave {}",
                               rank.world, printable(rank.name), round.world));
  }
  if (const auto same = round.members.find(rank.rank); same != round.members.end()) {
    return failure(fmt::format("rank {} has joined rendezvous '{}' already (pid {})", rank.rank,
                               printable(rank.name), same->second.pid));
  }
  return {};
}

Status Rendezvous::join(const Rank& rank, Duration patience, Instant now) {
  remove([&](const std::string& name, int number, const Member& member) {
    return name == rank.name && number == rank.rank && clients_.has_left(member.client);
  });
  FILETIMER_TRY(check(rank));
  Round& round = rounds_[rank.name];
  if (round.members.empty()) {
    round.world = rank.world;
    round.begun = now;
  }
  round.members[rank.rank] = {rank.pid, rank.client, now + patience};
  round.left.erase(rank.rank);
  messages::debug("rendezvous '{}': rank {} of {} joined (pid {}), granted {}", rank.name,
                  rank.rank, rank.world, rank.pid, duration_text(patience));
  return {};
}

template <class Has>
void Rendezvous::remove(Has&& has_left) {
  for (auto& entry : rounds_) {
    const std::string& name = entry.first;
    Round& round = entry.second;
    std::erase_if(round.members, [&](const auto& member) {
      const bool is_gone = has_left(name, member.first, member.second);
      if (is_gone) {
        round.left.insert(member.first);
        messages::debug("rendezvous '{}': rank {} left", name, member.first);
      }
      return is_gone;
    });
  }
  std::erase_if(rounds_, [](const auto& entry) { return entry.second.members.empty(); });
}

void Rendezvous::leave(ControlClients::Id client) {
  remove(
      [client](const std::string&, int, const Member& member) { return member.client == client; });
}

void Rendezvous::advance(Instant now) {
  std::set<ControlClients::Id> gone;
  for (const auto& [name, round] : rounds_) {
    for (const auto& [rank, member] : round.members) {
      if (round.is_full() && clients_.has_left(member.client)) {
        gone.insert(member.client);
      }
    }
  }
  remove([&gone](const std::string&, int, const Member& member) {
    return gone.contains(member.client);
  });
  for (auto& [name, round] : rounds_) {
    if (round.is_full()) {
      end(name, round, {}, now);
    } else if (round.until() <= now) {
      end(name, round,
          fmt::format("after {} {} of {} ranks had joined", duration_for_reading(now - round.begun),
                      round.members.size(), round.world),
          now);
    }
  }
  std::erase_if(rounds_, [](const auto& entry) { return entry.second.members.empty(); });
}

void Rendezvous::end(const std::string& name, Round& round, std::string_view why, Instant now) {
  if (counts_.size() >= kMaxNames && !counts_.contains(name)) {
    counts_.erase(
        std::ranges::min_element(counts_, {}, [](const auto& entry) { return entry.second.used; }));
  }
  Count& count = counts_[name];
  count.used = round.begun;
  RendezvousRound ended{name, ++count.rounds, round.world, round.begun, {}, {}, {}};
  ended.left.assign(round.left.begin(), round.left.end());
  for (int rank = 0; rank < round.world; ++rank) {
    if (const auto member = round.members.find(rank); member != round.members.end()) {
      ended.joined.push_back({rank, member->second.pid});
    } else {
      ended.missing.push_back(rank);
    }
  }
  JsonWriter json = begin_answer(why.empty() ? "done" : "timed_out");
  json.given("reason", why);
  json.field("name", name).field("round", ended.number).field("world", round.world);
  write_joined(json, ended);
  std::string reason;
  if (why.empty()) {
    messages::debug("rendezvous '{}': round {} is full after {}", name, ended.number,
                    duration_for_reading(now - round.begun));
  } else {
    json.array("missing", ended.missing).array("left", ended.left);
    reason = fmt::format(
        "{}; missing: {}{}", why, ranks_text(ended.missing),
        ended.left.empty() ? "" : "; of these, joined and left: " + ranks_text(ended.left));
    messages::warning("rendezvous '{}' failed: {}", name, reason);
  }
  answer(round, std::move(json).finish());
  core_.log->append(core_.records.rendezvous(ended, now, reason));
}

void Rendezvous::refuse_all(std::string_view reason) {
  for (auto& [name, round] : rounds_) {
    messages::debug("rendezvous '{}': {} of {} ranks refused: {}", name, round.members.size(),
                    round.world, reason);
    answer(round, answer_with_reason("refused", reason));
  }
  rounds_.clear();
}

void Rendezvous::answer(Round& round, const std::string& answer) {
  for (const auto& [rank, member] : std::exchange(round.members, {})) {
    clients_.finish(member.client, answer);
  }
}

Instant Rendezvous::next() const {
  Instant next = Instant::never();
  for (const auto& [name, round] : rounds_) {
    next = std::min(next, round.until());
  }
  return next;
}

}  // namespace filetimer
