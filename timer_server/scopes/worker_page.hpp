// The scopes of a worker in slots, as the server reads and judges them.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/due.hpp"
#include "common/mapped_file.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/scope_statistics.hpp"

namespace filetimer {

// Slots in the layout of a scope page. They are written by the worker (MappedPage), or by the
// server for a worker that sends lines (PipePage). What is read is limited and never trusted. In a
// slot of the worker's the server changes the deadline word only, by compare-and-swap.
class WorkerPage : NotCopied {
 public:
  virtual ~WorkerPage() = default;

  // Returns the name of the page's file in `scopes`, or an empty name for a page of the server's.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns which program the worker ran when the page was admitted, as startstack of
  // /proc/PID/stat. Returns 0 if that is not known or not needed.
  [[nodiscard]] std::uint64_t program() const { return program_; }
  void set_program(std::uint64_t start_stack) { program_ = start_stack; }
  // Returns whether the worker has lost the lock of its page. `opens`: may open the file for that.
  // Otherwise false where each program that the worker executes has another program().
  [[nodiscard]] virtual bool has_lost_lock(bool /*opens*/) const { return false; }
  // Returns the signal on which the worker writes its Python stacks, as the page names it; 0: none.
  [[nodiscard]] std::uint32_t dump_signal() const {
    return layout_ ? layout_->header().dump_signal.load(kRelaxed) : 0;
  }
  // Adds the statistics of the page to `sums`.
  void add_statistics(StatisticsByName& sums) const {
    if (layout_) {
      filetimer::add_statistics(*layout_, sums);
    }
  }
  // Adds the scopes that have ended last on the page to `ended`.
  void add_ended_scopes(EndedScopesByName& ended) const {
    if (layout_) {
      filetimer::add_ended_scopes(*layout_, ended);
    }
  }

  // The server's settings that change deadlines.
  struct Terms {
    Duration max_timeout = kForever;
    std::uint32_t warn_at = 0;  // --warn-at as the status page has it; 0: none
    Duration grace{};           // of scopes that name none; zero: no SIGKILL follows
  };
  struct Scan {
    Instant now;
    Terms terms;
    const LostTime& server;               // in which the server could not run
    const LostTime& worker;               // Worker::lost
    Instant previous = Instant::never();  // when the last scan began
  };
  struct Due {
    std::size_t slot = 0;
    std::int64_t word = 0;
    Instant deadline;
  };
  // The scopes that a scan has found.
  struct Found {
    std::vector<Due> due;   // with a deadline at or before `now`
    std::vector<Due> soft;  // with a soft deadline only at or before `now`; each once a span
    // To be signalled first at or before `now`; each until note_signalled().
    std::vector<Due> to_signal;
    void clear() {
      due.clear();
      soft.clear();
      to_signal.clear();
    }
  };
  // Whether the worker is in a scope, and its idle timeouts.
  struct Activity {
    bool is_inside = false;
    Instant last_left;  // the latest release that the page notes
    struct IdleWatch {
      WorkerPage* page = nullptr;
      std::size_t slot = 0;
      Duration timeout{};
      Instant since;  // releases before that do not count
    };
    std::vector<IdleWatch> watches;
    // Of the timeouts of open scopes, as granted, of those that were opened and released since the
    // last scan, and of the grace periods of scopes that were signalled first.
    Duration shortest = kForever;
  };
  // Returns the activity of the page.
  Activity activity();
  // Sets `found`, and adds what it finds to `activity`. Returns the earliest deadline of the scopes
  // that are not due, soft deadlines included.
  Instant scan(const Scan& scan, Found& found, Activity& activity);
  // Notes that the scope was signalled at that time, under its word.
  void note_signalled(const Due& scope, Instant at) {
    Notes& notes = notes_of(scope.slot);
    notes.warned = notes.signalled = scope.word;  // its soft deadline has passed, too
    notes.signalled_at = at;
  }
  // Returns when the idle timeout is due if the last release was at `last_left`. Returns nothing if
  // it was judged since.
  std::optional<Instant> idle_due(const Activity::IdleWatch& watch, Instant last_left,
                                  const Scan& scan) {
    if (last_left <= notes_of(watch.slot).judged_idle) {
      return std::nullopt;
    }
    return due_after_losses(last_left + watch.timeout, {last_left, watch.timeout}, scan.server,
                            scan.worker);
  }
  // Records that an earlier server has judged the idle timeouts for `deadline`.
  void restore_idle_verdict(Instant deadline) {
    for (const Activity::IdleWatch& watch : activity().watches) {
      Instant& last = notes_of(watch.slot).judged_idle;
      last = std::max(last, deadline);
    }
  }

