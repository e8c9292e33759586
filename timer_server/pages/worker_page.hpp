// The scopes of a worker in slots, as the server reads and judges them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/page_reader.hpp"
#include "common/scope_statistics.hpp"
#include "timer_server/given_time.hpp"
#include "timer_server/pages/page_guard.hpp"

namespace filetimer {

// Slots in the layout of a scope page, whoever writes them: the worker (MappedPage), or the server
// for a worker that speaks on the pipe (PipePage). Values are bounded and never trusted. The server
// changes one thing only, the deadline word of a slot, by compare-and-swap. Used on the loop
// thread.
class WorkerPage {
 public:
  virtual ~WorkerPage() = default;
  WorkerPage(const WorkerPage&) = delete;
  WorkerPage& operator=(const WorkerPage&) = delete;

  // Returns the name of the page's file in `scopes`. Empty: the page is not the worker's own.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns which program the worker ran when it was asked for, as /proc/PID/stat's startstack; 0:
  // not known, or of no importance.
  [[nodiscard]] virtual std::uint64_t program() const { return 0; }
  // Returns the signal on which the worker writes its Python stacks, as it says; 0: none.
  virtual std::uint32_t dump_signal() { return 0; }
  // Adds how long the worker's scopes took to `sums`.
  virtual void add_statistics(StatisticsByName& /*sums*/) {}

  // What deadlines are judged by.
  struct Terms {
    Duration max_timeout = kForever;
    std::uint32_t warn_at = 0;  // --warn-at as the status page has it; 0: none
  };
  struct Scan {
    Instant now;
    Terms terms;
    const GivenTime& given;
    Instant resumed;  // when the worker was resumed last; Instant{}: it never was halted
  };
  struct Due {
    std::size_t slot = 0;
    std::int64_t word = 0;
    Instant deadline;
  };
  // What a scan has found.
  struct Found {
    std::vector<Due> due;   // scopes whose deadline is at or before `now`
    std::vector<Due> soft;  // whose soft deadline is, and whose deadline is not; each once a span
    void clear() {
      due.clear();
      soft.clear();
    }
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
  virtual Activity activity();
  // Adds to `found` and `activity`. Returns the earliest deadline of the scopes that are not due,
  // soft ones included.
  virtual Instant scan(const Scan& scan, Found& found, Activity& activity);
  // Returns when the scope in the slot is due, under its word.
  [[nodiscard]] static Instant deadline_of(const Slot& slot, std::int64_t word, const Scan& scan);
  // Returns when that idle timeout is due if scopes were left last at `last_left`. Nothing when it
  // was judged since.
  std::optional<Instant> idle_due(const Activity::IdleWatch& watch, Instant last_left,
                                  const Scan& scan);
  // Takes note that an earlier server has judged the idle timeouts for that deadline.
  void recall_idle(Instant deadline);

  // Gives the verdict. False: a release or a renewal came first.
  bool try_expire(std::size_t slot, std::int64_t word);
  bool try_expire_idle(std::size_t slot, Instant deadline);
  // Returns whether a slot that was judged under `word` was released since.
  [[nodiscard]] bool was_released_late(std::size_t slot, std::int64_t word);
  // Ends the verdict under `word`: its kill is over.
  virtual void finish(std::size_t slot, std::int64_t word);
  // Takes the verdict back: the scope is open again, and judged anew.
  virtual void reopen(std::size_t slot, std::int64_t word);
  virtual void acknowledge_late_release(std::size_t slot);
  // A slot that an earlier server has judged.
  struct Judged {
    std::size_t slot = 0;
    std::int64_t word = 0;  // the deadline that was judged
    bool released = false;  // late, by the worker
    SlotReading reading;
  };
  std::vector<Judged> judged_slots();

  // Returns the slot under that word: as open, or as judged.
  std::optional<SlotReading> read(std::size_t slot, std::int64_t word);
  // Returns whether the slot is open under just that word.
  [[nodiscard]] bool is_open(std::size_t slot, std::int64_t word);
  // Returns the open scopes, and those that were judged but not released; of more than `most` those
  // that were opened last.
  std::vector<SlotReading> open_slots(std::size_t most = kMaxScopesPerWorker);
  // Returns how many open_slots() there are, without idle timeouts.
  std::size_t open_count();
  // Returns the number of open scopes on which there was no verdict, without idle timeouts.
  std::size_t watched_count();
  // Returns open scopes for which more than `timeout` was asked, each once until it is renewed.
  std::vector<SlotReading> take_slots_over(Duration timeout);
  // Returns slots whose scope outlived the thread that opened it, each once.
  std::vector<SlotReading> take_thread_ended();
  // Returns how many scopes were open at `now` and get time for a gap that ends then.
  std::size_t count_given_time(const Scan& before, Instant now);

  // Unmaps the memory of names, which would cost a memory page for each worker.
  virtual void let_go_of_names() {}
  // False once the worker has cut the page short.
  [[nodiscard]] bool is_whole() const { return is_whole_; }

 protected:
  explicit WorkerPage(std::string name) : name_(std::move(name)) {}

  // Returns the number of slots that may be in use: those below it.
  [[nodiscard]] virtual std::size_t slot_count() const = 0;
  [[nodiscard]] virtual Slot* first_slot() const = 0;
  // Returns the identity of the scope in a slot, valid UTF-8.
  [[nodiscard]] virtual std::string id_of(std::size_t slot) = 0;
  // Returns the memory that another process can take away under the server; empty: none.
  [[nodiscard]] virtual std::span<std::byte> guarded_memory() { return {}; }
  // Is called after the server has changed the word of a slot.
  virtual void on_change(std::size_t /*slot*/) {}

  [[nodiscard]] Slot& slot_at(std::size_t index) const { return first_slot()[index]; }
  template <class Work>
  void guarded(Work&& work);

  [[nodiscard]] bool is_warned(std::size_t slot, std::int64_t word) const {
    return slot < warned_.size() && warned_[slot] == word;
  }
  void note_warned(std::size_t slot, std::int64_t word);

 private:
  template <class Visit>
  bool for_each_slot(Visit&& visit);
  void note_activity(std::size_t index, const Slot& slot, std::int64_t word, Activity& activity);
  template <class Wanted>
  std::size_t count_those(Wanted&& wanted);
  template <class Wanted>
  std::vector<SlotReading> read_those(Wanted&& wanted, std::size_t most);
  std::optional<SlotReading> read_slot(std::size_t index, std::int64_t word);

  std::string name_;
  bool is_whole_ = true;
  std::unordered_map<std::size_t, Instant> judged_idle_;  // by slot: the last deadline
  std::vector<std::int64_t> warned_;  // by slot: the word under which it was warned about
  std::vector<std::int64_t> over_;    // by slot: the open word for which take_slots_over() gave it
  std::vector<std::int64_t> told_;    // acquired times of slots that take_thread_ended() has given
};

// No guard is made within another one: `work` calls nothing that is guarded.
template <class Work>
void WorkerPage::guarded(Work&& work) {
  if (!is_whole_) {
    return;
  }
  const std::span<std::byte> memory = guarded_memory();
  if (memory.empty()) {
    work();
    return;
  }
  const PageGuard guard(memory.data(), memory.size());
  work();
  is_whole_ = !PageGuard::faulted();
}

}  // namespace filetimer
