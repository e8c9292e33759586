// What the server is asked: who gets an answer, and what drain, shutdown and rendezvous mean to the
// workers that are watched.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

using std::chrono::milliseconds;

// A release on a page wakes nobody: while a shutdown waits for scopes, the pages are looked at so
// often.
constexpr Duration kShutdownLook = milliseconds{20};
constexpr Duration kWaitingToldEvery = std::chrono::seconds{1};
// Open scopes, and workers, that an answer lists; and its bytes where it must be written whole.
constexpr std::size_t kMostListed = 64;
constexpr std::size_t kWholeAnswer = kMaxAtomicWrite - 1024;
constexpr std::size_t kMostInATurn = 64;  // questions
constexpr Duration kLongestInATurn = milliseconds{5};
constexpr std::size_t kMostWaiting = 4096;  // beyond them
constexpr Askers::Id kNobody = 0;

JsonWriter begin_answer(std::string_view answer) {
  JsonWriter json;
  json.field("version", wire::kVersion).field("answer", answer);
  return json;
}

std::string with_reason(std::string_view answer, std::string_view reason) {
  JsonWriter json = begin_answer(answer);
  json.field("reason", reason);
  return std::move(json).finish();
}

std::string too_many(std::size_t others) {
  return with_reason("refused", fmt::format("{} others wait for an answer: no more fit", others));
}

std::string_view name_of(Announcement announcement) {
  switch (announcement) {
    case Announcement::kShutdown:
      return "shutdown";
    case Announcement::kDraining:
      return "draining";
    case Announcement::kNone:
      break;
  }
  return "none";
}

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

// In words, for who has no lists.
std::string who_is_missing(const Rendezvous::Round& round) {
  std::string who = "; missing: " + ranks_text(round.missing);
  if (!round.left.empty()) {
    who += "; of these had joined and left: " + ranks_text(round.left);
  }
  return who;
}

}  // namespace

// An answer takes longer than a timer's line, and a deadline waits while the pipe is read: what is
// beyond the measure of one turn waits for the next.
void Server::on_question(const wire::Request& request, std::string_view line) {
  if (questions_.empty() && fits_in_turn()) {
    consider(request, line);
  } else if (questions_.size() < kMostWaiting) {
    questions_.emplace_back(line);
  } else {
    rejections_.add(fmt::format("{} other questions wait to be looked at", questions_.size()), line,
                    request.pid);
  }
}

// Counts one more question of this turn, if it has room for one.
bool Server::fits_in_turn() {
  const Instant now = Instant::now();
  if (considered_ == 0) {
    considered_since_ = now;
  }
  if (considered_ >= kMostInATurn || now - considered_since_ >= kLongestInATurn) {
    return false;
  }
  ++considered_;
  return true;
}

void Server::take_up_questions() {
  while (!questions_.empty() && fits_in_turn()) {
    std::string line = std::move(questions_.front());
    questions_.pop_front();
    const std::size_t size = line.size();
    line.resize(size + wire::Parser::padding());
    const std::string_view text(line.data(), size);
    if (const auto request = question_parser_.parse(text)) {
      consider(*request, text);
    }
  }
}

void Server::consider(const wire::Request& request, std::string_view line) {
  const auto reject = [&](std::string_view reason) { rejections_.add(reason, line, request.pid); };
  const wire::Question& question = request.question;
  auto pipe = reply_folder_.open(question.reply);
  if (!pipe) {
    reject(pipe.error().message);
    return;
  }
  const auto asker = askers_->add(std::move(*pipe), too_many(askers_->count()));
  if (!asker) {
    return;
  }
  if (!(question.wait_s > 0)) {
    askers_->finish(*asker, with_reason("invalid", fmt::format("x_wait_s is {}: expected over 0",
                                                               question.wait_s)));
    return;
  }
  const Duration granted = std::min(duration_from_seconds(question.wait_s), settings_.max_wait);
  answer({*asker, question, request.pid, granted});
}

