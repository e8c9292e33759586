// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "common/wire.hpp"
#include "timer_server/evidence/stacks_helper.hpp"
#include "timer_server/system/hardening.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// The room for the lists of an answer, which fits one packet.
constexpr std::size_t kRoom = kAnswerPacketBytes - 1024;
// Deadlines wait while requests are answered; further requests wait for the next iteration.
constexpr Duration kLongestAtOnce = std::chrono::milliseconds{5};
// How long a rendezvous whose time is up waits for joins among them, if more and more come.
constexpr Duration kLongestUnread = std::chrono::seconds{1};
// How often a waiting shutdown looks for open scopes: a release on a page does not wake the server.
constexpr Duration kLookPeriod = std::chrono::milliseconds{20};
// How often its client gets a list of what is still open.
constexpr Duration kNewsPeriod = std::chrono::seconds{1};
// Scopes, and workers, that an answer lists.
constexpr std::size_t kMostListed = 64;
// The most workers in one dump, those in the least common scopes first; the others are counted.
constexpr std::size_t kMostDumped = 48;
// The most open scopes that are listed of each of them: those that were opened last.
constexpr std::size_t kMostScopesDumped = 32;
// How long a dump may take. It then has what was collected.
constexpr Duration kDumpLimit = std::chrono::seconds{30};
// The most ranks or pids that an error names.
constexpr std::size_t kNamedInError = 16;
// Why ranks are refused once the server was asked to end.
constexpr std::string_view kShuttingDown = "the server is shutting down";

// Returns an answer with the number of open scopes without a verdict and a list of them, and with
// `with_workers` a list of workers. The lists are shortened so that the answer fits one packet.
std::string answer_with_open(std::string_view kind, std::string_view reason, Core& core,
                             bool with_workers = false) {
  const Instant now = Instant::now();
  JsonWriter json = begin_answer(kind);
  std::size_t listed = 0;
  const auto begin_entry = [&](const Worker& worker, std::size_t room) {
    const bool has_room = listed < kMostListed && json.size() <= room;
    if (has_room) {
      ++listed;
      json.begin_object();
      write_whose(json, worker);
    }
    return has_room;
  };
  json.given("reason", reason)
      .field("open_scope_count", core.workers.count_open_scopes())
      .begin_array("open_scopes");
  core.workers.for_each([&](const Worker& worker) {
    if (listed == kMostListed || json.size() > kRoom) {
      return;
    }
    for (const SlotReading& scope : core.policy.open_scopes_of(worker)) {
      if (slot_word::is_open(scope.word) && begin_entry(worker, kRoom)) {
        write_scope(json, scope, now);
        json.end_object();
      }
    }
  });
  json.end_array();
  if (with_workers) {
    listed = 0;
    json.field("worker_count", core.workers.count()).begin_array("workers");
    core.workers.for_each([&](const Worker& worker) {
      if (begin_entry(worker, kRoom + kMaxAtomicWrite / 8)) {
        json.end_object();
      }
    });
    json.end_array();
  }
  return json.finish();
}

// Whether a shutdown waits until the workers have exited, and not only until their scopes have
// ended.
bool waits_for_workers(const AcceptedRequest& shutdown) {
  return shutdown.question.graceful == "workers";
}

// Keeps the workers that are in the least common scopes: the one for which the others wait is among
// them. Returns how many it has removed.
std::size_t keep_most_unusual(std::vector<const Worker*>& meant, const ScopePolicy& scopes) {
  using JobAndScope = std::pair<std::string, std::string>;  // the innermost one; empty: in none
  std::map<JobAndScope, std::vector<const Worker*>> groups;
  for (const Worker* const worker : meant) {
    const std::vector<SlotReading> open = scopes.open_scopes_of(*worker, 1);
    groups[{worker->facts->job_id, open.empty() ? "" : open.back().name}].push_back(worker);
  }
  std::multimap<std::size_t, const Worker*> by_size;  // of the worker's group
  for (const auto& [key, group] : groups) {
    for (const Worker* const worker : group) {
      by_size.emplace(group.size(), worker);
    }
  }
  std::ranges::transform(by_size, meant.begin(), [](const auto& entry) { return entry.second; });
  meant.resize(std::min(by_size.size(), kMostDumped));
  return by_size.size() - meant.size();
}

}  // namespace

