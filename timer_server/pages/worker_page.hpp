// One scope page of a worker, as the server sees it: mapped, checked, and never trusted. The worker
// writes it, may scribble on it, cut it short or delete it; the server reads bounded values and
// changes one thing only, the deadline word of a slot, by compare-and-swap. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/mapped_file.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

class EndedStatistics;

class WorkerPage {
 public:
  // Opens `path`. Refused: what is no regular file (never followed, never waited for), another
  // user's, and what read_claims() refuses.
  static Result<WorkerPage> open(const std::string& path, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const PageClaims& claims() const { return claims_; }

  // Who holds the lock, as the kernel says and in this pid namespace; an error when nobody does, or
  // nobody who can be seen from here.
  Result<pid_t> owner() const;
  // Which program its owner ran when it was asked for: /proc/PID/stat's startstack; 0: not known.
  [[nodiscard]] std::uint64_t program() const { return program_; }
  void set_program(std::uint64_t start_stack) { program_ = start_stack; }
  // After the owner was asked for the last time: keeps one descriptor less for each worker.
  void close_descriptor();

  // Scopes whose deadline is at or before `now`, added to `due`; gives the earliest of the others,
  // soft ones included.
  struct Due {
    std::size_t slot = 0;
    std::int64_t word = 0;
    Instant deadline;
  };
  // Those whose soft deadline is at or before `now` and whose deadline is not; each is given once,
  // until it is renewed.
  struct SoftDue {
    std::uint32_t warn_at = 0;  // --warn-at as the board has it; 0: none
    std::vector<Due> slots;     // with their soft deadlines
  };
  // Whether the worker is in a scope, and what watches whether it is in none.
  struct Activity {
    bool is_inside = false;
    Instant last_left;  // when a scope was released last, as far as the page says
    struct IdleWatch {
      WorkerPage* page = nullptr;
      std::size_t slot = 0;
      Duration timeout{};
      Instant since;  // releases before that do not count
    };
    std::vector<IdleWatch> watches;
  };
  Activity activity();
  Instant scan(Instant now, Duration max_timeout, std::vector<Due>& due, SoftDue& soft,
               Activity& activity);
  // When that idle timeout is due, with what it was given beyond (postpone()), if scopes were left
  // last at `last_left`. Nothing when it was judged since.
  std::optional<Instant> idle_due(const Activity::IdleWatch& watch, Instant last_left);
  // The worker is in a scope: what the watch was given is over.
  void note_inside(const Activity::IdleWatch& watch) { postponed_.erase(watch.slot); }
  // A server before this one has judged it for that deadline, and the worker lives on.
  void recall_idle(Instant deadline);
  // A server before this one has warned about the open scopes of which `was_warned` says so.
  void recall_warnings(const std::function<bool(const SlotReading&)>& was_warned);
  // The deadline of an open slot is `until` for as long as the slot says `word`. In the server's
  // memory: the word is the worker's, who may be in the middle of releasing it.
  void postpone(std::size_t slot, std::int64_t word, Instant until);
  // Every open slot: `longer` gives the new deadline.
  struct OpenSlot {
    Instant deadline;
    Duration timeout{};  // granted; kForever: none
    bool is_extended = false;
  };
  struct Extension {
    Instant deadline;
    bool is_extended = false;
  };
  void postpone_all(Duration max_timeout, const std::function<Extension(const OpenSlot&)>& longer);
  // The verdict. False: a release or a renewal came first.
  bool try_expire(std::size_t slot, std::int64_t word);
  bool try_expire_idle(std::size_t slot, Instant deadline);
  // The slot under that word: as open, or as judged.
  std::optional<SlotReading> read(std::size_t slot, std::int64_t word);
  // Open under just that word.
  [[nodiscard]] bool is_open(std::size_t slot, std::int64_t word);
  // Names lie on memory pages of their own: mapped on, they would cost one for each worker.
  void let_go_of_names();
  // Of a slot that was judged under `word`.
  [[nodiscard]] bool was_released_late(std::size_t slot, std::int64_t word);
  void finish(std::size_t slot, std::int64_t word);
  // A verdict of a server before this one that it did not live to record: the scope is open again,
  // and judged anew. Gives the slots whose verdicts are still to be carried out: those for which
  // `is_recorded` says so.
  struct Judged {
    std::size_t slot = 0;
    std::int64_t word = 0;  // the deadline that was judged
    bool released = false;  // late, by the worker
    SlotReading reading;
  };
  std::vector<Judged> judged_slots();
  void reopen(std::size_t slot, std::int64_t word);
  void acknowledge_late_release(std::size_t slot);

  // The open scopes, and those that were judged but not released.
  std::vector<SlotReading> open_slots();
  std::size_t open_count();
  // The open scopes on which there was no verdict.
  std::size_t watched_count();
  // Those of them for which more than `timeout` was asked, each once until it is renewed.
  std::vector<SlotReading> take_slots_over(Duration timeout);
  // Slots whose scope outlived the thread that opened it, each told once.
  std::vector<SlotReading> take_thread_ended();

  void add_statistics(EndedStatistics& sums);
  // The signal on which the worker writes its stacks, as it says; 0: none.
  std::uint32_t dump_signal();

  // False once the worker has cut it short.
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  // For reading what read_claims() and the slots do not cover; guard it.
  [[nodiscard]] const PageLayout& layout() const { return layout_; }

 private:
  struct Postponed {
    std::int64_t word = 0;
    Instant until;
    bool is_extended = false;
  };
  WorkerPage(std::string name, UniqueFd fd, MappedFile file);
  template <class Work>
  void guarded(Work&& work);
  template <class Visit>
  bool for_each_slot(Visit&& visit);
  void note_activity(std::size_t index, const Slot& slot, std::int64_t word, Activity& activity);
  [[nodiscard]] const Postponed* postponed(std::size_t slot, std::int64_t word) const;
  [[nodiscard]] Instant deadline_of(std::size_t index, const Slot& slot, std::int64_t word,
                                    Duration max_timeout) const;
  template <class Wanted>
  std::size_t count_those(Wanted&& wanted);
  template <class Wanted>
  std::vector<SlotReading> read_those(Wanted&& wanted);

  std::string name_;
  UniqueFd fd_;
  MappedFile file_;
  PageLayout layout_;
  PageClaims claims_;
  bool is_whole_ = true;
  std::uint64_t program_ = 0;
  [[nodiscard]] bool is_warned(std::size_t slot, std::int64_t word) const {
    return slot < warned_.size() && warned_[slot] == word;
  }
  void note_warned(std::size_t slot, std::int64_t word);

  std::unordered_map<std::size_t, Postponed> postponed_;  // by slot; void under another word
  std::unordered_map<std::size_t, Instant> judged_idle_;  // by slot: the last deadline
  std::vector<std::int64_t> warned_;  // by slot: the word under which it was warned about
  std::vector<std::int64_t> over_;  // by slot: the word under which take_slots_over() has given it
  std::vector<std::int64_t> told_;  // acquired times of slots that take_thread_ended() has given
};

}  // namespace filetimer