void Server::answer(const Asked& asked) {
  using Answer = void (Server::*)(const Asked&);
  constexpr std::pair<std::string_view, Answer> kAnswers[] = {
      {"ping", &Server::answer_ping},
      {"status", &Server::answer_status},
      {"drain", &Server::answer_drain},
      {"shutdown", &Server::answer_shutdown},
      {"rendezvous", &Server::answer_rendezvous}};
  for (const auto& [name, function] : kAnswers) {
    if (asked.question.request == name) {
      (this->*function)(asked);
      return;
    }
  }
  askers_->finish(
      asked.asker,
      with_reason("invalid", fmt::format("x_request is '{}': expected ping, status, drain, "
                                         "shutdown or rendezvous",
                                         printable(asked.question.request.substr(0, 64)))));
}

void Server::answer_ping(const Asked& asked) {
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
  askers_->finish(asked.asker, std::move(json).finish());
}

void Server::answer_status(const Asked& asked) {
  const Instant now = Instant::now();
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid())
      .field("server_version", FILETIMER_VERSION)
      .fixed("uptime_s", std::chrono::duration<double>(now - started_).count(), 3)
      .field("dir", dir_)
      .field("fifo", pipe_.path())
      .field("log", log_->path());
  if (command_) {
    json.field("command_pid", command_->pid());
  }
  json.field("announcement", name_of(announcement()))
      .field("workers", table_.worker_count())
      .field("open_scopes", count_open())
      .field("requests", requests_)
      .field("rejected", rejections_.total())
      .field("expired", expired_)
      .field("killed", killed_)
      .field("kills_under_way", ladder_.count())
      .field("unkillable",
             std::ranges::count_if(unkillable_, [](const auto& one) { return one->is_alive(); }))
      .field("lost_records", log_->lost_records())
      .field("askers", askers_->count() - 1)  // that wait, but for this one
      .field("descriptors", open_descriptors());
  if (!log_->is_working(now)) {
    json.field("log_trouble", "it can't be written: records wait in memory");
  }
  if (!pipe_trouble_.empty()) {
    json.field("pipe_trouble", pipe_trouble_);
  }
  write_standing(json);
  write_settings(json);
  askers_->finish(asked.asker, std::move(json).finish());
}

void Server::answer_drain(const Asked& asked) {
  if (asked.question.off && is_told_to_end_) {
    askers_->finish(asked.asker, with_reason("refused", "the server is told to end"));
    return;
  }
  is_drain_asked_ = !asked.question.off;
  if (asked.question.off) {
    for (const ShutdownAsker& waiting : std::exchange(shutdown_askers_, {})) {
      askers_->finish(waiting.asker, with_reason("refused", "drain --off took the shutdown back"));
    }
  } else {
    refuse_rounds("the server is draining");
  }
  announce();
  JsonWriter json = begin_answer("done");
  json.field("draining", is_draining()).field("open_scope_count", count_open());
  askers_->finish(asked.asker, std::move(json).finish());
}

void Server::answer_shutdown(const Asked& asked) {
  const wire::Question& question = asked.question;
  if (!question.graceful.empty() && question.graceful != "scopes" &&
      question.graceful != "workers") {
    askers_->finish(
        asked.asker,
        with_reason("invalid", fmt::format("x_graceful is '{}': expected 'scopes' or "
                                           "'workers'",
                                           printable(question.graceful.substr(0, 64)))));
    return;
  }
  const bool is_graceful = !question.graceful.empty();
  if (!is_graceful && !question.force) {
    if (const std::size_t open = count_open(); open > 0) {
      JsonWriter json = begin_answer("refused");
      json.field("reason", fmt::format("{} scope{} open", open, open == 1 ? " is" : "s are"));
      write_open(json, false, kMaxRecordBytes);
      askers_->finish(asked.asker, std::move(json).finish());
      return;
    }
  }
  const Instant now = Instant::now();
  if (!grant(asked)) {
    return;
  }
  refuse_rounds("the server is shutting down");
  shutdown_askers_.push_back({asked.asker, now + asked.granted, is_graceful && question.force,
                              question.graceful == "workers"});
  next_waiting_told_ = now;
  next_shutdown_look_ = now;
  announce();
  if (!is_graceful) {
    shut_down(question.force ? "shutdown --force" : "shutdown", question.force);
  }
}