ControlRequests::ControlRequests(Core& core, LifeCycle& life, Server server)
    : core_(core),
      life_(life),
      server_(std::move(server)),
      clients_(core.loop, max_waiting_clients(),
               [this](ControlClients::Id client) {
                 rendezvous_.leave(client);
                 std::erase_if(dumps_,
                               [client](const Dump& each) { return each.client == client; });
               }),
      rendezvous_(clients_, core) {}

void ControlRequests::take(Instant now) {
  const Instant until = Instant::now() + kLongestAtOnce;
  while (const auto asked = clients_.take()) {
    if (auto answer = answer_to(*asked, now)) {
      clients_.finish(asked->client, std::move(*answer));
    }
    if (Instant::now() >= until) {
      break;
    }
  }
}

ControlRequests::Answer ControlRequests::answer_to(const ControlClients::Asked& asked,
                                                   Instant now) {
  if (asked.process.uid != ::geteuid() && asked.process.uid != 0) {
    const std::string reason =
        fmt::format("user {} may not ask the server of user {}", asked.process.uid, ::geteuid());
    core_.rejections.add(reason, asked.packet, asked.process.pid);
    return answer_with_reason("refused", reason);
  }
  const auto question = wire::parse_question(asked.packet);
  if (!question) {
    return answer_with_reason("invalid", question.error().message);
  }
  if (!(question->wait_s > 0)) {
    return answer_with_reason("invalid",
                              fmt::format("wait_s is {}: expected over 0", question->wait_s));
  }
  const AcceptedRequest accepted{
      asked.client, *question, asked.process.pid,
      std::min(duration_from_seconds(question->wait_s), core_.settings.max_wait), now};
  const std::string& request = question->request;
  if (request == "ping" || request == "status") {
    JsonWriter json = begin_answer("done");
    json.field("server_pid", ::getpid()).field("server_version", FILETIMER_VERSION);
    if (request == "status") {
      server_.write_status(json);
    }
    return json.finish();
  }
  return request == "dump"       ? answer_dump(accepted)
         : request == "drain"    ? answer_drain(accepted)
         : request == "shutdown" ? answer_shutdown(accepted)
         : request == "rendezvous"
             ? answer_rendezvous(accepted)
             : answer_with_reason("invalid",
                                  fmt::format("request is '{}': expected ping, status, dump, "
                                              "drain, shutdown or rendezvous",
                                              printable(request.substr(0, 64))));
}

// The dump is for the workers of a rank, for one with a pid, or for all. If there is no such
// worker, the refusal names the ranks or pids that there are.
ControlRequests::Answer ControlRequests::answer_dump(const AcceptedRequest& accepted) {
  const std::optional<int> wanted_rank = accepted.question.rank;
  const std::optional<int> wanted_pid = accepted.question.worker;
  std::vector<const Worker*> meant;
  std::set<std::int64_t> known;
  core_.workers.for_each([&](const Worker& worker) {
    const pid_t pid = worker.process->pid;
    const std::optional<int> rank = worker.facts->rank;
    if (!wanted_rank || rank) {
      known.insert(wanted_rank ? *rank : pid);
    }
    if ((!wanted_rank || rank == *wanted_rank) && (!wanted_pid || pid == *wanted_pid)) {
      meant.push_back(&worker);
    }
  });
  if (meant.empty()) {
    return answer_with_reason(
        "refused",
        !known.empty()
            ? fmt::format("no watched worker has {} {}: expected {}", wanted_rank ? "rank" : "pid",
                          wanted_rank ? *wanted_rank : wanted_pid.value_or(0),
                          first_of({known.begin(), known.end()}, kNamedInError))
        : wanted_rank ? "no watched worker has a rank"
                      : "no worker is watched");
  }
  if (!clients_.grant(accepted.client, accepted.granted)) {
    return std::nullopt;
  }
  const auto by_rank = [](const Worker* worker) {
    const std::optional<int> rank = worker->facts->rank;
    return std::tuple(!rank, rank.value_or(0), worker->process->pid);
  };
  std::ranges::sort(meant, {}, by_rank);
  const std::size_t omitted = keep_most_unusual(meant, core_.policy);
  std::ranges::sort(meant, {}, by_rank);
  Dump& dump = dumps_.emplace_back();
  dump.client = accepted.client;
  dump.omitted = omitted;
  for (const Worker* const worker : meant) {
    Dump::Asked& asked = dump.workers.emplace_back();
    asked.worker = *worker;
    asked.scopes = core_.policy.open_scopes_of(*worker, kMostScopesDumped);
    asked.read = Instant::now();
    asked.order =
        core_.desk.collect({.worker = worker->process,
                            .level = most_evidence_allowed(),
                            .use = EvidenceFor::kDump,
                            .until = accepted.now + std::min(accepted.granted, kDumpLimit),
                            .limit = core_.settings.kill.evidence_timeout,
                            .python = core_.python_dump_of(*worker)},
                           accepted.now, [&asked](Evidence evidence, bool) {
                             asked.evidence = std::move(evidence);
                             asked.order.reset();
                           });
  }
  return std::nullopt;
}

