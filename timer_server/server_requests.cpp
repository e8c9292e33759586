// The server's requests: who may ask, for whom, and what is granted.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/scope_name.hpp"
#include "common/soft_deadline.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/messages.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

constexpr int kLastSignal = 64;  // of Linux
// Names of scopes whose cut timeout was told; a client that makes up names can't make us grow.
constexpr std::size_t kMaxCutNames = 1024;

// A name or its bounded form; `storage` holds the latter.
std::string_view bounded(std::string_view name, std::string& storage) {
  if (name.size() <= kMaxScopeNameBytes) {
    return name;
  }
  storage = bounded_scope_name(name);
  return storage;
}

}  // namespace

void Server::on_request(const wire::Request& request, std::string_view line) {
  ++requests_;
  try {
    handle(request, line);
  } catch (const std::exception& error) {
    // The lines behind it are still to be read: releases among them.
    rejections_.add(fmt::format("it could not be carried out: {}", error.what()), line,
                    request.pid);
  }
}

void Server::handle(const wire::Request& request, std::string_view line) {
  if (!request.question.request.empty()) {
    on_question(request, line);
  } else if (request.x_page) {
    on_page_hint(*request.x_page);
  } else if (request.is_release()) {
    release(request);
  } else {
    acquire(request, line);
  }
}

void Server::on_rejected(std::string_view reason, std::string_view line) {
  ++requests_;
  rejections_.add(reason, line, 0);
}

void Server::acquire(const wire::Request& request, std::string_view line) {
  const auto reject = [&](std::string_view reason) { rejections_.add(reason, line, request.pid); };
  if (request.signal > kLastSignal) {
    reject(fmt::format("signal is {}: expected at most {}", request.signal, kLastSignal));
    return;
  }
  const Result<Worker*> worker = worker_of(request.pid);
  if (!worker) {
    // What a worker wrote before it ended may be read after it; and a scope that is the whole life
    // of a process is over with it, however short that was.
    const bool is_over = worker.error().errno_value == ESRCH &&
                         (request.x_whole_process || ended_.contains(request.pid));
    if (!is_over) {
      reject(worker.error().message);
    }
    return;
  }
  if ((*worker)->dying) {
    return;  // it will not live to need the scope
  }
  std::string id_storage;
  std::string name_storage;
  const std::string_view id = bounded(request.scope_id, id_storage);
  std::string_view name = bounded(request.x_scope.value_or(id), name_storage);
  if (!id.starts_with(name)) {
    name = id;
  }
  // What comes through a pipe that stays is the next server's if this one is being stopped.
  const bool is_for_next = stopping_ != nullptr && pipe_.outlives_us();
  if (is_draining() && !is_for_next && !request.x_idle &&
      table_.find_scope(**worker, id) == nullptr) {
    reject("the server is draining: no new scopes");
    return;
  }
  ladder_.note_release(*(*worker)->process, id, now_.mono);  // if it was judged: a late renewal
  const ScopeTerms terms = terms_of(request, **worker, name);
  if (!(*worker)->wire_page) {
    (*worker)->wire_page =
        std::make_unique<WirePage>(page_folder_.server_path(fmt::format("{}", request.pid)));
  }
  if (const auto scope = table_.acquire(**worker, id, name, terms); !scope) {
    reject(scope.error().message);
  } else if (terms.is_idle) {
    (*worker)->set_idle_since(terms.acquired);
  }
  keep(**worker);
}

void Server::release(const wire::Request& request) {
  Worker* const worker = table_.find_worker(request.pid);
  if (worker == nullptr) {
    return;
  }
  std::string storage;
  const std::string_view id = bounded(request.scope_id, storage);
  if (Scope* const scope = table_.find_scope(*worker, id)) {
    if (scope->is_own()) {
      worker->left_on_pipe = now_.mono;
    }
    table_.close(*scope);
    keep(*worker);
  } else {
    ladder_.note_release(*worker->process, id, now_.mono);
  }
}

// The worker that a pid means at this moment. A pid that was used again since the last batch means
// the new process: what is asked is asked by the living.
Result<Worker*> Server::worker_of(pid_t pid) {
  if (Worker* const known = table_.find_worker(pid)) {
    // One look a batch is exact: the batch was read before it, so whoever wrote it under this
    // pid, and is alive now, was alive then.
    if (known->seen_alive_in == batch_ || known->process->is_alive()) {
      known->seen_alive_in = batch_;
      return known;
    }
    // It has ended. What it wrote before that counts, its last release above all, unless the pid is
    // somebody else's by now; its end is on its way to us.
    if (!open_process(pid)) {
      return known;
    }
    bury(*known);
  }
  // Looking a stranger up takes a few system calls: not once a line for one who floods us.
  if (const auto refused = refused_in_batch_.find(pid); refused != refused_in_batch_.end()) {
    return tl::unexpected<Error>(refused->second);
  }
  auto admitted = admit(pid);
  if (!admitted) {
    refused_in_batch_[pid] = admitted.error();
  }
  return admitted;
}

