// SPDX-License-Identifier: MIT
#include "timer_server/questions/questions.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/questions/answers.hpp"

namespace filetimer {
namespace {

// The room for the lists in an answer that must be written as a whole.
constexpr std::size_t kWholeAnswer = kMaxAtomicWrite - 1024;

}  // namespace

Questions::Questions(sd_event* loop, std::string dir, ReplyFolder replies, Duration max_wait,
                     const Context& context)
    : dir_(std::move(dir)),
      max_wait_(max_wait),
      context_(context),
      replies_(std::move(replies)),
      askers_(loop, most_askers(), [this](Askers::Id asker) { on_withdrawn(asker); }),
      rendezvous_(std::max(most_askers(), Askers::kReserved + 1) - Askers::kReserved, askers_,
                  context.records, context.log) {}

void Questions::take(const wire::Request& request, std::string_view line, Instant now) {
  switch (queue_.add(line, now)) {
    case QuestionQueue::Place::kNow:
      consider(request, line, now);
      break;
    case QuestionQueue::Place::kLater:
      break;
    case QuestionQueue::Place::kFull:
      context_.rejections.add(fmt::format("{} other control requests wait", queue_.waiting()), line,
                              request.pid);
      break;
  }
}

void Questions::consider(const wire::Request& request, std::string_view line, Instant now) {
  const wire::Question& question = request.question;
  auto pipe = replies_.open(question.reply);
  if (!pipe) {
    context_.rejections.add(pipe.error().message, line, request.pid);
    return;
  }
  const auto asker = askers_.add(std::move(*pipe), refuse_as_too_many(askers_.count()));
  if (!asker) {
    return;
  }
  if (!(question.wait_s > 0)) {
    askers_.finish(*asker,
                   answer_with_reason(
                       "invalid", fmt::format("x_wait_s is {}: expected over 0", question.wait_s)));
    return;
  }
  answer({*asker, question, request.pid,
          std::min(duration_from_seconds(question.wait_s), max_wait_), now});
}

void Questions::answer(const Asked& asked) {
  using Answer = void (Questions::*)(const Asked&);
  constexpr std::pair<std::string_view, Answer> kAnswers[] = {
      {"ping", &Questions::answer_ping},
      {"status", &Questions::answer_status},
      {"drain", &Questions::answer_drain},
      {"shutdown", &Questions::answer_shutdown},
      {"rendezvous", &Questions::answer_rendezvous}};
  for (const auto& [name, function] : kAnswers) {
    if (asked.question.request == name) {
      (this->*function)(asked);
      return;
    }
  }
  askers_.finish(
      asked.asker,
      answer_with_reason("invalid", fmt::format("x_request is '{}': expected ping, status, drain, "
                                                "shutdown or rendezvous",
                                                printable(asked.question.request.substr(0, 64)))));
}

void Questions::answer_ping(const Asked& asked) {
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
  askers_.finish(asked.asker, std::move(json).finish());
}

void Questions::answer_status(const Asked& asked) {
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
  context_.host.write_status(json, asked.now);
  askers_.finish(asked.asker, std::move(json).finish());
}

void Questions::answer_drain(const Asked& asked) {
  if (asked.question.off && (context_.life.is_asked_to_end() || shutdown_)) {
    askers_.finish(asked.asker, answer_with_reason("refused", "the server has been asked to end"));
    return;
  }
  is_drain_asked_ = !asked.question.off;
  if (asked.question.off) {
    for (const auto& request : shutdowns_.take_all()) {
      askers_.finish(request.client,
                     answer_with_reason("refused", "drain --off withdrew the shutdown"));
    }
  } else {
    rendezvous_.refuse_all("the server is draining");
  }
  context_.host.announce();
  JsonWriter json = begin_answer("done");
  json.field("draining", announcement() != Announcement::kNone)
      .field("open_scope_count", context_.host.open_scope_count());
  askers_.finish(asked.asker, std::move(json).finish());
}

void Questions::answer_shutdown(const Asked& asked) {
  const wire::Question& question = asked.question;
  if (!question.graceful.empty() && question.graceful != "scopes" &&
      question.graceful != "workers") {
    askers_.finish(asked.asker,
                   answer_with_reason(
                       "invalid", fmt::format("x_graceful is '{}': expected 'scopes' or 'workers'",
                                              printable(question.graceful.substr(0, 64)))));
    return;
  }
  const bool is_graceful = !question.graceful.empty();
  if (!is_graceful && !question.force) {
    if (const std::size_t open = context_.host.open_scope_count(); open > 0) {
      JsonWriter json = begin_answer("refused");
      json.field("reason", fmt::format("{} scope{} open", open, open == 1 ? " is" : "s are"));
      context_.host.write_open_scopes(json, false, kMaxRecordBytes);
      askers_.finish(asked.asker, std::move(json).finish());
      return;
    }
  }
  if (!grant(asked)) {
    return;
  }
  rendezvous_.refuse_all("the server is shutting down");
  shutdowns_.add({.client = asked.asker,
                  .until = asked.now + asked.granted,
                  .is_forced_then = is_graceful && question.force,
                  .waits_for_workers = question.graceful == "workers"},
                 asked.now);
  context_.host.announce();
  if (!is_graceful && (!shutdown_ || question.force)) {
    shutdown_ = {question.force ? "shutdown --force" : "shutdown", question.force};
  }
}

void Questions::answer_rendezvous(const Asked& asked) {
  const wire::Question& question = asked.question;
  const std::string name(question.name);
  const auto refuse = [&](const std::string& answer, std::string_view why) {
    messages::debug("rendezvous '{}': {} is refused (pid {}): {}", name,
                    question.rank ? fmt::format("rank {}", *question.rank) : "a rank", asked.pid,
                    why);
    askers_.finish(asked.asker, answer);
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
  if (!askers_.has_room_to_wait()) {
    refuse(refuse_as_too_many(askers_.count() - 1), "too many clients wait for an answer");
    return;
  }
  const Status joined = rendezvous_.join(
      {name, *question.rank, *question.world, asked.pid, asked.asker}, asked.granted, asked.now);
  if (!joined) {
    refuse(answer_with_reason("invalid", joined.error().message), joined.error().message);
  } else if (!grant(asked)) {
    rendezvous_.leave(asked.asker);
  }
}

// Answers how long the client may wait, and watches for its withdrawal from now on.
bool Questions::grant(const Asked& asked) {
  try {
    askers_.watch(asked.asker);
  } catch (const std::system_error& error) {
    askers_.finish(asked.asker, answer_with_reason("refused", error.what()));
    return false;
  }
  JsonWriter json = begin_answer("granted");
  json.field("wait_s", std::chrono::duration<double>(asked.granted).count());
  askers_.tell(asked.asker, std::move(json).finish());
  return true;
}

void Questions::on_withdrawn(Askers::Id asker) {
  rendezvous_.leave(asker);
  shutdowns_.withdraw(asker);
}

std::optional<Questions::Shutdown> Questions::advance(Instant now) {
  while (auto line = queue_.take(Instant::now())) {
    const std::size_t size = line->size();
    line->resize(size + wire::Parser::padding());
    const std::string_view text(line->data(), size);
    if (const auto request = parser_.parse(text)) {
      consider(*request, text, now);
    }
  }
  rendezvous_.advance(now);
  if (!shutdown_ && shutdowns_.is_due(now)) {
    look_at_shutdowns(now);
  }
  next_answer_ = askers_.advance(now);
  return std::exchange(shutdown_, std::nullopt);
}

void Questions::look_at_shutdowns(Instant now) {
  if (shutdowns_.waiting().empty()) {
    (void)shutdowns_.note_look(now);
    return;
  }
  LifeCycle& life = context_.life;
  const bool for_workers = shutdowns_.all_wait_for_workers();
  const bool is_over = context_.host.open_scope_count() == 0 && !context_.host.has_kills() &&
                       (!for_workers || !context_.host.has_workers());
  if (is_over && !life.is_asked_to_end()) {
    shutdown_ = {"shutdown --graceful", false};
  }
  if (shutdown_ || life.is_stopping()) {
    (void)shutdowns_.note_look(now);
    return;
  }
  const std::vector<ShutdownRequests::Request> overdue = shutdowns_.take_overdue(now);
  if (std::ranges::any_of(overdue, &ShutdownRequests::Request::is_forced_then)) {
    for (const auto& request : overdue) {
      shutdowns_.add(request, now);
    }
    shutdown_ = {"shutdown --graceful --force", true};
    return;
  }
  const std::string_view why_late = life.phase() == LifeCycle::Phase::kCommandEnded
                                        ? "kills are under way"
                                    : life.is_asked_to_end() ? "COMMAND has not ended"
                                                             : "its time is up";
  if (shutdowns_.waiting().empty()) {
    (void)life.handle(LifeCycle::Event::kShutdownWithdrawn, now);
    context_.host.announce();
  }
  for (const auto& request : overdue) {
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", why_late);
    context_.host.write_open_scopes(json, request.waits_for_workers, kMaxRecordBytes);
    askers_.finish(request.client, std::move(json).finish());
  }
  if (shutdowns_.note_look(now)) {
    JsonWriter json = begin_answer("waiting");
    context_.host.write_open_scopes(json, for_workers, kWholeAnswer);
    const std::string waiting = std::move(json).finish();
    for (const auto& request : shutdowns_.waiting()) {
      askers_.tell(request.client, waiting);
    }
  }
}

Instant Questions::next() const {
  return std::min({queue_.waiting() > 0 || shutdown_ ? Instant{} : Instant::never(),
                   rendezvous_.next(), shutdowns_.next_look(), next_answer_});
}

Announcement Questions::announcement() const {
  return context_.life.is_asked_to_end() || !shutdowns_.waiting().empty() ? Announcement::kShutdown
         : is_drain_asked_                                                ? Announcement::kDraining
                                                                          : Announcement::kNone;
}

void Questions::sweep() {
  if (!replies_.is_in_place()) {
    if (auto made = ReplyFolder::make(dir_)) {
      replies_ = std::move(*made);
    }
  }
  replies_.remove_abandoned();
}

// The reply pipes close when the process exits. Clients take that end of file as proof that the
// runtime directory is free.
void Questions::answer_stopped() {
  rendezvous_.refuse_all("the server was stopped");
  JsonWriter json = begin_answer("done");
  context_.host.write_open_scopes(json, false, kMaxRecordBytes);
  const std::string answer = std::move(json).finish();
  for (const auto& request : shutdowns_.waiting()) {
    askers_.finish_at_exit(request.client, answer);
  }
}

}  // namespace filetimer
