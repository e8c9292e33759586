// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "common/wire_parser.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// The room for the lists in an answer that must fit one packet.
constexpr std::size_t kWholeAnswer = kAnswerPacketBytes - 1024;
// Deadlines wait while requests are answered; further requests wait for the next iteration.
constexpr Duration kLongestAtOnce = std::chrono::milliseconds{5};
// How often a waiting shutdown looks for open scopes: a release on a page does not wake the server.
constexpr Duration kLookPeriod = std::chrono::milliseconds{20};
// How often its client gets a list of what is still open.
constexpr Duration kNewsPeriod = std::chrono::seconds{1};
// Scopes, and workers, that an answer lists.
constexpr std::size_t kMostListed = 64;

void write_scopes(JsonWriter& json, Core& core, std::size_t room) {
  const Instant now = Instant::now();
  json.field("open_scope_count", core.workers.count_open_scopes()).begin_array("open_scopes");
  std::size_t listed = 0;
  const auto is_full = [&] { return listed >= kMostListed || json.size() > room; };
  core.workers.for_each([&](Worker& worker) {
    if (is_full()) {
      return;
    }
    std::vector<ScopeView> views;
    for (const auto& page : worker.pages) {
      for (const SlotReading& reading : page->open_slots()) {
        if (slot_word::is_open(reading.word)) {
          views.push_back(core.policy.view_of(reading, worker));
        }
      }
    }
    std::ranges::stable_sort(views, {}, [](const ScopeView& view) { return view.terms.acquired; });
    for (const ScopeView& view : views) {
      if (is_full()) {
        break;
      }
      ++listed;
      json.begin_object();
      write_whose(json, WorkerIdentity::of(worker));
      write_scope(json, view, now);
      json.end_object();
    }
  });
  json.end_array();
}

void write_workers(JsonWriter& json, Core& core, std::size_t room) {
  json.field("worker_count", core.workers.count()).begin_array("workers");
  std::size_t listed = 0;
  core.workers.for_each([&](Worker& worker) {
    if (listed < kMostListed && json.size() <= room + kMaxAtomicWrite / 8) {
      ++listed;
      json.begin_object();
      write_whose(json, WorkerIdentity::of(worker));
      json.end_object();
    }
  });
  json.end_array();
}

// Adds the number of open scopes without a verdict and a list of them, and with `with_workers` a
// list of workers. The lists are shortened so that the answer has about `room` bytes.
void write_open(JsonWriter& json, Core& core, bool with_workers, std::size_t room) {
  write_scopes(json, core, room);
  if (with_workers) {
    write_workers(json, core, room);
  }
}

JsonWriter begin_answer_of_server() {
  JsonWriter json = begin_answer("done");
  json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
  return json;
}

}  // namespace

ControlRequests::ControlRequests(Core& core, LifeCycle& life,
                                 std::function<void(Announcement)> publish)
    : core_(core),
      life_(life),
      publish_(std::move(publish)),
      dumps_(core),
      clients_(core.loop, max_waiting_clients(),
               [this](ControlClients::Id client) { on_withdrawn(client); }),
      rendezvous_(std::max(max_waiting_clients(), ControlClients::kReserved + 1) -
                      ControlClients::kReserved,
                  clients_, core) {}

void ControlRequests::take(Instant now) {
  const Instant until = Instant::now() + kLongestAtOnce;
  while (const auto asked = clients_.take()) {
    accept(*asked, now);
    if (Instant::now() >= until) {
      break;
    }
  }
}

void ControlRequests::accept(const ControlClients::Asked& asked, Instant now) {
  if (asked.process.uid != ::geteuid() && asked.process.uid != 0) {
    const std::string reason =
        fmt::format("user {} may not ask the server of user {}", asked.process.uid, ::geteuid());
    core_.rejections.add(reason, asked.packet, asked.process.pid);
    clients_.finish(asked.client, "refused", reason);
    return;
  }
  const auto question = wire::parse_question(asked.packet);
  if (!question || !(question->wait_s > 0)) {
    clients_.finish(asked.client, "invalid",
                    question ? fmt::format("wait_s is {}: expected over 0", question->wait_s)
                             : question.error().message);
    return;
  }
  answer({asked.client, *question, asked.process.pid,
          std::min(duration_from_seconds(question->wait_s), core_.settings.max_wait), now});
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
  clients_.finish(accepted.client, "invalid",
                  fmt::format("request is '{}': expected ping, status, dump, "
                              "drain, shutdown or rendezvous",
                              printable(accepted.question.request.substr(0, 64))));
}

