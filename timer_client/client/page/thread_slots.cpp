// SPDX-License-Identifier: MIT
#include "timer_client/client/page/thread_slots.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "common/text.hpp"
#include "common/wake_protocol.hpp"
#include "timer_client/client/page/own_page.hpp"
#include "timer_client/client/process_lock.hpp"

namespace filetimer {

constinit thread_local ThreadSlots* t_slots = nullptr;

std::string whole_name(ScopeKey key) {
  std::string_view given = key.given();
  if (!key.is_line()) {
    return std::string(given);
  }
  given.remove_prefix(given.rfind('/') + 1);  // npos + 1 is 0
  return fmt::format("{}:{}", given, key.line());
}

std::string shown_name(ScopeKey key) {
  // Made valid before it is cut, so that names that differ on the page differ for a reader, too.
  return bounded_scope_name(valid_utf8(whole_name(key)));
}

ThreadSlots::ThreadSlots(OwnPage& its_page, unsigned its_fork_count)
    : page(its_page), fork_count(its_fork_count), tid(::gettid()) {
  handles.reserve(kMaxScopesPerWorker);  // so that taking a slot cannot fail
  for (ThreadSlots* each = t_slots; each != nullptr && each->fork_count == fork_count;
       each = each->next_of_thread) {
    if (&each->page.latest() == &page) {
      begun_.insert(each->begun_.begin(), each->begun_.end());
    }
  }
}

ThreadSlots* ThreadSlots::of_this_thread(const OwnPage& page) {
  if (t_slots == nullptr || t_slots->fork_count != fork_watch::count()) {
    return nullptr;
  }
  ThreadSlots** link = &t_slots;
  while (*link != nullptr && &(*link)->page != &page) {
    link = &(*link)->next_of_thread;
  }
  ThreadSlots* const found = *link;
  if (found != nullptr && found != t_slots) {
    *link = found->next_of_thread;
    found->next_of_thread = t_slots;
    t_slots = found;
  }
  return found;
}

SlotHandle* ThreadSlots::find_further(ScopeKey key) noexcept {
  if (SlotHandle* const bound = find_bound(key)) {
    return bound;
  }
  if (!has_enough_idle()) {
    return nullptr;
  }
  try {
    const std::string shown = shown_name(key);
    const auto known = statistics.find(shown);  // not there: it has not been looked up yet
    SlotStatistics* const entry = known == statistics.end() ? nullptr : known->second;
    if (entry == nullptr && page.may_have_statistics()) {
      return nullptr;
    }
    SlotHandle* const handle = next_idle();
    bind(*handle, key, shown, entry);
    make_shortcut(key, *handle);
    return handle;
  } catch (const std::bad_alloc&) {
    return nullptr;  // OwnPage::claim() tries once more, and may throw
  }
}

SlotHandle* ThreadSlots::find_bound(ScopeKey key) noexcept {
  const auto [begin, end] = by_name_.equal_range(Name{key.given(), key.tag});
  const auto found =
      std::find_if(begin, end, [](const auto& each) { return each.second->is_free(); });
  if (found == end) {
    return nullptr;
  }
  make_shortcut(key, *found->second);
  return found->second;
}

SlotHandle* ThreadSlots::next_idle() {
  for (std::size_t looked_at = 0; looked_at < handles.size(); ++looked_at) {
    hand_ = hand_ + 1 < handles.size() ? hand_ + 1 : 0;
    if (handles[hand_]->is_free()) {
      return handles[hand_];
    }
  }
  return nullptr;
}

bool ThreadSlots::has_enough_idle() const {
  const std::size_t enough = page.slots() < kSlotsForMany ? kMaxIdleSlots : 1;
  std::size_t idle = 0;
  return std::ranges::any_of(handles, [&](const SlotHandle* handle) {
    idle += handle->is_free() ? 1U : 0U;
    return idle >= enough;
  });
}

void ThreadSlots::bind(SlotHandle& handle, ScopeKey key, const std::string& shown,
                       SlotStatistics* entry) {
  unbind(handle);
  handle.given.assign(key.given());
  by_name_.emplace(Name{handle.given, key.tag}, &handle);
  handle.tag = key.tag;
  handle.statistics = entry;
  handle.replaced = nullptr;
  if (const ReplacedTimeouts* const timeouts = page.replaced_timeouts()) {
    const auto found = timeouts->find(shown);
    handle.replaced = found == timeouts->end() ? nullptr : &found->second;
    handle.opens_first = handle.replaced != nullptr && begun_.insert(handle.replaced).second;
  }
  begin_writing_slot();
  write_name(page.layout().name(handle.index), shown);
}

void ThreadSlots::unbind(SlotHandle& handle) {
  const auto [begin, end] = by_name_.equal_range(Name{handle.given, handle.tag});
  const auto found =
      std::find_if(begin, end, [&](const auto& each) { return each.second == &handle; });
  if (found != end) {
    by_name_.erase(found);
  }
  handle.tag = SlotHandle::kUnbound;
  handle.statistics = nullptr;
}

void ThreadSlots::make_shortcut(ScopeKey key, SlotHandle& handle) {
  shortcuts_[shortcut_of(key)] = {key.text, key.tag, &handle};
}

}  // namespace filetimer
