// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/control/answers.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// The room for the lists in an answer that must be written as a whole.
constexpr std::size_t kWholeAnswer = kMaxAtomicWrite - 1024;

}  // namespace

ControlRequests::ControlRequests(EventLoop& loop, std::string dir, ReplyFolder replies,
                                 Duration max_wait, const Context& context)
    : dir_(std::move(dir)),
      max_wait_(max_wait),
      context_(context),
      replies_(std::move(replies)),
      clients_(loop, max_waiting_clients(),
               [this](WaitingClients::Id client) { on_withdrawn(client); }),
      rendezvous_(std::max(max_waiting_clients(), WaitingClients::kReserved + 1) -
                      WaitingClients::kReserved,
                  clients_, context.records, context.log) {}

void ControlRequests::take(const wire::Request& request, std::string_view line, Instant now) {
  loop_thread_.check();
  switch (queue_.add(line, now)) {
    case ControlQueue::Place::kNow:
      accept(request, line, now);
      break;
    case ControlQueue::Place::kLater:
      break;
    case ControlQueue::Place::kFull:
      context_.rejections.add(fmt::format("{} other control requests wait", queue_.waiting()), line,
                              request.pid);
      break;
  }
}

void ControlRequests::accept(const wire::Request& request, std::string_view line, Instant now) {
  const wire::Question& question = request.question;
  auto pipe = replies_.open(question.reply);
  if (!pipe) {
    context_.rejections.add(pipe.error().message, line, request.pid);
    return;
  }
  const auto client = clients_.add(std::move(*pipe), refuse_as_too_many(clients_.count()));
  if (!client) {
    return;
  }
  if (!(question.wait_s > 0)) {
    clients_.finish(
        *client, answer_with_reason(
                     "invalid", fmt::format("x_wait_s is {}: expected over 0", question.wait_s)));
    return;
  }
  answer({*client, question, request.pid,
          std::min(duration_from_seconds(question.wait_s), max_wait_), now});
}

void ControlRequests::answer(const Accepted& accepted) {
  using Answer = void (ControlRequests::*)(const Accepted&);
  constexpr std::pair<std::string_view, Answer> kAnswers[] = {
      {"ping", &ControlRequests::answer_ping},
      {"status", &ControlRequests::keep_for_status},
      {"dump", &ControlRequests::answer_dump},
      {"drain", &ControlRequests::answer_drain},
      {"shutdown", &ControlRequests::answer_shutdown},
      {"rendezvous", &ControlRequests::answer_rendezvous}};
  for (const auto& [name, function] : kAnswers) {
    if (accepted.question.request == name) {
      (this->*function)(accepted);
      return;
    }
  }
  clients_.finish(accepted.client,
                  answer_with_reason(
                      "invalid", fmt::format("x_request is '{}': expected ping, status, dump, "
                                             "drain, shutdown or rendezvous",
                                             printable(accepted.question.request.substr(0, 64)))));
}

void ControlRequests::answer_ping(const Accepted& accepted) {
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
  clients_.finish(accepted.client, std::move(json).finish());
}

// The status is that at the end of the iteration.
void ControlRequests::keep_for_status(const Accepted& accepted) {
  status_clients_.push_back(accepted.client);
}

void ControlRequests::answer_status(const std::function<void(JsonWriter&)>& write) {
  loop_thread_.check();
  while (!status_clients_.empty()) {
    JsonWriter json = begin_answer("done");
    json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
    write(json);
    clients_.finish(status_clients_.front(), std::move(json).finish());
    status_clients_.erase(status_clients_.begin());
  }
}

void ControlRequests::answer_dump(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  const Status begun =
      context_.dumps.begin(accepted.client, {.rank = question.rank, .pid = question.worker},
                           accepted.now + accepted.granted, accepted.now);
  if (!begun) {
    clients_.finish(accepted.client, answer_with_reason("refused", begun.error().message));
  } else if (!grant(accepted)) {
    context_.dumps.withdraw(accepted.client);
  }
}

