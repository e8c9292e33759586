// The server's verdicts: scopes that expired, workers that ended, and how the server itself begins
// and ends in the log.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/incident_limit.hpp"
#include "timer_server/kill_path_check.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

// Expiries this close to the first one are one incident: the others waited for the same thing.
constexpr Duration kIncidentWindow = std::chrono::seconds{2};
constexpr std::string_view kEndedInside = "the worker ended inside the scope";
// Scopes that the server's last record lists.
constexpr std::size_t kMaxLeftScopes = 8192;

std::string who(const WorkerIdentity& worker) {
  const auto& facts = *worker.facts;
  return fmt::format("pid {} ({}{})", worker.process->pid, worker.process->comm,
                     facts && facts->rank ? fmt::format(", rank {}", *facts->rank) : "");
}

}  // namespace

// The oldest first; of more than `most` those that were opened last, which say where it is.
std::vector<ScopeView> Server::open_scopes_of(const Worker& worker, std::size_t most) const {
  std::vector<ScopeView> views;
  for (auto scope = worker.by_age.rbegin(); scope != worker.by_age.rend() && views.size() < most;
       ++scope) {
    // Of no scope only what has just been judged.
    if (!scope->terms.is_idle || scope->terms.deadline <= now_.mono) {
      views.push_back(ScopeView::of(*scope));
    }
  }
  std::ranges::reverse(views);
  if (worker.pages.empty()) {
    return views;
  }
  for (const auto& page : worker.pages) {
    for (const SlotReading& reading : page->open_slots()) {
      views.push_back(view_of(reading));
    }
  }
  std::ranges::stable_sort(views, {}, [](const ScopeView& view) { return view.terms.acquired; });
  if (views.size() > most) {
    views.erase(views.begin(), views.end() - static_cast<std::ptrdiff_t>(most));
  }
  return views;
}

std::shared_ptr<Incident> Server::incident_now() {
  if (incident_ && now_.mono - incident_->when.mono <= kIncidentWindow) {
    return incident_;
  }
  incident_ = std::make_shared<Incident>();
  incident_->id = records_.next_incident_id();
  incident_->when = now_;
  const std::size_t share = incident_share(table_.worker_count());
  table_.for_each_worker([&](Worker& worker) {
    std::size_t count = worker.count_on_pipe();
    for (const auto& page : worker.pages) {
      count += page->open_count();
    }
    if (count == 0 && worker.dying) {
      return;  // its scope has expired before
    }
    // Also one in no scope: the others may wait for it.
    incident_->workers.push_back({WorkerIdentity::of(worker), open_scopes_of(worker, share)});
    incident_->omitted += count - std::min(incident_->workers.back().scopes.size(), count);
  });
  return incident_;
}

// Of several pages the first that says so: there is one interpreter in a process.
std::optional<PythonDump> Server::python_dump_of(const Worker& worker) const {
  for (const auto& page : worker.pages) {
    if (const std::uint32_t signal = page->dump_signal(); signal != 0) {
      return PythonDump{signal, page_folder_.stacks_path(page->name())};
    }
  }
  return std::nullopt;
}

void Server::expire(Worker& worker, const std::vector<const DueScope*>& due) {
  warnings_.settle(*worker.process, "a deadline of the worker came first");
  KillOrder order;
  order.worker = WorkerIdentity::of(worker);
  order.incident = incident_now();
  order.open_scopes = open_scopes_of(worker);
  order.python = python_dump_of(worker);
  for (const DueScope* scope : due) {
    Expiry expiry;
    if (scope->scope != nullptr) {
      expiry.scope_id = scope->scope->id();
      expiry.scope = ScopeView::of(*scope->scope);
      expiry.on_page.slot = table_.expire(*scope->scope);
      keep(worker);
    } else if (auto on_page = expiry_on_page(*scope)) {
      expiry = std::move(*on_page);
    } else {
      continue;
    }
    expiry.id = records_.next_expiry_id();
    expiry.incident = order.incident->id;
    expiry.judged = now_.mono;
    order.expiries.push_back(std::move(expiry));
    if (!order.incident->recorded) {
      order.incident->expiries.push_back(order.expiries.back());
    }
  }
  if (order.expiries.empty()) {
    return;
  }
  expired_ += order.expiries.size();
  const Expiry& first = order.expiries.front();
  const Expiry* const deciding = order.deciding();
  messages::info("{} expired in '{}' after {}: {} ({})", who(order.worker), first.scope.name,
                 duration_for_reading(now_.mono - first.scope.terms.acquired),
                 settings_.kill.dry_run ? "spared, dry run"
                 : deciding == nullptr  ? "spared, signal 0"
                                        : "to be sent " + signal_name(deciding->scope.terms.signal),
                 first.id);
  ladder_.start(std::move(order), now_.mono);
}

