// SPDX-License-Identifier: MIT
#include "timer_server/control/rendezvous_desk.hpp"

#include <fmt/format.h>

#include "common/duration_text.hpp"
#include "timer_server/control/answers.hpp"
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

void write_round(JsonWriter& json, const Rendezvous::Round& round) {
  json.field("name", round.name).field("round", round.number).field("world", round.world);
  write_joined(json, round);
}

// Returns the missing ranks in words, for a message.
std::string missing_text(const Rendezvous::Round& round) {
  std::string text = "; missing: " + ranks_text(round.missing);
  if (!round.left.empty()) {
    text += "; of these, joined and left: " + ranks_text(round.left);
  }
  return text;
}

}  // namespace

Status RendezvousDesk::join(const Rank& rank, Duration patience, Instant now) {
  if (const auto before = rendezvous_.waiting_as(rank.name, rank.rank);
      before && clients_.has_left(*before)) {
    leave(*before);
  }
  Status joined = rendezvous_.join(rank.name, rank.world, {rank.rank, rank.pid, rank.client},
                                   now + patience, now);
  if (joined) {
    messages::debug("rendezvous '{}': rank {} of {} joined (pid {}), granted {}", rank.name,
                    rank.rank, rank.world, rank.pid, duration_text(patience));
  }
  return joined;
}

void RendezvousDesk::leave(WaitingClients::Id client) {
  if (const auto left = rendezvous_.leave(client)) {
    messages::debug("rendezvous '{}': rank {} left", left->name, left->rank);
  }
}

void RendezvousDesk::advance(Instant now) {
  for (const Rendezvous::Client client : rendezvous_.in_full_rounds()) {
    if (clients_.has_left(client)) {
      leave(client);
    }
  }
  for (const Rendezvous::Round& round : rendezvous_.take_full()) {
    JsonWriter json = begin_answer("done");
    write_round(json, round);
    answer(round, std::move(json).finish());
    messages::debug("rendezvous '{}': round {} is full after {}", round.name, round.number,
                    duration_for_reading(now - round.begun));
    log_.append(records_.rendezvous(round, now, {}));
  }
  for (const Rendezvous::Round& round : rendezvous_.take_failed(now)) {
    const std::string why =
        fmt::format("after {} {} of {} ranks had joined", duration_for_reading(now - round.begun),
                    round.joined.size(), round.world);
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", why);
    write_round(json, round);
    json.array("missing", round.missing).array("left", round.left);
    answer(round, std::move(json).finish());
    const std::string missing = missing_text(round);
    messages::warning("rendezvous '{}' failed: {}{}", round.name, why, missing);
    log_.append(records_.rendezvous(round, now, why + missing));
  }
}

void RendezvousDesk::refuse_all(std::string_view reason) {
  for (const Rendezvous::Round& round : rendezvous_.take_all()) {
    messages::debug("rendezvous '{}': {} of {} ranks refused: {}", round.name, round.joined.size(),
                    round.world, reason);
    answer(round, answer_with_reason("refused", reason));
  }
}

void RendezvousDesk::answer(const Rendezvous::Round& round, const std::string& answer) {
  for (const Rendezvous::Member& member : round.joined) {
    clients_.finish(member.client, answer);
  }
}

}  // namespace filetimer
