// Scopes on the page that are paused: their time stands still, by the word of their caller or with
// all others of a thread (a paused region). A pause is a renewal to slot_word::kPaused and a
// resumption one to what was left, so both are ordered with release and verdict as renewals are.
// --max-timeout holds for pauses, too. All of it is rare, and wants the Keeper's lock but where it
// says otherwise.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "common/scope_page.hpp"
#include "timer_client/src/page/slot_handle.hpp"

namespace filetimer {

// What a scope is opened with, checked and in the page's units.
struct PageTerms {
  std::int64_t timeout = 0;  // ns; max: none
  std::uint32_t grace_ms = kServersGrace;
  std::uint32_t soft_ms = 0;
  std::uint16_t signal = 0;
  std::uint16_t flags = 0;
  std::uint64_t client = 0;  // that releases it when it goes; 0: a TimerScope does
};

// `by`: slot_flag::kPausedByCaller or kSuspended; a scope goes on when neither holds it any more.
// False: it is not open. `wake` is set where OwnPage::wake() is to be called, without the lock.
bool pause_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;
bool resume_scope(SlotHandle& handle, std::uint16_t by, bool& wake) noexcept;

// Open, and paused with all others of its thread.
bool is_suspended(const SlotHandle& handle) noexcept;

// As open_scope(), in a thread whose scopes are suspended. Without the lock.
unsigned open_suspended(SlotHandle& handle, const PageTerms& terms);

// Of an open scope that is or was paused. True: it is paused now, and stays so with `timeout` left.
// False: it is renewed as any other. Without the lock.
bool renew_after_pause(SlotHandle& handle, std::int64_t timeout, bool& wake) noexcept;

}  // namespace filetimer