// By a way that does not go through the ladder: on a page, or as one who comes back.
bool Server::was_released(const Process& worker, const Expiry& expiry) {
  const PageVerdict& verdict = expiry.on_page;
  if (expiry.scope.terms.is_idle && has_come_back(worker.pid, expiry.scope.terms.deadline)) {
    return true;
  }
  return verdict.page && verdict.page->was_released_late(verdict.slot, verdict.word);
}

// The worker's other timers end with the signal, not with the verdict: a release that still comes
// in between calls the kill off, and then they must be there.
std::vector<std::string> Server::on_signal_due(const Process& process, bool is_final) {
  std::vector<std::string> cancelled;
  Worker* const worker = table_.find_worker(process.pid);
  if (worker == nullptr || worker->process.get() != &process) {
    return cancelled;
  }
  for (const Scope& scope : worker->by_age) {
    if (!scope.terms.is_idle) {
      cancelled.emplace_back(scope.name());
    }
  }
  // On a page they end with the worker; one that outlives its signal is in them still.
  for (const auto& page : worker->pages) {
    for (const SlotReading& reading : page->open_slots()) {
      if (is_final && slot_word::is_open(reading.word)) {
        cancelled.push_back(reading.name);
      }
    }
  }
  table_.close_all(*worker);
  keep(*worker);
  worker->dying = is_final;
  return cancelled;
}

void Server::on_kill_ended(const KillOrder& order, const KillEnd& end) {
  const std::string& id = order.expiries.front().id;
  std::erase_if(unkillable_, [](const auto& process) { return !process->is_alive(); });
  if (end.verdict == KillVerdict::kUnkillable) {
    if (std::ranges::find(unkillable_, order.worker.process) == unkillable_.end()) {
      unkillable_.push_back(order.worker.process);
    }
    messages::error("{} is still alive after SIGKILL ({})", who(order.worker), id);
  } else if (end.verdict == KillVerdict::kDead) {
    ++killed_;
    messages::info("{} is dead ({})", who(order.worker), id);
  }
  run_hook(order, end);
  Worker* const worker = table_.find_worker(order.worker.process->pid);
  if (worker != nullptr && worker->process == order.worker.process) {
    // A worker that outlived it all is watched again when it asks for it. The scopes of one that
    // died have ended with the kill: bury() must not call them left open.
    worker->dying = worker->dying && !worker->process->is_alive();
    for (const Expiry& expiry : order.expiries) {
      const PageVerdict& place = expiry.on_page;
      if (place.page) {
        place.page->finish(place.slot, place.word);
      } else if (worker->wire_page) {
        worker->wire_page->close(static_cast<WirePage::SlotNumber>(place.slot));
        keep(*worker);
      }
    }
    scan_wanted_ = scan_wanted_ || !worker->pages.empty();
  }
}

// After the reading: what a worker wrote before it ended may have been in the pipe still; a
// release, above all. Reading may have found the end already, and the pid in use again.
void Server::bury_the_dead() {
  for (const pid_t pid : std::exchange(dead_, {})) {
    Worker* const worker = table_.find_worker(pid);
    if (worker != nullptr && !worker->process->is_alive()) {
      bury(*worker);
    }
  }
}