// Answers the clients of the dumps that are complete, after the evidence desk has delivered.
void ControlRequests::finish_dumps() {
  std::erase_if(dumps_, [&](const Dump& dump) {
    if (std::ranges::any_of(dump.workers,
                            [](const Dump::Asked& asked) { return asked.order != nullptr; })) {
      return false;
    }
    JsonWriter answer = begin_answer("done");
    answer.begin_array("workers");
    for (const Dump::Asked& asked : dump.workers) {
      // An object of its own: what a list has room for depends on the size of the object.
      JsonWriter json;
      write_whose_and_job(json, asked.worker);
      json.begin_array("open_scopes");
      for (const SlotReading& scope : asked.scopes) {
        json.begin_object();
        write_scope(json, scope, asked.read);
        json.end_object();
      }
      json.end_array();
      write_evidence(json, asked.evidence);
      answer.raw({}, json.finish());
    }
    answer.end_array().field("omitted", dump.omitted);
    clients_.finish(dump.client, answer.finish());
    return true;
  });
}

ControlRequests::Answer ControlRequests::answer_drain(const AcceptedRequest& accepted) {
  if (accepted.question.off && (life_.is_asked_to_end() || shutdown_)) {
    return answer_with_reason("refused", "the server has been asked to end");
  }
  is_drain_asked_ = !accepted.question.off;
  if (accepted.question.off) {
    for (const AcceptedRequest& request : std::exchange(shutdowns_, {})) {
      clients_.finish(request.client,
                      answer_with_open("refused", "drain --off withdrew the shutdown", core_,
                                       waits_for_workers(request)));
    }
  } else {
    rendezvous_.refuse_all("the server is draining");
  }
  server_.publish(announcement());
  return begin_answer("done")
      .field("draining", announcement() != Announcement::kNone)
      .field("open_scope_count", core_.workers.count_open_scopes())
      .finish();
}

ControlRequests::Answer ControlRequests::answer_shutdown(const AcceptedRequest& accepted) {
  const wire::Question& question = accepted.question;
  const bool is_graceful = !question.graceful.empty();
  if (is_graceful && question.graceful != "scopes" && question.graceful != "workers") {
    return answer_with_reason("invalid",
                              fmt::format("graceful is '{}': expected 'scopes' or 'workers'",
                                          printable(question.graceful.substr(0, 64))));
  }
  const std::size_t open = core_.workers.count_open_scopes();
  if (!is_graceful && !question.force && (open > 0 || has_kills_)) {
    const std::string why = open == 0
                                ? "a kill is under way"
                                : fmt::format("{} scope{} open", open, open == 1 ? " is" : "s are");
    return answer_with_open("refused", why, core_);
  }
  if (shutdowns_.size() >= kMaxWaitingClients) {
    return answer_with_reason("refused", too_many_wait(shutdowns_.size()));
  }
  clients_.grant(accepted.client, accepted.granted);
  rendezvous_.refuse_all(kShuttingDown);
  shutdowns_.push_back(accepted);
  next_look_ = next_news_ = accepted.now;
  server_.publish(announcement());
  if (!is_graceful && (!shutdown_ || question.force)) {
    shutdown_ = {question.force ? "shutdown: now" : "shutdown: if_idle", question.force};
  }
  return std::nullopt;
}

