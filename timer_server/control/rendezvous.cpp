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

// The most ranks that a reason names.
constexpr std::size_t kMostNamed = 32;

}  // namespace

Instant Rendezvous::Round::until() const {
  Instant first = Instant::never();
  for (const auto& [rank, member] : members) {
    first = std::min(first, member.until());
  }
  return first;
}

Status Rendezvous::check(const wire::Question& question) const {
  if (!question.rank || !question.world) {
    return failure("lacks rank or world");
  }
  const int rank = *question.rank;
  const int world = *question.world;
  if (question.name.empty() || question.name.size() > kMaxScopeNameBytes) {
    return failure(fmt::format("the rendezvous' name has {} bytes: expected 1 to {}",
                               question.name.size(), kMaxScopeNameBytes));
  }
  if (world < 1 || world > most_ranks_) {
    return failure(fmt::format("the world is {}: expected 1 to {} ranks", world, most_ranks_));
  }
  if (rank < 0 || rank >= world) {
    return failure(fmt::format("the rank is {}: expected 0 to {}", rank, world - 1));
  }
  const auto found = rounds_.find(question.name);
  if (found == rounds_.end()) {
    return {};
  }
  const Round& round = found->second;
  if (round.world != world) {
    return failure(fmt::format("the world is {}: the ranks that wait in rendezvous '{}' gave {}",
                               world, printable(question.name), round.world));
  }
  if (const auto same = round.members.find(rank); same != round.members.end()) {
    return failure(fmt::format("rank {} has joined rendezvous '{}' already (pid {})", rank,
                               printable(question.name), same->second.pid));
  }
  return {};
}

Status Rendezvous::join(const AcceptedRequest& request) {
  const std::string& name = request.question.name;
  const int rank = request.question.rank.value_or(-1);
  if (const auto found = rounds_.find(name); found != rounds_.end()) {
    const auto same = found->second.members.find(rank);
    if (same != found->second.members.end() && clients_.has_left(same->second.client)) {
      leave(same->second.client);
    }
  }
  FILETIMER_TRY(check(request.question));
  if (!clients_.grant(request.client, request.granted)) {
    return {};
  }
  Round& round = rounds_[name];
  if (round.members.empty()) {
    round.world = *request.question.world;
    round.begun = request.now;
  }
  round.members[rank] = request;
  round.left.erase(rank);
  messages::debug("rendezvous '{}': rank {} of {} joined (pid {}), granted {}", name, rank,
                  round.world, request.pid, duration_text(request.granted));
  return {};
}

void Rendezvous::leave(ControlClients::Id client) {
  for (auto& entry : rounds_) {
    Round& round = entry.second;
    std::erase_if(round.members, [&](const auto& member) {
      const bool is_gone = member.second.client == client;
      if (is_gone) {
        round.left.insert(member.first);
        messages::debug("rendezvous '{}': rank {} left", entry.first, member.first);
      }
      return is_gone;
    });
  }
  std::erase_if(rounds_, [](const auto& entry) { return entry.second.members.empty(); });
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
  std::ranges::for_each(gone, [this](ControlClients::Id client) { leave(client); });
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
    reason = fmt::format("{}; missing: {}{}", why, first_of(ended.missing, kMostNamed),
                         ended.left.empty()
                             ? ""
                             : "; of these, joined and left: " + first_of(ended.left, kMostNamed));
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