void Server::answer_rendezvous(const Asked& asked) {
  const wire::Question& question = asked.question;
  const std::string name(question.name);
  const auto refuse = [&](const std::string& answer, std::string_view why) {
    messages::debug("rendezvous '{}': {} is refused (pid {}): {}", name,
                    question.rank ? fmt::format("rank {}", *question.rank) : "a rank", asked.pid,
                    why);
    askers_->finish(asked.asker, answer);
  };
  if (!question.rank || !question.world) {
    constexpr std::string_view kLacking = "lacks x_rank or x_world";
    refuse(with_reason("invalid", kLacking), kLacking);
    return;
  }
  if (is_draining()) {
    constexpr std::string_view kDraining = "the server is draining: no new rendezvous";
    refuse(with_reason("refused", kDraining), kDraining);
    return;
  }
  const Instant now = Instant::now();
  if (!askers_->has_room_to_wait()) {
    refuse(too_many(askers_->count() - 1), "too many wait for an answer");
    return;
  }
  if (const auto before = rendezvous_.waiting_as(name, *question.rank);
      before && askers_->has_left(*before)) {
    leave_rendezvous(*before);  // a rank that was started again
  }
  const Status joined = rendezvous_.join(
      name, *question.world, {*question.rank, asked.pid, asked.asker}, now + asked.granted, now);
  if (!joined) {
    refuse(with_reason("invalid", joined.error().message), joined.error().message);
    return;
  }
  messages::debug("rendezvous '{}': rank {} of {} joined (pid {}), granted {}", name,
                  *question.rank, *question.world, asked.pid, duration_text(asked.granted));
  if (!grant(asked)) {
    leave_rendezvous(asked.asker);
  }
}

void Server::leave_rendezvous(Askers::Id asker) {
  if (const auto left = rendezvous_.leave(asker)) {
    messages::debug("rendezvous '{}': rank {} left", left->name, left->rank);
  }
}

// Says how long it may take, and notices from now on when who asked has gone.
bool Server::grant(const Asked& asked) {
  try {
    askers_->watch(asked.asker);
  } catch (const std::system_error& error) {
    askers_->finish(asked.asker, with_reason("refused", error.what()));
    return false;
  }
  JsonWriter json = begin_answer("granted");
  json.field("wait_s", std::chrono::duration<double>(asked.granted).count());
  askers_->tell(asked.asker, std::move(json).finish());
  return true;
}

// A shutdown goes on without who asked for it; of all such there is one.
void Server::on_withdrawn(Askers::Id asker) {
  leave_rendezvous(asker);
  const auto left = std::ranges::find(shutdown_askers_, asker, &ShutdownAsker::asker);
  if (left != shutdown_askers_.end()) {
    left->asker = kNobody;
    const auto before = std::ranges::find_if(shutdown_askers_, [&](const ShutdownAsker& other) {
      return other.asker == kNobody && &other != &*left;
    });
    if (before != shutdown_askers_.end()) {
      before->until = std::max(before->until, left->until);
      before->then_forced = before->then_forced || left->then_forced;
      before->waits_for_workers = before->waits_for_workers && left->waits_for_workers;
      shutdown_askers_.erase(left);
    }
  }
  turn();
}

void Server::refuse_rounds(std::string_view reason) {
  for (const Rendezvous::Round& round : rendezvous_.take_all()) {
    messages::debug("rendezvous '{}': refused to the {} of {} that had joined: {}", round.name,
                    round.joined.size(), round.world, reason);
    tell_joined(round, with_reason("refused", reason));
  }
}

// Who removes the folder, which is empty most of the time, must not make the server deaf.
void Server::look_after_replies() {
  if (!reply_folder_.is_in_place()) {
    if (auto made = ReplyFolder::make(dir_)) {
      reply_folder_ = std::move(*made);
    }
  }
  reply_folder_.clear_away();
}

