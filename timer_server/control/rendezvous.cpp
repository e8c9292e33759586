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

template <class IsGone>
void Rendezvous::remove_members(const std::string& name, Round& round, IsGone is_gone) {
  std::erase_if(round.members, [&](const auto& member) {
    const auto& [rank, request] = member;
    if (!is_gone(request.client)) {
      return false;
    }
    round.left.insert(rank);
    messages::debug("rendezvous '{}': rank {} left", name, rank);
    return true;
  });
}

void Rendezvous::remove_gone(const std::string& name, Round& round) {
  remove_members(name, round, [this](ControlClients::Id each) { return clients_.has_left(each); });
}

Status Rendezvous::join(const AcceptedRequest& request) {
  const wire::Question& question = request.question;
  const std::string& name = question.name;
  if (!question.rank || !question.world) {
    return failure("lacks rank or world");
  }
  const int rank = *question.rank;
  const int world = *question.world;
  if (name.empty() || name.size() > kMaxScopeNameBytes) {
    return failure(fmt::format("the rendezvous' name has {} bytes: expected 1 to {}", name.size(),
                               kMaxScopeNameBytes));
  }
  const int most = static_cast<int>(clients_.most_that_wait());
  if (world < 1 || world > most) {
    return failure(fmt::format("the world is {}: expected 1 to {} ranks", world, most));
  }
  if (rank < 0 || rank >= world) {
    return failure(fmt::format("the rank is {}: expected 0 to {}", rank, world - 1));
  }
  Round& round = rounds_[name];
  if (round.world != world || round.members.contains(rank)) {
    remove_gone(name, round);
  }
  if (round.members.empty()) {
    round = {.world = world, .begun = request.now};
  }
  if (round.world != world) {
    return failure(fmt::format("the world is {}: the ranks that wait in rendezvous '{}' gave {}",
                               world, printable(name), round.world));
  }
  if (round.members.contains(rank)) {
    return failure(fmt::format("rank {} has joined rendezvous '{}' already (pid {})", rank,
                               printable(name), round.members[rank].pid));
  }
  if (!clients_.grant(request.client, request.granted)) {
    return {};
  }
  round.members[rank] = request;
  round.left.erase(rank);
  messages::debug("rendezvous '{}': rank {} of {} joined (pid {}), granted {}", name, rank,
                  round.world, request.pid, duration_text(request.granted));
  return {};
}

void Rendezvous::leave(ControlClients::Id client) {
  for (auto& [name, round] : rounds_) {
    remove_members(name, round, [client](ControlClients::Id each) { return each == client; });
  }
  std::erase_if(rounds_, [](const auto& entry) { return entry.second.members.empty(); });
}

void Rendezvous::advance(Instant now, bool may_be_joining) {
  for (auto& [name, round] : rounds_) {
    if (round.is_full()) {
      remove_gone(name, round);
    }
    if (round.is_full()) {
      end(name, round, {}, now);
    } else if (round.until() <= now && !may_be_joining) {
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
    counts_.clear();
  }
  const std::uint64_t number = ++counts_[name];
  const bool is_full = why.empty();
  std::vector<std::int64_t> missing;
  for (int rank = 0; rank < round.world; ++rank) {
    if (!round.members.contains(rank)) {
      missing.push_back(rank);
    }
  }
  const std::vector<std::int64_t> left(round.left.begin(), round.left.end());
  JsonWriter answer_json = begin_answer(is_full ? "done" : "timed_out");
  answer_json.given("reason", why);
  JsonWriter record = core_.records.begin(is_full ? "rendezvous" : "rendezvous_timeout");
  for (JsonWriter* const json : {&answer_json, &record}) {
    json->field("name", name).field("round", number).field("world", round.world);
    json->begin_array("joined");
    for (const auto& [rank, member] : round.members) {
      json->begin_object().field("rank", rank).field("pid", member.pid).end_object();
    }
    json->end_array().array("missing", missing);
    if (!is_full) {
      json->array("left", left);
    }
  }
  record.fixed("waited_s", in_seconds(now - round.begun), 6);
  if (is_full) {
    messages::debug("rendezvous '{}': round {} is full after {}", name, number,
                    duration_for_reading(now - round.begun));
  } else {
    const std::string reason = fmt::format(
        "{}; missing: {}{}", why, first_of(missing, kMostNamed),
        left.empty() ? "" : "; of these, joined and left: " + first_of(left, kMostNamed));
    messages::warning("rendezvous '{}' failed: {}", name, reason);
    record.field("reason", reason);
  }
  answer(round, answer_json.finish());
  core_.log->append_detail(record.finish());
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