void ControlRequests::answer_drain(const Accepted& accepted) {
  if (accepted.question.off && (context_.life.is_asked_to_end() || shutdown_)) {
    clients_.finish(accepted.client,
                    answer_with_reason("refused", "the server has been asked to end"));
    return;
  }
  is_drain_asked_ = !accepted.question.off;
  if (accepted.question.off) {
    for (const auto& request : shutdowns_.take_all()) {
      clients_.finish(request.client,
                      answer_with_reason("refused", "drain --off withdrew the shutdown"));
    }
  } else {
    rendezvous_.refuse_all("the server is draining");
  }
  context_.publish(announcement());
  JsonWriter json = begin_answer("done");
  json.field("draining", announcement() != Announcement::kNone)
      .field("open_scope_count", context_.scopes.count());
  clients_.finish(accepted.client, std::move(json).finish());
}

void ControlRequests::answer_shutdown(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  if (!question.graceful.empty() && question.graceful != "scopes" &&
      question.graceful != "workers") {
    clients_.finish(accepted.client,
                    answer_with_reason(
                        "invalid", fmt::format("x_graceful is '{}': expected 'scopes' or 'workers'",
                                               printable(question.graceful.substr(0, 64)))));
    return;
  }
  const bool is_graceful = !question.graceful.empty();
  if (!is_graceful && !question.force) {
    if (const std::size_t open = context_.scopes.count(); open > 0) {
      JsonWriter json = begin_answer("refused");
      json.field("reason", fmt::format("{} scope{} open", open, open == 1 ? " is" : "s are"));
      context_.scopes.write(json, false, kMaxRecordBytes);
      clients_.finish(accepted.client, std::move(json).finish());
      return;
    }
  }
  if (!grant(accepted)) {
    return;
  }
  rendezvous_.refuse_all("the server is shutting down");
  shutdowns_.add({.client = accepted.client,
                  .until = accepted.now + accepted.granted,
                  .is_forced_then = is_graceful && question.force,
                  .waits_for_workers = question.graceful == "workers"},
                 accepted.now);
  context_.publish(announcement());
  if (!is_graceful && (!shutdown_ || question.force)) {
    shutdown_ = {question.force ? "shutdown: now" : "shutdown: if_idle", question.force};
  }
}

void ControlRequests::answer_rendezvous(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  const std::string name(question.name);
  const auto refuse = [&](const std::string& answer, std::string_view why) {
    messages::debug("rendezvous '{}': {} is refused (pid {}): {}", name,
                    question.rank ? fmt::format("rank {}", *question.rank) : "a rank", accepted.pid,
                    why);
    clients_.finish(accepted.client, answer);
  };
  if (!question.rank || !question.world) {
    constexpr std::string_view kLacking = "lacks x_rank or x_world";
    refuse(answer_with_reason("invalid", kLacking), kLacking);
    return;
  }
  if (announcement() != Announcement::kNone) {
    constexpr std::string_view kDraining = "the server is draining: no new rendezvous";
    refuse(answer_with_reason("refused", kDraining), kDraining);
    return;
  }
  if (!clients_.has_room_to_wait()) {
    refuse(refuse_as_too_many(clients_.count() - 1), "too many clients wait for an answer");
    return;
  }
  const Status joined =
      rendezvous_.join({name, *question.rank, *question.world, accepted.pid, accepted.client},
                       accepted.granted, accepted.now);
  if (!joined) {
    refuse(answer_with_reason("invalid", joined.error().message), joined.error().message);
  } else if (!grant(accepted)) {
    rendezvous_.leave(accepted.client);
  }
}

// Answers how long the client may wait, and watches for its withdrawal from now on.
bool ControlRequests::grant(const Accepted& accepted) {
  try {
    clients_.watch(accepted.client);
  } catch (const std::system_error& error) {
    clients_.finish(accepted.client, answer_with_reason("refused", error.what()));
    return false;
  }
  JsonWriter json = begin_answer("granted");
  json.field("wait_s", std::chrono::duration<double>(accepted.granted).count());
  clients_.tell(accepted.client, std::move(json).finish());
  return true;
}

void ControlRequests::on_withdrawn(WaitingClients::Id client) {
  rendezvous_.leave(client);
  shutdowns_.withdraw(client);
  context_.dumps.withdraw(client);
}