  // Gives the verdict on the slot under `word`. Returns false if a release or a renewal came first.
  bool try_expire(std::size_t slot, std::int64_t word);
  // Gives the verdict on an idle timeout. Returns false if the worker ended it first.
  bool try_expire_idle(std::size_t slot, Instant deadline);
  // Returns when a scope that was judged was released since.
  [[nodiscard]] std::optional<Instant> released_late_at(const Due& scope);
  // Marks the slot that was judged under `word`: its kill is over.
  void finish(std::size_t slot, std::int64_t word);
  // Revokes the verdict: the scope is open again, and will be judged again.
  void reopen(std::size_t slot, std::int64_t word);
  // Frees a slot that was released after its verdict.
  void acknowledge_late_release(std::size_t slot);
  // A slot that an earlier server has judged.
  struct Judged {
    std::size_t slot = 0;
    std::int64_t word = 0;  // the deadline that was judged
    bool released = false;  // late, by the worker
    SlotReading reading;
  };
  // Returns the slots with a verdict whose kill is not over, and those released after one.
  std::vector<Judged> judged_slots();

  // Returns the fields of the slot, if its word is `word`.
  std::optional<SlotReading> read(std::size_t slot, std::int64_t word) {
    auto reading = read_slot(slot, word);
    return is_whole() ? reading : std::nullopt;
  }
  // Returns whether the word of the slot is `word`.
  [[nodiscard]] bool is_open(std::size_t slot, std::int64_t word);
  // Returns the open scopes, and those that were judged but not released. An idle timeout is among
  // them only while its kill is under way. Returns at most `most`: those that were opened last.
  // Sets `count` to the number of all of them.
  std::vector<SlotReading> open_slots(std::size_t most = kMaxScopesPerWorker,
                                      std::size_t* count = nullptr);
  // Returns the number of open scopes without a verdict.
  std::size_t watched_count();
  // A wait of a scope for the server.
  struct Wait {
    Duration length{};  // zero: there is none
    Instant until;
  };
  // Returns the longest wait of a scope. A scope waits since its last change if no scan has seen
  // that change although the scope is due before `before`. Its wait is its timeout at most, less
  // the lost time of the server that follows, for which it gets time anyway. The wait counts if it
  // is longer than the server may be late for such a timeout.
  Wait longest_unseen(Instant before, const Scan& scan);
  // Notes that no scan has read this page yet: until scan() has, longest_unseen() takes all its
  // scopes for unseen.
  void note_new() { is_new_ = true; }

  // Releases the memory of names, which would cost a memory page for each worker.
  void unmap_names() const;
  // Returns where the first memory page with a name begins, for memory pages of a size: it may have
  // slots, too, which are read from the file again.
  static constexpr std::size_t names_begin(std::size_t memory_page) {
    return kNamesAt / memory_page * memory_page;
  }
  // Returns false if the worker has truncated the page.
  [[nodiscard]] virtual bool is_whole() const { return true; }

 protected:
  explicit WorkerPage(std::string name = {}, std::optional<PageLayout> layout = std::nullopt)
      : layout_(layout), name_(std::move(name)) {}

