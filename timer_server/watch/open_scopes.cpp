// SPDX-License-Identifier: MIT
#include "timer_server/watch/open_scopes.hpp"

#include <algorithm>
#include <vector>

#include "common/limits.hpp"
#include "common/scope_page.hpp"
#include "timer_server/records/records.hpp"

namespace filetimer {

std::size_t OpenScopes::count() const {
  std::size_t count = 0;
  workers_.for_each([&](Worker& worker) {
    for (const auto& page : worker.pages) {
      count += page->watched_count();
    }
  });
  return count;
}

void OpenScopes::write(JsonWriter& json, bool with_workers, std::size_t room) const {
  write_scopes(json, room);
  if (with_workers) {
    write_workers(json, room);
  }
}

void OpenScopes::write_scopes(JsonWriter& json, std::size_t room) const {
  const Instant now = Instant::now();
  json.field("open_scope_count", count()).begin_array("open_scopes");
  std::size_t listed = 0;
  const auto is_full = [&] { return listed >= kMostListed || json.size() > room; };
  workers_.for_each([&](Worker& worker) {
    if (is_full()) {
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

void OpenScopes::write_left(JsonWriter& json) const {
  const Instant now = Instant::now();
  std::size_t listed = 0;
  json.begin_array("left");
  workers_.for_each([&](const Worker& worker) {
    for (const ScopeView& scope : policy_.open_scopes_of(worker)) {
      if (++listed <= kMaxLeftScopes && json.size() <= kMaxRecordBytesOfLists) {
        const std::chrono::duration<double> elapsed = now - scope.terms.acquired;
        json.begin_object()
            .field("pid", worker.process->pid)
            .field("scope", scope.name)
            .fixed("elapsed_s", elapsed.count(), 6)
            .end_object();
      }
    }
  });
  json.end_array().field("left_count", listed);
}

void OpenScopes::write_workers(JsonWriter& json, std::size_t room) const {
  json.field("worker_count", workers_.count()).begin_array("workers");
  std::size_t listed = 0;
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