std::optional<ControlRequests::Shutdown> ControlRequests::advance(Instant now, bool has_kills) {
  loop_thread_.check();
  while (auto line = queue_.take(Instant::now())) {
    const std::size_t size = line->size();
    line->resize(size + wire::Parser::padding());
    const std::string_view text(line->data(), size);
    if (const auto request = parser_.parse(text)) {
      accept(*request, text, now);
    }
  }
  rendezvous_.advance(now);
  if (!shutdown_ && shutdowns_.is_due(now)) {
    advance_shutdowns(now, has_kills);
  }
  next_dump_ = context_.dumps.advance(now);
  for (DumpRequests::Answer& answer : context_.dumps.take_answers()) {
    clients_.finish(answer.client, std::move(answer.text));
  }
  next_answer_ = clients_.advance(now);
  return std::exchange(shutdown_, std::nullopt);
}

void ControlRequests::advance_shutdowns(Instant now, bool has_kills) {
  if (shutdowns_.waiting().empty()) {
    (void)shutdowns_.note_look(now);
    return;
  }
  const LifeCycle& life = context_.life;
  const bool for_workers = shutdowns_.all_wait_for_workers();
  const bool is_over = context_.scopes.count() == 0 && !has_kills &&
                       (!for_workers || !context_.scopes.has_workers());
  if (is_over && !life.is_asked_to_end()) {
    shutdown_ = {for_workers ? "shutdown: workers" : "shutdown: graceful", false};
  }
  if (shutdown_ || life.is_stopping()) {
    (void)shutdowns_.note_look(now);
    return;
  }
  end_overdue_shutdowns(now);
  if (!shutdown_ && shutdowns_.note_look(now)) {
    JsonWriter json = begin_answer("waiting");
    context_.scopes.write(json, for_workers, kWholeAnswer);
    const std::string waiting = std::move(json).finish();
    for (const auto& request : shutdowns_.waiting()) {
      clients_.tell(request.client, waiting);
    }
  }
}

// Withdraws the shutdowns whose time is up, or has one carried out by force.
void ControlRequests::end_overdue_shutdowns(Instant now) {
  const std::vector<ShutdownRequests::Request> overdue = shutdowns_.take_overdue(now);
  const auto forced = std::ranges::find_if(overdue, &ShutdownRequests::Request::is_forced_then);
  if (forced != overdue.end()) {
    for (const auto& request : overdue) {
      shutdowns_.add(request, now);
    }
    shutdown_ = {
        forced->waits_for_workers ? "shutdown: workers_or_now" : "shutdown: graceful_or_now", true};
    return;
  }
  LifeCycle& life = context_.life;
  const std::string_view why_late = life.phase() == LifeCycle::Phase::kCommandEnded
                                        ? "kills are under way"
                                    : life.is_asked_to_end() ? "COMMAND has not ended"
                                                             : "its time is up";
  if (shutdowns_.waiting().empty()) {
    (void)life.handle(LifeCycle::Event::kShutdownWithdrawn, now);
    context_.publish(announcement());
  }
  for (const auto& request : overdue) {
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", why_late);
    context_.scopes.write(json, request.waits_for_workers, kMaxRecordBytes);
    clients_.finish(request.client, std::move(json).finish());
  }
}

Instant ControlRequests::next() const {
  return std::min({queue_.waiting() > 0 || shutdown_ ? Instant{} : Instant::never(),
                   rendezvous_.next(), shutdowns_.next_look(), next_answer_, next_dump_});
}

Announcement ControlRequests::announcement() const {
  return context_.life.is_asked_to_end() || !shutdowns_.waiting().empty() ? Announcement::kShutdown
         : is_drain_asked_                                                ? Announcement::kDraining
                                                                          : Announcement::kNone;
}

void ControlRequests::sweep() {
  loop_thread_.check();
  if (!replies_.is_in_place()) {
    if (auto made = ReplyFolder::make(dir_)) {
      replies_ = std::move(*made);
    }
  }
  replies_.remove_abandoned();
}

// The reply pipes close when the process exits. Clients take that end of file as proof that the
// runtime directory is free.
void ControlRequests::answer_stopped() {
  loop_thread_.check();
  rendezvous_.refuse_all("the server was stopped");
  JsonWriter json = begin_answer("done");
  context_.scopes.write(json, false, kMaxRecordBytes);
  const std::string answer = std::move(json).finish();
  for (const auto& request : shutdowns_.waiting()) {
    clients_.finish_at_exit(request.client, answer);
  }
}

}  // namespace filetimer
