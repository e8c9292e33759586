// The scopes of a worker that speaks on the pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/process.hpp"
#include "timer_server/scope_terms.hpp"
#include "timer_server/worker_facts.hpp"

namespace filetimer {

// Slots in the server's own memory, which the server writes for the worker. save() copies what has
// changed into a file in the layout of a scope page, so that scopes outlive this server and can be
// listed. What is opened and released between two calls of save() is never written. The file is
// written by pwrite, not through a mapping: a full file system is an error here, not a SIGBUS. Used
// on the loop thread.
class PipePage final : public WorkerPage {
 public:
  PipePage(std::string path, Terms terms);

  // Goes on with the file that an earlier server kept for a worker. Refuses what is no page of this
  // user.
  static Result<std::shared_ptr<PipePage>> adopt(std::string path, Terms terms);
  // Returns what the adopted file says of its worker.
  [[nodiscard]] const PageClaims& claims() const { return claims_; }

  // Returns what was adopted, idle timeouts included.
  std::vector<SlotReading> adopted();
  // Restores a verdict that the log has and the file may not: `is_finished` says whether its kill
  // is over.
  void restore_verdict(std::string_view id, bool is_finished);

  // Opens a scope, or replaces the terms of the open one with this identity. `shown_bytes`: how
  // much of `id` is the name that people gave. Returns when the scope is first to be looked at.
  // Refused when kMaxScopesPerWorker scopes are open or judged.
  Result<Instant> acquire(std::string_view id, std::size_t shown_bytes, const ScopeTerms& terms);
  // Releases the scope, too late if it was judged. Returns whether the worker was in it: false for
  // an idle timeout, a whole process and an unknown identity.
  bool release(std::string_view id);
  // Returns whether a scope with this identity is open and not judged.
  [[nodiscard]] bool has_open(std::string_view id) const;
  // Releases all open scopes that are not judged. Returns their names, without idle timeouts.
  std::vector<std::string> release_all();
  // Returns whether no slot is in use.
  [[nodiscard]] bool is_empty() const { return by_id_.empty(); }

  // Writes what has changed, and makes the file when there is something to keep. The worker's job
  // is written as soon as it is known. After an error the file is removed and not made again: no
  // server takes stale scopes for open ones.
  Status save(const Process& worker, const std::optional<WorkerFacts>& facts);
  [[nodiscard]] bool needs_save() const { return !changed_.empty(); }
  void remove();

  Activity activity() override;
  Instant scan(const Scan& scan, Found& found, Activity& activity) override;
  void finish(std::size_t slot, std::int64_t word) override;
  void reopen(std::size_t slot, std::int64_t word) override;
  void acknowledge_late_release(std::size_t slot) override;

 private:
  using SlotNumber = std::uint16_t;
  struct State {
    bool is_changed : 1 = false;      // since save()
    bool is_saved : 1 = false;        // the file says that the slot is in use
    bool has_saved_name : 1 = false;  // and it has the name
    bool is_counted : 1 = false;      // in own_open_
  };

  [[nodiscard]] std::size_t slot_count() const override { return count_; }
  [[nodiscard]] Slot* first_slot() const override { return slots_.get(); }
  [[nodiscard]] std::string id_of(std::size_t slot) override { return ids_[slot]; }
  void on_change(std::size_t slot) override;

  [[nodiscard]] std::vector<SlotNumber>::const_iterator place_of(std::string_view id) const;
  [[nodiscard]] std::optional<SlotNumber> find(std::string_view id) const;
  std::optional<SlotNumber> take_free_slot();
  void grow(std::size_t count);
  void set_terms(Slot& slot, const ScopeTerms& terms) const;
  void free(std::size_t slot);
  void forget_id(std::size_t slot);
  Status make_file(const Process& worker);
  Status write_facts(const WorkerFacts& facts);
  Status write_slot(std::size_t index);

  const std::string path_;
  const Terms terms_;
  PageClaims claims_;
  std::unique_ptr<Slot[]> slots_;
  std::size_t capacity_ = 0;
  std::size_t count_ = 0;  // slots ever used
  std::vector<std::string> ids_;
  std::vector<State> states_;
  std::vector<SlotNumber> by_id_;  // slots in use, by identity; without those released late
  std::vector<SlotNumber> free_;
  std::vector<SlotNumber> changed_;
  std::size_t own_open_ = 0;  // open scopes that the worker itself has opened
  Instant next_;              // no scope is due before
  UniqueFd fd_;
  bool is_given_up_ = false;
  bool has_facts_ = false;
  std::uint32_t saved_count_ = 0;  // as the file's header says
};

}  // namespace filetimer