  // Returns a number above all slots in use.
  [[nodiscard]] virtual std::size_t slot_count() const = 0;
  [[nodiscard]] virtual Slot* first_slot() const = 0;
  // Returns the identity of the scope in a slot, valid UTF-8.
  [[nodiscard]] virtual std::string id_of(std::size_t slot) = 0;
  // Is called after one of the functions above has changed the word of a slot.
  virtual void on_change(std::size_t /*slot*/) {}

  [[nodiscard]] Slot& slot_at(std::size_t index) const { return first_slot()[index]; }
  [[nodiscard]] static bool is_whole_process(const Slot& slot) {
    return (slot.flags.load(std::memory_order_relaxed) & slot_flag::kWholeProcess) != 0;
  }

  // Lets what was noted of the scope that was in the slot under `before` hold under `word`;
  // kFree: for no scope.
  void move_notes(std::size_t slot, std::int64_t before, std::int64_t word);

  const std::optional<PageLayout> layout_;  // of a page that is mapped

 private:
  template <class Visit>
  bool for_each_slot(Visit&& visit);
  void note_activity(std::size_t index, const Slot& slot, std::int64_t word, Activity& activity);
  std::optional<SlotReading> read_slot(std::size_t index, std::int64_t word) {
    return filetimer::read_slot(slot_at(index), word, [&] { return id_of(index); });
  }
  template <class Change>
  void change_word(std::size_t slot, Change&& change);

  // What the server remembers of a slot.
  struct Notes {
    std::int64_t warned = slot_word::kFree;     // the word under which it was warned about last
    std::int64_t signalled = slot_word::kFree;  // and signalled last
    Instant signalled_at;
    Instant judged_idle;  // the last deadline of an idle timeout
    ScopeLosses losses;
  };
  Notes& notes_of(std::size_t slot) {
    if (notes_.size() <= slot) {
      notes_.resize(slot + 1);
    }
    return notes_[slot];
  }

  const std::string name_;
  std::uint64_t program_ = 0;
  std::vector<Notes> notes_;  // by slot; few pages need them
  bool is_new_ = false;
};

// A page that its worker writes, mapped. The worker may write anything to it, truncate it or delete
// it at any moment.
class MappedPage final : public WorkerPage {
 public:
  // Opens `path`. Fails unless it is a regular file of this user that read_claims() accepts.
  // Follows no symlink and waits for nothing.
  static Result<std::shared_ptr<MappedPage>> open(const std::string& path, std::string name);

  [[nodiscard]] const PageClaims& claims() const { return claims_; }
  // Returns the process that holds the lock, in this pid namespace, as the kernel names it. Fails
  // with ESRCH if no process holds the lock, and with another error if the holder is outside this
  // pid namespace.
  [[nodiscard]] Result<pid_t> owner() const;
  // Closes the descriptor, which only owner() and has_lost_lock() need: one less for each worker.
  void close_descriptor() { file_.close_descriptor(); }
  // After close_descriptor() false, unless it may open the file again.
  [[nodiscard]] bool has_lost_lock(bool opens) const override;

  [[nodiscard]] bool is_whole() const override { return !file_.is_broken(); }
  // Returns the layout, for parts that no other member reads.
  [[nodiscard]] const PageLayout& layout() const { return *layout_; }

 private:
  MappedPage(std::string path, std::string name, MappedFile file)
      : WorkerPage(std::move(name), PageLayout(file.data())),
        path_(std::move(path)),
        file_(std::move(file)) {}
  [[nodiscard]] std::size_t slot_count() const override { return slots_in_use(*layout_); }
  [[nodiscard]] Slot* first_slot() const override { return &layout_->slot(0); }
  [[nodiscard]] std::string id_of(std::size_t slot) override {
    return read_name(layout_->name(slot));
  }

  const std::string path_;
  MappedFile file_;
  PageClaims claims_;
};

}  // namespace filetimer