void Server::look_after_askers(Instant now) {
  take_up_questions();
  for (const Rendezvous::Asker asker : rendezvous_.in_full_rounds()) {
    if (askers_->has_left(asker)) {
      leave_rendezvous(asker);
    }
  }
  for (const Rendezvous::Round& round : rendezvous_.take_full()) {
    JsonWriter json = begin_answer("done");
    write_round(json, round);
    tell_joined(round, std::move(json).finish());
    messages::debug("rendezvous '{}': round {} is full after {}", round.name, round.number,
                    duration_for_reading(now - round.begun));
    log_->append(records_.rendezvous(round, now, {}));
  }
  for (const Rendezvous::Round& round : rendezvous_.take_failed(now)) {
    const std::string why =
        fmt::format("after {} {} of {} ranks had joined", duration_for_reading(now - round.begun),
                    round.joined.size(), round.world);
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", why);
    write_round(json, round);
    json.array("missing", round.missing).array("left", round.left);
    tell_joined(round, std::move(json).finish());
    const std::string who = who_is_missing(round);
    messages::warning("rendezvous '{}' failed: {}{}", round.name, why, who);
    log_->append(records_.rendezvous(round, now, why + who));
  }
  if (now >= next_shutdown_look_) {
    look_after_shutdown(now);
  }
}

void Server::tell_joined(const Rendezvous::Round& round, const std::string& answer) {
  for (const Rendezvous::Member& member : round.joined) {
    askers_->finish(member.asker, answer);
  }
}

// --expect-workers, of those that live: told once, when all have shown up or the time is up.
void Server::look_after_expected(Instant now) {
  if (join_by_.is_never()) {
    return;
  }
  if (arrived_.size() >= settings_.expect_workers || now >= join_by_) {
    // One that crashed and was started again is one.
    std::erase_if(arrived_, [](const auto& worker) { return !worker.process->is_alive(); });
  }
  const bool have_all = arrived_.size() >= settings_.expect_workers;
  if (!have_all && now < join_by_) {
    return;
  }
  join_by_ = Instant::never();
  Rendezvous::Round round;
  round.name = "workers";
  round.number = 1;
  round.world = static_cast<int>(settings_.expect_workers);
  round.begun = started_;
  std::vector<bool> has_joined(settings_.expect_workers);
  bool knows_ranks = true;
  for (const WorkerIdentity& worker : std::exchange(arrived_, {})) {
    const auto& facts = *worker.facts;
    const int rank = facts && facts->rank ? *facts->rank : Rendezvous::kUnknownRank;
    round.joined.push_back({rank, worker.process->pid, 0});
    if (rank >= 0 && rank < round.world) {
      has_joined[static_cast<std::size_t>(rank)] = true;
    } else {
      knows_ranks = false;
    }
  }
  if (have_all) {
    log_->append(records_.rendezvous(round, now, {}));
    return;
  }
  for (int rank = 0; knows_ranks && !round.joined.empty() && rank < round.world; ++rank) {
    if (!has_joined[static_cast<std::size_t>(rank)]) {
      round.missing.push_back(rank);
    }
  }
  const std::string why =
      fmt::format("after {} {} of {} workers had shown up (--expect-workers){}",
                  duration_for_reading(now - started_), round.joined.size(), round.world,
                  round.missing.empty() ? "" : "; missing: rank " + ranks_text(round.missing));
  messages::error("{}", why);
  log_->append(records_.rendezvous(round, now, why));
  if (settings_.missing == Settings::Missing::kStop) {
    shut_down("too few workers have shown up: stopping COMMAND", false);
  }
}