Result<Worker*> Server::admit(pid_t pid) {
  if (pid <= 1) {
    return failure(fmt::format("pid is {}: expected a worker's, over 1", pid));
  }
  if (pid == ::getpid()) {
    return failure(fmt::format("pid {} is this server", pid));
  }
  const std::vector<pid_t> above = ancestors_of(::getpid());
  if (std::ranges::find(above, pid) != above.end()) {
    return failure(fmt::format("pid {} has started this server", pid));
  }
  auto process = open_process(pid);
  if (!process) {
    return tl::unexpected<Error>(std::move(process.error()));
  }
  if (process->uid != ::geteuid()) {
    return failure(fmt::format("pid {} belongs to user {}: expected a process of user {}", pid,
                               process->uid, ::geteuid()));
  }
  return watch(std::move(*process));
}

Result<Worker*> Server::watch(Process process) {
  const pid_t pid = process.pid;
  if (table_.worker_count() >= most_workers()) {
    std::vector<Worker*> idle;
    table_.for_each_worker([&](Worker& worker) {
      // A worker that was judged may have released its last scope in time to be spared.
      if (worker.scopes.empty() && worker.pages.empty() && !worker.dying &&
          !ladder_.has_kill_of(*worker.process)) {
        idle.push_back(&worker);
      }
    });
    for (Worker* worker : idle) {
      bury(*worker);
    }
    if (table_.worker_count() >= most_workers()) {
      return tl::unexpected<Error>(Error{
          fmt::format("{} workers are watched: no more fit (see ulimit -n)", table_.worker_count()),
          EAGAIN});
    }
  }
  auto added = table_.add_worker(std::move(process));
  if (!added) {
    return added;
  }
  Worker& worker = **added;
  worker.seen_alive_in = batch_;
  if (!join_by_.is_never()) {
    arrived_.push_back(WorkerIdentity::of(worker));
  }
  try {
    deaths_[pid] = add_io(worker.process->pidfd.get(), kDeathsFirst, [this, pid] {
      dead_.push_back(pid);
      turn();
    });
  } catch (const std::system_error& error) {
    deaths_.erase(pid);
    table_.remove_worker(worker);
    return tl::unexpected<Error>(
        Error{fmt::format("pid {} can't be watched: {}", pid, error.what()), error.code().value()});
  }
  // Weak: a job that waits behind a hung one must not hold the pidfd of a worker that has ended.
  side_threads_.run(
      [this, weak = std::weak_ptr(worker.process), cell = worker.facts]() -> SideThreads::Delivery {
        const auto held = weak.lock();
        if (!held) {
          return [] {};
        }
        WorkerFacts facts = read_worker_facts(held->pid);
        if (!held->is_alive()) {
          return [] {};  // what was read may be somebody else's
        }
        return [this, cell, pid = held->pid, facts = std::move(facts)] {
          *cell = facts;
          unsaved_.insert(pid);
        };
      });
  messages::debug("watching pid {} ({})", pid, worker.process->comm);
  return &worker;
}

ScopeTerms Server::terms_of(const wire::Request& request, const Worker& worker,
                            std::string_view name) {
  ScopeTerms terms;
  terms.acquired = now_.mono;
  terms.deadline = monotonic_from_unix(request.expiration_time, now_);
  terms.signal = request.signal;
  terms.tid = request.x_tid.value_or(0);
  terms.whole_process = request.x_whole_process;
  terms.is_idle = request.x_idle;
  terms.spare_if_left = request.x_spare_if_left;
  if (request.x_timeout_s) {
    terms.timeout = duration_from_seconds(*request.x_timeout_s);
    if (terms.timeout != kForever && !terms.deadline.is_never()) {
      // When the client opened it, which may be a while before the line was read.
      terms.acquired = std::min(terms.acquired, Instant{terms.deadline.ns - terms.timeout.count()});
    }
  } else if (!terms.deadline.is_never()) {
    terms.timeout = std::max(terms.deadline - now_.mono, Duration::zero());
  }
  if (request.x_grace_s && !std::isnan(*request.x_grace_s)) {
    const Duration grace = duration_from_seconds(*request.x_grace_s);
    if (*request.x_grace_s >= 0 && grace != kForever) {
      terms.grace = grace_of(grace);
    }
  } else if (settings_.grace) {
    terms.grace = grace_of(*settings_.grace);
  } else if (request.is_from_own_client()) {
    terms.grace = grace_of(Settings::kDefaultGrace);
  }
  if (request.x_soft_s && *request.x_soft_s > 0) {
    const Duration soft = duration_from_seconds(*request.x_soft_s);
    terms.soft_ms = soft <= kLongestSoft ? soft_ms(soft) : 0;
  }
  const Duration longest = settings_.max_timeout.value_or(kForever);
  if (longest != kForever && !terms.is_idle && terms.deadline > now_.mono + longest) {
    terms.asked = terms.timeout;
    terms.deadline = now_.mono + longest;
    terms.timeout = longest;
    tell_cut(worker, name, terms.asked);
  } else {
    terms.asked = terms.timeout;
  }
  return terms;
}

// Once a name.
void Server::tell_cut(const Worker& worker, std::string_view name, Duration asked) {
  if (cut_names_.size() < kMaxCutNames && cut_names_.emplace(name).second) {
    log_->append(records_.cut_by_max_timeout(WorkerIdentity::of(worker), name, asked,
                                             *settings_.max_timeout));
  }
}

void Server::report_rejections(Instant now, bool force) {
  if (const auto report = rejections_.take(now, force)) {
    log_->append(records_.rejected(report->count, report->reason, report->line, report->pid));
    messages::warning("{} request{} rejected, the last one because: {}", report->count,
                      report->count == 1 ? "" : "s", report->reason);
  }
}

}  // namespace filetimer