ControlRequests::Answer ControlRequests::answer_rendezvous(const AcceptedRequest& accepted) {
  const bool is_refused = announcement() != Announcement::kNone || !clients_.has_room_to_wait();
  const Status joined =
      announcement() != Announcement::kNone
          ? failure(fmt::format("{}: no new rendezvous", announcement() == Announcement::kShutdown
                                                             ? kShuttingDown
                                                             : "the server is draining"))
      : is_refused ? failure(too_many_wait(clients_.count() - 1))
                   : rendezvous_.join(accepted);
  if (joined) {
    return std::nullopt;
  }
  const wire::Question& question = accepted.question;
  messages::debug("rendezvous '{}': {} is refused (pid {}): {}", question.name,
                  question.rank ? fmt::format("rank {}", *question.rank) : "a rank", accepted.pid,
                  joined.error().message);
  return answer_with_reason(is_refused ? "refused" : "invalid", joined.error().message);
}

std::optional<ControlRequests::Shutdown> ControlRequests::advance(Instant now, bool has_kills) {
  has_kills_ = has_kills;
  if (now >= rendezvous_.next()) {
    clients_.accept_all();  // ranks may have come while the server could not run
  }
  take(now);
  unread_since_ = clients_.has_requests() ? std::min(unread_since_, now) : Instant::never();
  rendezvous_.advance(now, clients_.has_requests() && now - unread_since_ < kLongestUnread);
  if (life_.is_asked_to_end() && !life_.is_stopping()) {  // by a signal: no rank can join any more
    rendezvous_.refuse_all(kShuttingDown);
  }
  if (!shutdown_ && now >= next_look_) {
    advance_shutdowns(now);
  }
  finish_dumps();
  next_answer_ = clients_.advance(now);
  return std::exchange(shutdown_, std::nullopt);
}

void ControlRequests::advance_shutdowns(Instant now) {
  next_look_ = shutdowns_.empty() ? Instant::never() : now + kLookPeriod;
  if (shutdowns_.empty()) {
    return;
  }
  // A single one that does not wait for workers ends the server.
  const bool for_workers = std::ranges::all_of(shutdowns_, waits_for_workers);
  bool must_wait = core_.workers.count_open_scopes() > 0 || has_kills_;
  if (for_workers && !must_wait) {
    core_.workers.for_each([&](const Worker& worker) {
      // A worker that asks waits for the answer.
      must_wait |= std::ranges::none_of(shutdowns_, [&](const AcceptedRequest& each) {
        return each.pid == worker.process->pid && !clients_.has_left(each.client);
      });
    });
  }
  if (!must_wait && !life_.is_asked_to_end()) {
    shutdown_ = {for_workers ? "shutdown: workers" : "shutdown: graceful", false};
  }
  if (shutdown_ || life_.is_stopping()) {
    return;
  }
  end_overdue_shutdowns(now);
  if (!shutdown_ && now >= next_news_) {
    next_news_ = now + kNewsPeriod;
    const std::string waiting = answer_with_open("waiting", {}, core_, for_workers);
    for (const AcceptedRequest& request : shutdowns_) {
      clients_.tell(request.client, waiting);
    }
  }
}

// Withdraws the shutdowns whose time is up, or has one carried out by force.
void ControlRequests::end_overdue_shutdowns(Instant now) {
  std::vector<AcceptedRequest> overdue;
  for (const AcceptedRequest& each : shutdowns_) {
    if (each.until() > now) {
      continue;
    }
    if (!each.question.graceful.empty() && each.question.force) {
      shutdown_ = {
          waits_for_workers(each) ? "shutdown: workers_or_now" : "shutdown: graceful_or_now", true};
      return;
    }
    overdue.push_back(each);
  }
  std::erase_if(shutdowns_, [now](const AcceptedRequest& each) { return each.until() <= now; });
  const std::string_view why_late = life_.phase() == LifeCycle::Phase::kCommandEnded
                                        ? "kills are under way"
                                    : life_.is_asked_to_end() ? "COMMAND has not ended"
                                                              : "its time is up";
  if (shutdowns_.empty()) {
    (void)life_.handle(LifeCycle::Event::kShutdownWithdrawn, now);
    server_.publish(announcement());
  }
  for (const AcceptedRequest& request : overdue) {
    clients_.finish(request.client,
                    answer_with_open("timed_out", why_late, core_, waits_for_workers(request)));
  }
}

Instant ControlRequests::next() const {
  return std::min({clients_.has_requests() ? Instant{} : Instant::never(), rendezvous_.next(),
                   next_look_, next_answer_});
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
  const std::string answer = answer_with_open("done", {}, core_);
  for (const AcceptedRequest& request : shutdowns_) {
    clients_.finish_at_exit(request.client, answer);
  }
}

}  // namespace filetimer