// The worker has ended, or makes room: its timers go. What it left open is told.
void Server::bury(Worker& worker) {
  warnings_.settle(*worker.process, "the worker ended first");
  const Instant now = Instant::now();
  for (const Scope& scope : worker.by_age) {
    if (scope.is_own()) {
      log_->append(records_.left_open(WorkerIdentity::of(worker), ScopeView::of(scope), now));
    }
  }
  while (!worker.pages.empty()) {
    drop_page(worker, *worker.pages.back(), worker.dying ? "" : kEndedInside);
  }
  if (worker.wire_page) {
    worker.wire_page->remove();
  }
  unsaved_.erase(worker.process->pid);
  if (ended_.size() < kMaxWorkers) {
    ended_.insert(worker.process->pid);
  }
  deaths_.erase(worker.process->pid);
  halted_.erase(worker.process->pid);
  table_.remove_worker(worker);
}

void Server::record_start() {
  kill_path_ = check_kill_path();
  if (!kill_path_.trouble.empty()) {
    messages::warning("can workers be killed here? {}", kill_path_.trouble);
  }
  JsonWriter json = records_.server_event("server_started");
  json.field("version", FILETIMER_VERSION)
      .field("dir", dir_)
      .field("fifo", pipe_.path())
      .field("log", log_->path());
  write_settings(json);
  json.field("adopted_scopes", adopted_scopes_).field("ended_scopes", put_away_scopes_);
  write_standing(json);
  log_->append(std::move(json).finish());
}

void Server::write_settings(JsonWriter& json) const {
  json.begin_object("settings");
  const auto duration = [&json](std::string_view key, Duration value) {
    json.field(key, std::chrono::duration<double>(value).count());
  };
  if (settings_.default_timeout) {
    duration("default_timeout_s", *settings_.default_timeout);
  }
  if (settings_.max_timeout) {
    duration("max_timeout_s", *settings_.max_timeout);
  }
  if (settings_.warn_at) {
    json.field("warn_at", *settings_.warn_at);
  }
  duration("max_wait_s", settings_.max_wait);
  duration("max_interval_s", settings_.max_interval);
  if (settings_.grace) {
    if (*settings_.grace) {
      duration("grace_s", **settings_.grace);
    } else {
      json.null("grace_s");
    }
  }
  duration("kill_wait_s", settings_.kill.kill_wait);
  duration("evidence_timeout_s", settings_.kill.evidence_timeout);
  json.field("kill", settings_.kill.mode == KillMode::kTree    ? "tree"
                     : settings_.kill.mode == KillMode::kGroup ? "group"
                                                               : "process")
      .field("stopped", settings_.stopped == Settings::Stopped::kDefer ? "defer" : "kill")
      .field("evidence", name_of(settings_.kill.evidence))
      .field("dry_run", settings_.kill.dry_run)
      .field("realtime", settings_.realtime)
      .field("on_expiry", !settings_.on_expiry.empty())
      .field("log_max_bytes", settings_.log_max_bytes)
      .end_object();
}

// What it may and can do here.
void Server::write_standing(JsonWriter& json) const {
  json.begin_object("may");
  if (kill_path_.signal) {
    json.field("signal", *kill_path_.signal);
  } else {
    json.null("signal");
  }
  json.field("ptrace", kill_path_.ptrace)
      .field("kernel_stacks", kill_path_.kernel_stacks)
      .end_object();
  json.begin_object("limits")
      .field("descriptors", descriptor_limit())
      .field("workers", most_workers())
      .end_object();
}

void Server::record_stop() {
  report_rejections(Instant::now(), true);
  JsonWriter json = records_.server_event("server_stopped");
  json.field("reason", stopping_ != nullptr ? stopping_ : "COMMAND ended")
      .field("requests", requests_)
      .field("expired", expired_)
      .field("killed", killed_)
      .field("rejected", rejections_.total())
      .field("lost_records", log_->lost_records())
      .begin_array("left");
  const Instant now = Instant::now();
  std::size_t listed = 0;
  table_.for_each_worker([&](Worker& worker) {
    for (const ScopeView& scope : open_scopes_of(worker)) {
      if (++listed <= kMaxLeftScopes && json.size() <= kMaxRecordBytesOfLists) {
        json.begin_object()
            .field("pid", worker.process->pid)
            .field("scope", scope.name)
            .fixed("elapsed_s", std::chrono::duration<double>(now - scope.terms.acquired).count(),
                   6)
            .end_object();
      }
    }
  });
  json.end_array().field("left_count", listed);
  log_->append(std::move(json).finish());
}

}  // namespace filetimer