void ControlRequests::answer_ping(const Accepted& accepted) {
  clients_.finish(accepted.client, begin_answer_of_server().finish());
}

// The status is that at the end of the iteration.
void ControlRequests::keep_for_status(const Accepted& accepted) {
  status_clients_.push_back(accepted.client);
}

void ControlRequests::answer_status(const std::function<void(JsonWriter&)>& write) {
  while (!status_clients_.empty()) {
    JsonWriter json = begin_answer_of_server();
    write(json);  // asks for client_count()
    clients_.finish(status_clients_.front(), std::move(json).finish());
    status_clients_.erase(status_clients_.begin());
  }
}

void ControlRequests::answer_dump(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  const Status begun =
      dumps_.begin(accepted.client, {.rank = question.rank, .pid = question.worker},
                   accepted.now + accepted.granted, accepted.now);
  if (!begun) {
    clients_.finish(accepted.client, "refused", begun.error().message);
  } else if (!grant(accepted)) {
    dumps_.withdraw(accepted.client);
  }
}

void ControlRequests::answer_drain(const Accepted& accepted) {
  if (accepted.question.off && (life_.is_asked_to_end() || shutdown_)) {
    clients_.finish(accepted.client, "refused", "the server has been asked to end");
    return;
  }
  is_drain_asked_ = !accepted.question.off;
  if (accepted.question.off) {
    for (const WaitingShutdown& request : std::exchange(shutdowns_, {})) {
      clients_.finish(request.client, "refused", "drain --off withdrew the shutdown");
    }
  } else {
    rendezvous_.refuse_all("the server is draining");
  }
  publish_(announcement());
  JsonWriter json = begin_answer("done");
  json.field("draining", announcement() != Announcement::kNone)
      .field("open_scope_count", core_.workers.count_open_scopes());
  clients_.finish(accepted.client, std::move(json).finish());
}

void ControlRequests::answer_shutdown(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  if (!question.graceful.empty() && question.graceful != "scopes" &&
      question.graceful != "workers") {
    clients_.finish(accepted.client, "invalid",
                    fmt::format("graceful is '{}': expected 'scopes' or 'workers'",
                                printable(question.graceful.substr(0, 64))));
    return;
  }
  const bool is_graceful = !question.graceful.empty();
  if (!is_graceful && !question.force) {
    if (const std::size_t open = core_.workers.count_open_scopes(); open > 0) {
      JsonWriter json = begin_answer("refused");
      json.field("reason", fmt::format("{} scope{} open", open, open == 1 ? " is" : "s are"));
      write_open(json, core_, false, kMaxRecordBytes);
      clients_.finish(accepted.client, std::move(json).finish());
      return;
    }
  }
  if (shutdowns_.size() >= kMaxWaitingClients) {
    clients_.finish(accepted.client, "refused", too_many_wait(shutdowns_.size()));
    return;
  }
  if (!grant(accepted)) {
    return;
  }
  rendezvous_.refuse_all("the server is shutting down");
  shutdowns_.push_back({.client = accepted.client,
                        .until = accepted.now + accepted.granted,
                        .is_forced_then = is_graceful && question.force,
                        .waits_for_workers = question.graceful == "workers"});
  next_look_ = accepted.now;
  next_news_ = accepted.now;
  publish_(announcement());
  if (!is_graceful && (!shutdown_ || question.force)) {
    shutdown_ = {question.force ? "shutdown: now" : "shutdown: if_idle", question.force};
  }
}

void ControlRequests::answer_rendezvous(const Accepted& accepted) {
  const wire::Question& question = accepted.question;
  const auto refuse = [&](std::string_view kind, std::string_view why) {
    messages::debug("rendezvous '{}': {} is refused (pid {}): {}", question.name,
                    question.rank ? fmt::format("rank {}", *question.rank) : "a rank", accepted.pid,
                    why);
    clients_.finish(accepted.client, kind, why);
  };
  if (!question.rank || !question.world) {
    refuse("invalid", "lacks rank or world");
  } else if (announcement() != Announcement::kNone) {
    refuse("refused", "the server is draining: no new rendezvous");
  } else if (!clients_.has_room_to_wait()) {
    refuse("refused", too_many_wait(clients_.count() - 1));
  } else if (const Status joined = rendezvous_.join(
                 {question.name, *question.rank, *question.world, accepted.pid, accepted.client},
                 accepted.granted, accepted.now);
             !joined) {
    refuse("invalid", joined.error().message);
  } else if (!grant(accepted)) {
    rendezvous_.leave(accepted.client);
  }
}

