// What the answers to control requests say of the server.
// SPDX-License-Identifier: MIT
#include <algorithm>

#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "timer_server/hardening.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/server.hpp"

namespace filetimer {
namespace {

// Open scopes, and workers, that an answer lists.
constexpr std::size_t kMostListed = 64;

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

}  // namespace

void Server::write_status(JsonWriter& json, Instant now) {
  json.fixed("uptime_s", std::chrono::duration<double>(now - started_).count(), 3)
      .field("dir", directory_.path())
      .field("fifo", directory_.pipe().path())
      .field("log", log_->path());
  if (const auto& command = children_.command()) {
    json.field("command_pid", command->pid());
  }
  json.field("announcement", name_of(control_.announcement()))
      .field("workers", workers_.count())
      .field("open_scopes", open_scope_count())
      .field("requests", inbox_.count())
      .field("rejected", rejections_.total())
      .field("expired", verdicts_.expired())
      .field("killed", verdicts_.killed())
      .field("kills_under_way", verdicts_.ladder().count())
      .field("unkillable", verdicts_.unkillable())
      .field("lost_records", log_->lost_records())
      .field("askers", control_.client_count() - 1)  // without the one that asks
      .field("descriptors", open_descriptors());
  if (!log_->is_working(now)) {
    json.field("log_trouble", "it can't be written: records wait in memory");
  }
  if (!directory_.pipe_trouble().empty()) {
    json.field("pipe_trouble", directory_.pipe_trouble());
  }
  write_standing(json);
  write_settings(json);
}

bool Server::has_workers() const {
  return workers_.count() > 0;
}

bool Server::has_kills() const {
  return !verdicts_.ladder().idle();
}

void Server::announce() {
  directory_.announce(control_.announcement());
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

std::size_t Server::open_scope_count() {
  std::size_t count = 0;
  workers_.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      count += page->watched_count();
    }
  });
  return count;
}

void Server::write_open_scopes(JsonWriter& json, bool with_workers, std::size_t room) {
  const Instant now = Instant::now();
  json.field("open_scope_count", open_scope_count()).begin_array("open_scopes");
  std::size_t listed = 0;
  workers_.for_each([&](Worker& worker) {
    if (listed >= kMostListed || json.size() > room) {
      return;
    }
    std::vector<ScopeView> views;
    for (const auto& page : worker.pages) {
      for (const SlotReading& reading : page->open_slots()) {
        if (slot_word::is_open(reading.word)) {
          views.push_back(policy_.view_of(reading, worker));
        }
      }
    }
    std::ranges::stable_sort(views, {}, [](const ScopeView& view) { return view.terms.acquired; });
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
  json.field("worker_count", workers_.count()).begin_array("workers");
  listed = 0;
  workers_.for_each([&](Worker& worker) {
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
