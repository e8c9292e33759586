// A worker's page from both sides: the client library of the worker, and the server's reading of
// the page.
// SPDX-License-Identifier: MIT
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <filetimer/timer_client.hpp>
#include <map>
#include <mutex>
#include <thread>

#include "common/sanitizers.hpp"
#include "tests/slots/machine.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"
#include "timer_server/scopes/worker_page.hpp"

namespace filetimer::slots {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSweep = 6h;  // the server reads at least this often
constexpr int kMostForks = 2;    // of a process in its parents

// Returns whether memory is empty in a child, by which the client notices a bare clone(). Under
// qemu-user it is not, although madvise() succeeds.
bool wipes_on_fork() {
  void* const memory =
      ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto& word = *static_cast<int*>(memory);
  word = 1;
  ::madvise(memory, sizeof word, MADV_WIPEONFORK);
  const bool is_wiped =
      testing::run_in_child([&] { return std::string(word == 0 ? "" : "not wiped\n"); }).empty();
  ::munmap(memory, sizeof word);
  return is_wiped;
}

// A thread that does what it is given, one after the other.
class Hand {
 public:
  void run(std::function<void()> work) {
    std::unique_lock held(mutex_);
    work_ = std::move(work);
    changed_.notify_all();
    changed_.wait(held, [&] { return !work_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> work_;
  std::jthread thread_{[this](const std::stop_token& end) {
    std::unique_lock held(mutex_);
    while (changed_.wait(held, end, [&] { return bool{work_}; })) {
      work_();
      work_ = nullptr;
      changed_.notify_all();
    }
  }};
};

class PageMachine final : public Machine {
 public:
  explicit PageMachine(unsigned variant) : Machine(variant, false) {
    start_server();
    client_.emplace(server_->connect());
    for (auto& hand : hands_) {
      hand = std::make_unique<Hand>();
    }
    is_announced_ = true;
    check();
    look();
  }

 private:
  MappedPage& page() { return static_cast<MappedPage&>(*page_); }
  void on(int thread, const std::function<void()>& work) {
    if (thread == 0) {
      work();
    } else {
      hands_[static_cast<std::size_t>(thread - 1)]->run(work);
    }
  }
  [[nodiscard]] int number_of(int thread) const {
    return model_.thread[static_cast<std::size_t>(thread)];
  }
  void start_server() {
    std::filesystem::create_directory(dir_);
    server_ = new testing::FakeServer(dir_);
    server_->board().max_timeout = hours(model_.longest).count();
    server_->board().next_wake = kWakeAlways;
  }

  // --- the worker ---

  void use(const Operation& operation, int key, int thread) override {
    const std::string& name = operation.name;
    if (name == "acquire" || name == "renew" || name == "release" || name == "pause" ||
        name == "resume") {
      use_scope(name, key, hours(operation.argument(1)), operation.argument(1), thread);
    } else if (name == "suspend") {
      suspend(key);
    } else if (name == "unsuspend") {
      unsuspend(key);
    } else if (name == "end" && key > 0) {
      hands_[static_cast<std::size_t>(key - 1)] = std::make_unique<Hand>();
      model_.end_thread(key);
    } else if (name == "fork" && forks_ < kMostForks && !kIsThreadSanitized) {
      fork(key == 1);
    } else if (name == "idle" && !idle_client_ && is_alive_ && !model_.is_made_again) {
      is_announced_ = server_->board().next_wake > (Instant::now() + hours(key)).ns;
      idle_client_.emplace(server_->connect({.idle_timeout = hours(key)}));
      model_.idle = {.is_on = true, .timeout = key};
      last_idle_verdict_ = {};
    } else if (name == "unidle" && idle_client_) {
      idle_client_.reset();
      model_.end_idle();
    } else if (name == "die" && is_alive_) {
      is_alive_ = false;
      is_full_ = false;
      due_.clear();
      server_->pipe().close();
    } else if (name == "fill" && is_alive_ && server_->pipe().is_silent()) {
      server_->pipe().fill();
      is_full_ = may_be_late_ = true;
    } else if (name == "again" && forks_ == 0) {  // a process that has forked keeps its page
      make_again();
    }
  }

  void use_scope(const std::string& name, int key, Duration timeout, int count, int thread) {
    auto& object = scopes_[static_cast<std::size_t>(key)];
    const State before = scope(key).state;
    const int page = scope(key).page;
    bool did = false;
    if (name == "acquire" && before == State::kOut) {
      model_.look();
      model_.open(key, number_of(thread), count);
      on(thread, [&] { object.emplace(client_->expires(timeout, name_of(key))); });
    } else if (name == "renew" && object) {
      const bool was_paused = scope(key).is_paused();
      on(thread, [&] { did = object->renew(timeout); });
      expect(did == model_.renew(key, number_of(thread), count, true), "renew() is {}", did);
      if (before != State::kOut && (!did || !was_paused || scope(key).page != page)) {
        note_release(key, page);  // a renewal counts what it ends
      }
    } else if (name == "release" && object) {
      ReleaseResult result = ReleaseResult::kNotOpen;
      on(thread, [&] { result = object->release(); });
      model_.release(key);
      expect(result == (before == State::kOut    ? ReleaseResult::kNotOpen
                        : before == State::kOpen ? ReleaseResult::kReleased
                                                 : ReleaseResult::kExpired),
             "release() is {}", static_cast<int>(result.value()));
      if (before != State::kOut) {
        note_release(key, page);
      }
    } else if ((name == "pause" || name == "resume") && object) {
      const bool pauses = name == "pause";
      on(thread, [&] { did = pauses ? object->pause() : object->resume(); });
      expect(did == (before == State::kOpen), "it is {}", did);
      if (did && pauses) {
        model_.pause(scope(key), scope(key).is_held);
      } else if (did) {
        model_.resume(scope(key), scope(key).is_held);
      }
    }
  }
  void note_release(int key, int page) {
    if (page == model_.page && !model_.is_made_again) {
      ++released_[name_of(key)];
    }
  }

  // A paused region of a thread.
  void suspend(int thread) {
    auto& region = regions_[static_cast<std::size_t>(thread)];
    const int key = kKeys + thread;
    if (!region && scope(key).state == State::kOut) {
      model_.look();
      model_.begin_region(thread);
      on(thread, [&] { region.reset(new PausedRegion(client_->paused(name_of(key)))); });
    }
  }
  void unsuspend(int thread) {
    auto& region = regions_[static_cast<std::size_t>(thread)];
    if (region) {
      note_release(kKeys + thread, scope(kKeys + thread).page);
      // The region resumes its own scope, which --max-timeout gives a deadline, and releases it.
      is_optional_ = model_.longest < kNever;
      on(thread, [&] { region.reset(); });
      model_.end_region(thread);
    }
  }

  // The child does the rest with the client that it inherits, on a page of its own.
  void fork(bool by_clone) {
    static const bool kWipes = wipes_on_fork();
    std::vector<std::byte> before(kNamesAt - kSlotsAt);
    const void* const slots = page_ ? &page().layout().slot(0) : nullptr;
    const auto has_changed = [&] {
      return slots != nullptr && std::memcmp(before.data(), slots, before.size()) != 0;
    };
    if (slots != nullptr) {
      std::memcpy(before.data(), slots, before.size());
    }
    const auto differs = testing::run_in_child(
        [&] {
          become_child();
          rest_();
          return std::string();
        },
        by_clone && kWipes);
    expect(differs.empty(), "{}", differs.empty() ? "" : differs.front());
    expect(!has_changed(), "the child has changed its parent's page");
    server_->pipe().discard();
    is_full_ = false;
    if (is_alive_) {
      announce_scan(server_->board());
      look();
    }
  }
  void become_child() {
    ++forks_;
    for (auto& hand : hands_) {
      (void)hand.release();  // the child does not have the thread
      hand = std::make_unique<Hand>();
    }
    for (auto& region : regions_) {
      region.reset();
    }
    for (auto& each : scopes_) {
      expect(!each || (!each->renew(1h) && !each->pause() && !each->times() &&
                       each->release() == ReleaseResult::kNotOpen),
             "a scope of the parent is open in the child");
      each.reset();
    }
    idle_client_.reset();
    page_.reset();
    old_pages_.clear();
    kills_.clear();
    due_.clear();
    released_.clear();
    const Model parents = std::exchange(model_, {});
    model_.longest = parents.longest;
    model_.now = parents.now;
    model_.page = parents.page;
    model_.is_made_again = parents.is_made_again;
  }

  // --- the server ---

  // Opens the page that the worker has in this directory.
  void find_page() {
    if (!page_ && !model_.is_made_again) {
      for (const std::string& name : server_->worker_page_names()) {
        if (name.starts_with(fmt::format("{}-", ::getpid()))) {
          is_announced_ = std::exchange(page_name_, name) != name || is_announced_;
          page_ = *MappedPage::open(server_->page_path(name), name);
        }
      }
    }
  }

  void look() override {
    server_->pipe().discard();
    is_full_ = false;
    find_page();
    last_look_ = Instant::now();
    announce_scan(server_->board());
    Machine::look();
    Instant next = std::min(last_look_ + kSweep, next_look_);
    if (page_) {
      next = std::min(next, look_at_idleness());
    }
    announce_next_scan(server_->board(), next.ns);
    is_message_ = false;
  }

  Instant look_at_idleness() {
    Instant next = Instant::never();
    bool is_due = false;
    for (const auto& watch : activity_.watches) {
      Instant deadline = last_look_ + watch.timeout;
      if (!activity_.is_inside && activity_.last_left > watch.since) {
        deadline =
            page_->idle_due(watch, activity_.last_left, scan_at(last_look_)).value_or(deadline);
      }
      next = std::min(next, deadline);
      if (deadline <= last_look_) {
        is_due = true;
        due_.push_back({kIdle, 0, {watch.slot, deadline.ns, deadline}});
      }
    }
    expect(is_due == model_.is_idle(), "the worker is idle: {}", is_due);
    expect((activity_.watches.size() == 1) == (model_.idle.is_on && !model_.idle.is_judged),
           "{} idle timeouts are watched", activity_.watches.size());
    return is_due ? Instant::never() : next;
  }

  void start(bool are_recorded) override {
    is_alive_ = true;
    server_->board().next_wake = kWakeAlways;
    server_->pipe().open();
    server_->board().incarnation.fetch_add(1);
    page_.reset();
    find_page();
    if (page_) {
      adopt(are_recorded);
      if (model_.idle.is_on && !model_.idle.is_judged && last_idle_verdict_ > Instant{}) {
        page_->restore_idle_verdict(last_idle_verdict_);
      }
    }
    look();
  }

  void make_again() {
    std::filesystem::rename(dir_, fmt::format("{}.{}", dir_, ++removed_));
    start_server();
    testing::move_clock(2s);
    model_.must_look = true;
    // The worker has not moved to the directory before this one.
    model_.is_made_again = true;
    model_.kills.clear();
    kills_.clear();
    due_.clear();
    old_pages_.push_back(std::exchange(page_, nullptr));
    released_.clear();
    is_full_ = false;
    is_message_ = false;
    is_alive_ = true;
  }

  // --- both ---

  void check() override {
    find_page();
    check_messages();
    is_announced_ = is_optional_ = false;
    for (int key = 0; key < kAll; ++key) {
      check_slot(key);
      if (key < kKeys && scopes_[static_cast<std::size_t>(key)]) {
        check_times(key, scopes_[static_cast<std::size_t>(key)]->times());
      }
    }
    Machine::check();
  }

  // Slots that are not free, and have not been released late, by key.
  void check_slot(int key) {
    if (!page_) {
      return;
    }
    const ModelScope& known = scope(key);
    const State state = model_.is_here(known) ? known.state : State::kOut;
    State found = State::kOut;
    for (std::size_t i = 0; i < slots_in_use(page().layout()); ++i) {
      const Slot& slot = page().layout().slot(i);
      const std::int64_t word = slot.deadline;
      if (word == slot_word::kFree || word == slot_word::kReleasedLate ||
          read_name(page().layout().name(i)) != name_of(key)) {
        continue;
      }
      expect(found == State::kOut, "k{} has two slots", key);
      found = word == slot_word::kJudged    ? State::kOver
              : slot_word::is_expired(word) ? State::kJudged
                                            : State::kOpen;
      if (found != State::kOpen) {
        continue;
      }
      expect(slot_word::is_paused(word) == known.is_paused(), "k{} is paused: {}", key,
             slot_word::is_paused(word));
      expect(((slot.flags & slot_flag::kResumed) != 0) == known.is_resumed &&
                 ((slot.flags & slot_flag::kThreadEnded) != 0) == known.has_lost_thread,
             "k{} has the flags {}", key, slot.flags.load());
      const WorkerPage::Scan scan = scan_at({});
      const Instant due =
          due_after_losses(slot, word, {}, scan.terms.max_timeout, scan.server, scan.worker) +
          grace_before_due(slot, scan.terms.grace);
      expect(is_at(due, known.due) || (known.due <= model_.now && due <= Instant::now()),
             "k{} is due at {}: expected {} h", key, (due - begin_).count(), known.due);
      expect(slot.timeout == hours(known.timeout).count() &&
                 (known.is_paused() || known.was_overdue || due.is_never() ||
                  due.ns - slot.started == hours(model_.granted(known.timeout)).count()),
             "k{} has a timeout of {} and started at {}", key, slot.timeout.load(),
             slot.started.load());
    }
    expect(found == state, "k{} is in state {}: expected {}", key, static_cast<int>(found),
           static_cast<int>(state));
  }

  void check_times(int key, const std::optional<TimerTimes>& times) {
    const ModelScope& known = scope(key);
    expect(times.has_value() == (known.state != State::kOut), "k{} has times", key);
    if (known.state == State::kOpen) {
      const bool is_held = known.is_paused() && known.due > model_.now;
      const int left = is_held ? known.left : known.due >= kNever ? kNever : known.due - model_.now;
      expect(!times->expired && times->paused == known.is_paused() &&
                 (left >= kNever ? times->remaining == kNoDeadline
                                 : std::chrono::abs(times->remaining - hours(left)) < kInexact),
             "k{} has {} ns left: expected {} h", key, times->remaining.count(), left);
    }
    expect(!times || times->expired == (known.state != State::kOpen), "k{} is expired", key);
  }

  // The server is woken if it would sleep past a deadline, and in no other case.
  void check_messages() {
    if (!is_alive_ || is_full_) {
      return;
    }
    bool is_needed = is_message_ || is_announced_;
    if (page_) {
      WorkerPage::Found found;
      WorkerPage::Activity activity;
      const Instant earliest = page_->scan(scan_at(last_look_), found, activity);
      is_needed = is_needed || earliest.ns < server_->board().next_wake;
    }
    bool is_there = !server_->pipe().is_silent();
    for (const Instant bound = Instant::now() + testing::kBound / 2;
         may_be_late_ && is_needed && !is_there && Instant::now() < bound;) {
      std::this_thread::yield();  // the thread of the client is about to write it
      is_there = !server_->pipe().is_silent();
    }
    expect(is_there == is_needed || (is_there && (may_be_late_ || is_optional_ || removed_ > 0)),
           "the server is woken: {}", is_there);
    is_message_ = is_there;
  }

  void finish() override {
    apply({"start", 0, {1}});
    apply({"look", 0, {}});
    for (int thread = 0; thread < kThreads; ++thread) {
      apply({"unsuspend", 0, {thread}});
    }
    for (int key = 0; key < kKeys; ++key) {
      apply({"release", 0, {key}});
    }
    apply({"unidle", 0, {}});
    end_kills();
    check();
    for (std::size_t i = 0; page_ && i < slots_in_use(page().layout()); ++i) {
      expect(page().layout().slot(i).deadline == slot_word::kFree, "slot {} is not free", i);
    }
    for (const auto& old : old_pages_) {
      expect(!old || old->watched_count() == 0, "a scope is open on an old page");
    }
    if (page_) {
      StatisticsByName sums;
      page_->add_statistics(sums);
      for (const auto& [name, count] : released_) {
        expect(sums[name].count == count, "{} releases of {} are counted: expected {}",
               sums[name].count, name, count);
      }
    }
  }

  const std::string dir_ = folder_.path("run");
  testing::FakeServer* server_ = nullptr;  // never destroyed: the process ends
  std::array<std::unique_ptr<Hand>, kThreads - 1> hands_;
  std::optional<TimerClient> client_;
  std::optional<TimerClient> idle_client_;
  std::array<std::optional<TimerScope>, kKeys> scopes_;
  std::array<std::unique_ptr<PausedRegion>, kThreads> regions_;
  std::map<std::string, std::uint64_t> released_;  // on this page
  int forks_ = 0;
  int removed_ = 0;
  std::string page_name_;
  std::vector<std::shared_ptr<WorkerPage>> old_pages_;  // of directories that were removed
  Instant last_look_;
  bool is_full_ = false;       // the pipe
  bool is_message_ = false;    // in the pipe
  bool is_announced_ = false;  // a message comes for another reason than a deadline
  bool is_optional_ = false;   // a message may come
  bool may_be_late_ = false;   // a message that the client writes later may come
};

}  // namespace

std::unique_ptr<Machine> page_machine(unsigned variant) {
  return std::make_unique<PageMachine>(variant);
}

}  // namespace filetimer::slots