// Answers how long the client may wait, and watches for its withdrawal from now on.
bool ControlRequests::grant(const Accepted& accepted) {
  try {
    clients_.watch(accepted.client);
  } catch (const std::system_error& error) {
    clients_.finish(accepted.client, "refused", error.what());
    return false;
  }
  JsonWriter json = begin_answer("granted");
  json.field("wait_s", in_seconds(accepted.granted));
  clients_.tell(accepted.client, std::move(json).finish());
  return true;
}

void ControlRequests::on_withdrawn(ControlClients::Id client) {
  rendezvous_.leave(client);
  dumps_.withdraw(client);
}

std::optional<ControlRequests::Shutdown> ControlRequests::advance(Instant now, bool has_kills) {
  rendezvous_.advance(now);
  if (!shutdown_ && now >= next_look_) {
    advance_shutdowns(now, has_kills);
  }
  dumps_.answer_complete(clients_);
  next_answer_ = clients_.advance(now);
  return std::exchange(shutdown_, std::nullopt);
}

void ControlRequests::advance_shutdowns(Instant now, bool has_kills) {
  next_look_ = shutdowns_.empty() ? Instant::never() : now + kLookPeriod;
  if (shutdowns_.empty()) {
    return;
  }
  // A single one that does not wait for workers ends the server.
  const bool for_workers = std::ranges::all_of(shutdowns_, &WaitingShutdown::waits_for_workers);
  const bool is_over = core_.workers.count_open_scopes() == 0 && !has_kills &&
                       (!for_workers || core_.workers.count() == 0);
  if (is_over && !life_.is_asked_to_end()) {
    shutdown_ = {for_workers ? "shutdown: workers" : "shutdown: graceful", false};
  }
  if (shutdown_ || life_.is_stopping()) {
    return;
  }
  end_overdue_shutdowns(now);
  if (!shutdown_ && now >= next_news_) {
    next_news_ = now + kNewsPeriod;
    JsonWriter json = begin_answer("waiting");
    write_open(json, core_, for_workers, kWholeAnswer);
    const std::string waiting = std::move(json).finish();
    for (const WaitingShutdown& request : shutdowns_) {
      clients_.tell(request.client, waiting);
    }
  }
}

// Withdraws the shutdowns whose time is up, or has one carried out by force.
void ControlRequests::end_overdue_shutdowns(Instant now) {
  std::vector<WaitingShutdown> overdue;
  std::ranges::copy_if(shutdowns_, std::back_inserter(overdue),
                       [now](const WaitingShutdown& each) { return each.until <= now; });
  const auto forced = std::ranges::find_if(overdue, &WaitingShutdown::is_forced_then);
  if (forced != overdue.end()) {
    shutdown_ = {
        forced->waits_for_workers ? "shutdown: workers_or_now" : "shutdown: graceful_or_now", true};
    return;
  }
  std::erase_if(shutdowns_, [now](const WaitingShutdown& each) { return each.until <= now; });
  const std::string_view why_late = life_.phase() == LifeCycle::Phase::kCommandEnded
                                        ? "kills are under way"
                                    : life_.is_asked_to_end() ? "COMMAND has not ended"
                                                              : "its time is up";
  if (shutdowns_.empty()) {
    (void)life_.handle(LifeCycle::Event::kShutdownWithdrawn, now);
    publish_(announcement());
  }
  for (const WaitingShutdown& request : overdue) {
    JsonWriter json = begin_answer("timed_out");
    json.field("reason", why_late);
    write_open(json, core_, request.waits_for_workers, kMaxRecordBytes);
    clients_.finish(request.client, std::move(json).finish());
  }
}

Instant ControlRequests::next() const {
  return std::min({clients_.has_requests() || shutdown_ ? Instant{} : Instant::never(),
                   rendezvous_.next(), next_look_, next_answer_});
}

Announcement ControlRequests::announcement() const {
  return life_.is_asked_to_end() || !shutdowns_.empty() ? Announcement::kShutdown
         : is_drain_asked_                              ? Announcement::kDraining
                                                        : Announcement::kNone;
}

// The connections close when the process exits. Clients take that end of file as proof that the
// runtime directory is free.
void ControlRequests::answer_stopped() {
  rendezvous_.refuse_all("the server was stopped");
  JsonWriter json = begin_answer("done");
  write_open(json, core_, false, kMaxRecordBytes);
  const std::string answer = std::move(json).finish();
  for (const WaitingShutdown& request : shutdowns_) {
    clients_.finish_at_exit(request.client, answer);
  }
}

}  // namespace filetimer
