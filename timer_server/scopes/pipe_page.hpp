// The scopes of a worker that sends lines on the request pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/scope_page.hpp"
#include "timer_server/scopes/page_folder.hpp"
#include "timer_server/scopes/worker_page.hpp"
#include "timer_server/system/process.hpp"
#include "timer_server/system/worker_facts.hpp"

namespace filetimer {

// Slots in the server's own memory, which the server writes for the worker. save() copies them into
// a file in the layout of a scope page, for the next server and for `timer_client list`. A scope
// that is opened and released between two calls of save() is not in it. The file is not mapped: so
// a full file system is an error and not a SIGBUS, a file that is cut short costs no scope, and a
// name needs no more memory than it has bytes.
class PipePage final : public WorkerPage {
 public:
  // The file is named after `pid` in `folder`.
  PipePage(const std::string& folder, pid_t pid, Terms terms);

  // Reads the file that an earlier server kept for a worker, and writes to it from now on. Fails
  // unless it is a page of this user. Removes a file without a header, whose server was killed
  // while it made the file, and returns null.
  static Result<std::shared_ptr<PipePage>> adopt(const std::string& folder, pid_t pid, Terms terms);
  // Returns the header of the adopted file.
  [[nodiscard]] const PageClaims& claims() const { return *claims_; }

  // Restores a verdict that is in a kill file and may not be in this one.
  void restore_verdict(std::string_view id) {
    if (const auto slot = find(id); slot && slot_word::is_open(word_at(*slot))) {
      (void)try_expire(*slot, word_at(*slot));
    }
  }

  // Opens a scope, or replaces the terms of the open scope with this identity. `shown_bytes`: how
  // many bytes of `id` are the scope's name. Returns the scope's soft deadline, or its deadline if
  // that is earlier. Fails if kMaxScopesPerWorker scopes are open or judged.
  Result<Instant> acquire(std::string_view id, std::size_t shown_bytes, const SlotReading& terms);
  // Releases the scope, late if it was judged. Returns whether the worker was in it: false for a
  // whole-process scope and an unknown identity.
  bool release(std::string_view id);
  // Lets the timeout of the open scope begin at `started`, if that is earlier: its line had no
  // time, and may be as old as that.
  void antedate(std::string_view id, Instant started);
  // Returns whether a scope with this identity is open and not judged.
  [[nodiscard]] bool has_open(std::string_view id) const {
    const auto slot = find(id);
    return slot && slot_word::is_open(word_at(*slot));
  }
  // Releases all open scopes that are not judged, have a deadline after `due_by` and were opened or
  // renewed by `opened_by`; no whole-process scope if there is a `due_by`, because the worker may
  // survive then. Returns their names. No record lists them before the outcome of the kill, so in
  // the file they stay open until end_cancelled(), or until the worker acquires or releases them.
  std::vector<std::string> cancel_all(Instant due_by = {}, Instant opened_by = Instant::never());
  // Releases in the file, too, the cancelled scope with this identity; without one, all of them.
  void end_cancelled(std::optional<std::string_view> id = std::nullopt) {
    std::erase_if(cancelled_, [&](const Cancelled& each) {
      const bool has_ended = !id || entries_[each.slot].id == *id;
      if (has_ended) {
        free_.push_back(each.slot);
        is_changed_ = true;
      }
      return has_ended;
    });
  }
  // Returns whether no slot is in use.
  [[nodiscard]] bool is_empty() const { return by_id_.empty(); }

  // Writes the slots, and makes the file when the first slot is in use. After an error the file is
  // removed, so that no server takes stale scopes for open ones, and the next call makes it anew.
  Status save(const Process& worker, const WorkerFacts& facts);
  [[nodiscard]] bool needs_save() const { return is_changed_; }
  // Lets the next save() make the file anew if another process has removed or replaced it.
  void note_if_removed() {
    if (fd_ && identity_of(path_) != identity_of(fd_.get())) {
      forget_file();
    }
  }
  void remove() {
    if (fd_) {
      remove_page_file(path_);
    }
    forget_file();
  }

 private:
  using SlotNumber = std::uint16_t;
  struct Entry {
    std::string id;
    bool has_saved_name = false;  // the file has it
  };
  // A slot that no scope has, and that is open in the file until end_cancelled(): no other scope
  // takes it until then.
  struct Cancelled {
    SlotNumber slot = 0;
    std::int64_t word = 0;
  };
  struct alignas(Slot) SlotBytes {
    std::byte bytes[sizeof(Slot)];
  };

  [[nodiscard]] std::size_t slot_count() const override { return slots_.size(); }
  [[nodiscard]] Slot* first_slot() const override {
    return reinterpret_cast<Slot*>(const_cast<SlotBytes*>(slots_.data()));
  }
  [[nodiscard]] std::string id_of(std::size_t slot) override { return entries_[slot].id; }
  // A slot whose kill is over is freed although the worker may still be in the scope, because no
  // message on the pipe would announce the end.
  void on_change(std::size_t slot) override {
    if (const std::int64_t word = word_at(slot);
        word == slot_word::kFree || word == slot_word::kJudged) {
      free(slot);
    }
    is_changed_ = true;
  }

  [[nodiscard]] std::vector<SlotNumber>::const_iterator place_of(std::string_view id) const {
    return std::ranges::lower_bound(
        by_id_, id, {}, [this](SlotNumber slot) -> std::string_view { return entries_[slot].id; });
  }
  [[nodiscard]] std::optional<SlotNumber> find(std::string_view id) const {
    const auto place = place_of(id);
    return place != by_id_.end() && entries_[*place].id == id ? std::optional(*place)
                                                              : std::nullopt;
  }
  [[nodiscard]] std::int64_t word_at(std::size_t slot) const {
    return slot_at(slot).deadline.load(kRelaxed);
  }
  SlotNumber take_free_slot();
  void grow(std::size_t count) {
    entries_.resize(count);
    by_id_.reserve(entries_.capacity());
    free_.reserve(entries_.capacity());  // so that a release takes no memory
    slots_.resize(count);                // the last one: else a slot would be lost
  }
  void free(std::size_t slot) {
    slot_at(slot).deadline.store(slot_word::kFree, kRelaxed);
    forget_id(slot);
    is_changed_ = true;
    free_.push_back(static_cast<SlotNumber>(slot));
  }
  void forget_id(std::size_t slot) {
    const auto place = place_of(entries_[slot].id);
    if (place != by_id_.end() && *place == slot) {
      by_id_.erase(place);
    }
  }
  // The next save() makes the file anew.
  void forget_file() {
    fd_.reset();
    for (Entry& entry : entries_) {
      entry.has_saved_name = false;
    }
    is_changed_ = true;
  }
  // Returns false with the reason in errno.
  bool write(const Process& worker, const WorkerFacts& facts);

  const std::string path_;
  const Terms terms_;
  std::unique_ptr<const PageClaims> claims_;  // of an adopted page; null otherwise
  std::vector<SlotBytes> slots_;              // those ever used
  std::vector<Entry> entries_;                // of these slots
  std::vector<SlotNumber> by_id_;  // slots in use, by identity; without those released late
  std::vector<SlotNumber> free_;
  std::vector<Cancelled> cancelled_;
  Instant made_ = Instant::now();
  UniqueFd fd_;
  bool is_changed_ = false;  // since save()
};

}  // namespace filetimer