// Until nothing is open, or the time of the last who asked is up.
void Server::look_after_shutdown(Instant now) {
  if (shutdown_askers_.empty()) {
    next_shutdown_look_ = Instant::never();
    return;
  }
  next_shutdown_look_ = now + kShutdownLook;
  // One who would end it now is enough.
  const bool for_workers = std::ranges::all_of(shutdown_askers_, &ShutdownAsker::waits_for_workers);
  const bool is_over =
      count_open() == 0 && (!for_workers || table_.worker_count() == 0) && ladder_.idle();
  if (is_over && !is_told_to_end_) {
    shut_down("shutdown --graceful", false);
  }
  std::vector<ShutdownAsker> late;
  if (stopping_ == nullptr) {
    std::erase_if(shutdown_askers_, [&](const ShutdownAsker& asker) {
      const bool is_late = asker.until <= now;
      if (is_late) {
        late.push_back(asker);
      }
      return is_late;
    });
  }
  if (std::ranges::any_of(late, &ShutdownAsker::then_forced)) {
    shutdown_askers_.insert(shutdown_askers_.end(), late.begin(), late.end());
    shut_down("shutdown --graceful --force", true);
    return;
  }
  const bool takes_back = shutdown_askers_.empty() && !was_signalled_ && stopping_ == nullptr;
  const bool was_told_to_end = std::exchange(is_told_to_end_, is_told_to_end_ && !takes_back);
  announce();  // where nobody is left who asked for it the server stays
  for (const ShutdownAsker& asker : late) {
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", was_told_to_end ? "COMMAND has not ended" : "its time is up");
    write_open(json, asker.waits_for_workers, kMaxRecordBytes);
    askers_->finish(asker.asker, std::move(json).finish());
  }
  if (stopping_ == nullptr && now >= next_waiting_told_) {
    next_waiting_told_ = now + kWaitingToldEvery;
    JsonWriter json = begin_answer("waiting");
    write_open(json, for_workers, kWholeAnswer);
    const std::string waiting = std::move(json).finish();
    for (const ShutdownAsker& asker : shutdown_askers_) {
      askers_->tell(asker.asker, waiting);
    }
  }
}

// The server's life is COMMAND's, so it is COMMAND that is told to end.
void Server::shut_down(const char* why, bool forced) {
  messages::info("{}", why);
  if (!command_) {
    begin_stop(why);
  } else if (forced) {
    force_end(why);
  } else if (!is_told_to_end_) {
    is_told_to_end_ = true;
    announce();
    command_->forward(SIGTERM, false);
  }
}

// Those who asked for it learn by the end of file that follows that the run folder is free.
void Server::tell_stopped() {
  refuse_rounds("the server was stopped");
  JsonWriter json = begin_answer("done");
  write_open(json, false, kMaxRecordBytes);
  const std::string answer = std::move(json).finish();
  for (const ShutdownAsker& asker : shutdown_askers_) {
    askers_->finish_at_exit(asker.asker, answer);
  }
}

Announcement Server::announcement() const {
  return is_told_to_end_ || !shutdown_askers_.empty() ? Announcement::kShutdown
         : is_drain_asked_                            ? Announcement::kDraining
                                                      : Announcement::kNone;
}

bool Server::is_draining() const {
  return announcement() != Announcement::kNone;
}

void Server::announce() {
  if (is_withdrawn_) {
    return;  // the boards are the next server's
  }
  for (BoardFile& board : boards_) {
    board.announce(announcement());
  }
}

std::size_t Server::count_open() {
  std::size_t count = 0;
  table_.for_each_worker([&](Worker& worker) {
    count += worker.count_on_pipe();
    for (const auto& page : worker.pages) {
      count += page->watched_count();
    }
  });
  return count;
}

void Server::write_open(JsonWriter& json, bool with_workers, std::size_t room) {
  const Instant now = Instant::now();
  json.field("open_scope_count", count_open()).begin_array("open_scopes");
  std::size_t listed = 0;
  table_.for_each_worker([&](Worker& worker) {
    if (listed >= kMostListed || json.size() > room) {
      return;
    }
    std::vector<ScopeView> views;
    for (const Scope& scope : worker.by_age) {
      if (!scope.terms.is_idle) {
        views.push_back(ScopeView::of(scope));
      }
    }
    for (const auto& page : worker.pages) {
      for (const SlotReading& reading : page->open_slots()) {
        if (slot_word::is_open(reading.word)) {
          views.push_back(view_of(reading));
        }
      }
    }
    for (const ScopeView& view : views) {
      if (listed < kMostListed && json.size() <= room) {
        ++listed;
        json.begin_object();
        write_whose(json, WorkerIdentity::of(worker));
        write_scope(json, view, now);
        json.end_object();
      }
    }
  });
  json.end_array();
  if (!with_workers) {
    return;
  }
  json.field("worker_count", table_.worker_count()).begin_array("workers");
  listed = 0;
  table_.for_each_worker([&](Worker& worker) {
    if (listed < kMostListed && json.size() <= room + kMaxAtomicWrite / 8) {
      ++listed;
      json.begin_object();
      write_whose(json, WorkerIdentity::of(worker));
      json.end_object();
    }
  });
  json.end_array();
}

}  // namespace filetimer
