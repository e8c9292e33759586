// A worker's page from both sides: the client library of the worker, and the server's reading of
// the page.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
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
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/fake_server.hpp"
#include "timer_server/scopes/mapped_page.hpp"
#include "timer_server/scopes/page_guard.hpp"

namespace filetimer::slots {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSweep = 6h;      // the server reads at least this often
constexpr Duration kInexact = 1min;  // the machine runs in less than that
constexpr int kMostForks = 2;        // of a process in its parents

Duration hours(int count) {
  return count >= kNever ? kNoDeadline : count * Duration{1h};
}

// A thread that does what it is given, one after the other.
class Hand {
 public:
  Hand() : thread_([this] { work(); }) {}
  Hand(const Hand&) = delete;
  Hand& operator=(const Hand&) = delete;
  ~Hand() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> work) {
    std::unique_lock held(mutex_);
    work_ = std::move(work);
    is_new_ = true;
    changed_.notify_all();
    changed_.wait(held, [&] { return !is_new_; });
  }

 private:
  void work() {
    std::unique_lock held(mutex_);
    for (bool is_over = false; !is_over;) {
      changed_.wait(held, [&] { return is_new_; });
      is_over = !work_;
      if (work_) {
        work_();
      }
      is_new_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool is_new_ = false;
  std::thread thread_;
};

class PageSystem final : public System {
 public:
  explicit PageSystem(unsigned variant) {
    PageGuard::install();
    model_.longest = variant % 4 == 0 ? 3 : kNever;
    std::filesystem::create_directory(dir_);
    server_ = new testing::FakeServer(dir_);
    set_max_timeout();
    begin_ = Instant::now();
    has_statistics_ = variant % 2 == 0;
    client_.emplace(server_->connect(has_statistics_));
    for (auto& hand : hands_) {
      hand = std::make_unique<Hand>();
    }
    is_announced_ = true;
    check();
    look();
  }

  void apply(const Op& op) override {
    is_announced_ = is_optional_ = false;
    if (op.kind <= Kind::kResume) {
      use_scope(op);
    } else {
      use_other(op);
    }
    check();
  }

  void finish() override {
    apply({Kind::kStart, 1});
    apply({Kind::kLook});
    for (int thread = 0; thread < kThreads; ++thread) {
      apply({Kind::kUnsuspend, thread});
    }
    for (int key = 0; key < kKeys; ++key) {
      apply({Kind::kRelease, key});
    }
    apply({Kind::kUnidle});
    while (!kills_.empty()) {
      settle(0, false);
    }
    check();
    for (std::size_t i = 0; page_ && i < slots_in_use(page_->layout()); ++i) {
      expect(page_->layout().slot(i).deadline == slot_word::kFree, "slot {} is not free", i);
    }
    for (const auto& old : old_pages_) {
      expect(!old || old->watched_count() == 0, "a scope is open on an old page");
    }
    if (page_ && has_statistics_) {
      StatisticsByName sums;
      page_->add_statistics(sums);
      for (const auto& [name, count] : released_) {
        expect(sums[name].count == count, "{} releases of {} are counted: expected {}",
               sums[name].count, name, count);
      }
    }
  }

 private:
  struct Kill {
    std::size_t slot = 0;
    std::int64_t word = 0;
  };

  template <class... Values>
  static void expect(bool holds, fmt::format_string<Values...> what, Values&&... values) {
    if (!holds) {
      throw Difference{fmt::format(what, std::forward<Values>(values)...)};
    }
  }
  static std::string name_of(int key) { return fmt::format("k{}", key); }
  ModelScope& scope(int key) { return model_.scopes[static_cast<std::size_t>(key)]; }
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
  void set_max_timeout() const {
    server_->board().max_timeout =
        model_.longest >= kNever ? kForever.count() : hours(model_.longest).count();
  }

  // --- the worker ---

  void use_scope(const Op& op) {
    const auto key = static_cast<std::size_t>(op.a);
    const bool is_open = scope(op.a).state == State::kOpen;
    bool did = false;
    switch (op.kind) {
      case Kind::kAcquire:
        if (scope(op.a).state == State::kOut) {
          model_.look();
          model_.open(op.a, number_of(op.c), op.b);
          on(op.c, [&] { scopes_[key].emplace(client_->expires(hours(op.b), name_of(op.a))); });
        }
        return;
      case Kind::kRenew:
        if (scopes_[key]) {
          on(op.c, [&] { did = scopes_[key]->renew(hours(op.b)); });
          const int page = scope(op.a).page;
          const State before = scope(op.a).state;
          expect(did == model_.renew(op.a, number_of(op.c), op.b, true), "renew() is {}", did);
          if (before != State::kOut && (!did || scope(op.a).page != page)) {
            note_release(op.a, page);
          }
        }
        return;
      case Kind::kRelease:
        return release(op.a, op.c);
      default:
        break;
    }
    if (scopes_[key]) {
      const bool pauses = op.kind == Kind::kPause;
      on(op.c, [&] { did = pauses ? scopes_[key]->pause() : scopes_[key]->resume(); });
      expect(did == is_open, "it is {}", did);
      if (is_open && pauses) {
        model_.pause(scope(op.a), scope(op.a).is_held);
      } else if (is_open) {
        model_.resume(scope(op.a), scope(op.a).is_held);
      }
    }
  }

  void release(int key, int thread) {
    auto& object = scopes_[static_cast<std::size_t>(key)];
    if (object) {
      ReleaseResult result = ReleaseResult::kNotOpen;
      on(thread, [&] { result = object->release(); });
      const int page = scope(key).page;
      const State before = model_.release(key);
      expect(result == (before == State::kOut    ? ReleaseResult::kNotOpen
                        : before == State::kOpen ? ReleaseResult::kReleased
                                                 : ReleaseResult::kExpired),
             "release() is {}", static_cast<int>(result.value()));
      if (before != State::kOut) {
        note_release(key, page);
      }
    }
  }
  void note_release(int key, int page) {
    if (page == model_.page && !model_.is_made_again) {
      ++released_[name_of(key)];
    }
  }

  void use_other(const Op& op) {
    const auto index = static_cast<std::size_t>(op.a);
    const int key = kKeys + op.a;
    switch (op.kind) {
      case Kind::kSuspend:
        if (!regions_[index] && scope(key).state == State::kOut) {
          model_.look();
          model_.open(key, number_of(op.a), kNever);
          model_.region[index] = number_of(op.a);
          for (ModelScope& each : model_.scopes) {
            if (each.state == State::kOpen && each.thread == number_of(op.a) &&
                each.page == model_.page) {
              model_.pause(each, each.is_suspended);
            }
          }
          on(op.a, [&] { regions_[index].reset(new PausedRegion(client_->paused(name_of(key)))); });
        }
        break;
      case Kind::kUnsuspend:
        if (regions_[index]) {
          note_release(key, scope(key).page);
          // The region resumes its own scope, which --max-timeout gives a deadline, and releases
          // it.
          is_optional_ = model_.longest < kNever;
          on(op.a, [&] { regions_[index].reset(); });
          model_.end_region(op.a);
        }
        break;
      case Kind::kEndThread:
        if (op.a > 0) {
          is_announced_ = std::ranges::any_of(model_.scopes, [&](const ModelScope& each) {
            return each.state == State::kOpen && each.thread == number_of(op.a) &&
                   each.page == model_.page && !model_.is_made_again;
          });
          hands_[index - 1] = std::make_unique<Hand>();
          model_.end_thread(op.a);
        }
        break;
      case Kind::kFork:
        if (forks_ < kMostForks && !kIsThreadSanitized) {
          fork(op.a == 1);
        }
        break;
      case Kind::kIdle:
        if (!idle_client_ && is_alive_ && !model_.is_made_again) {
          begin_idle(op.a);
        }
        break;
      case Kind::kUnidle:
        if (idle_client_) {
          idle_client_.reset();
          end_idle();
        }
        break;
      case Kind::kHour:
        model_.must_look = true;
        ++model_.now;
        testing::move_clock(1h);
        break;
      case Kind::kFill:
        if (is_alive_ && server_->pipe().is_silent()) {
          server_->pipe().fill();
          is_full_ = may_be_late_ = true;
        }
        break;
      case Kind::kMakeAgain:
        if (forks_ == 0) {  // the parent of a child goes on in the same directory
          make_again();
        }
        break;
      default:
        act(op);
    }
  }

  void begin_idle(int timeout) {
    ConnectOptions options = server_->options();
    options.statistics = has_statistics_;
    options.idle_timeout = hours(timeout);
    is_announced_ = server_->board().next_wake > (Instant::now() + hours(timeout)).ns;
    idle_client_.emplace(TimerClient::connect(std::move(options)));
    model_.idle = {.is_on = true, .timeout = timeout};
    last_idle_verdict_ = {};
  }
  void end_idle() {
    if (model_.idle.is_judged) {
      if (const auto kill = model_.kill_of(kIdle); kill != model_.kills.end()) {
        kill->is_released = true;
      }
    }
    model_.idle = {};
  }

  // The child does the rest with the client that it inherits, on a page of its own.
  void fork(bool by_clone) {
    std::vector<std::byte> before(kNamesAt - kSlotsAt);
    const void* const slots = page_ ? &page_->layout().slot(0) : nullptr;
    const auto has_changed = [&] {
      return slots != nullptr && std::memcmp(before.data(), slots, before.size()) != 0;
    };
    if (slots != nullptr) {
      std::memcpy(before.data(), slots, before.size());
    }
    run_in_child(by_clone, [&] {
      become_child();
      rest();
    });
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

  void act(const Op& op) {
    if (op.kind == Kind::kStart) {
      if (!is_alive_) {
        start(op.a == 1);
      }
      return;
    }
    if (!is_alive_) {
      return;
    }
    if (op.kind == Kind::kLook) {
      look();
    } else if (op.kind == Kind::kExpire) {
      expire();
    } else if (op.kind == Kind::kDie) {
      is_alive_ = false;
      is_full_ = false;
      due_.clear();
      server_->pipe().close();
    } else if (!kills_.empty()) {
      settle(0, op.kind == Kind::kRevoke);
    }
  }

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

  WorkerPage::Scan scan_at(Instant now) {
    const Duration longest = model_.longest >= kNever ? kForever : hours(model_.longest);
    return {.now = now, .terms = {.max_timeout = longest}, .given = given_, .resumed = {}};
  }

  void look() {
    server_->pipe().discard();
    is_full_ = false;
    find_page();
    const Instant now = last_look_ = Instant::now();
    announce_scan(server_->board());
    due_.clear();
    Instant next = now + kSweep;
    if (page_) {
      WorkerPage::Found found;
      WorkerPage::Activity activity;
      next = std::min(next, page_->scan(scan_at(now), found, activity));
      expect(activity.is_inside == model_.is_inside(), "the worker is inside: {}",
             activity.is_inside);
      for (const WorkerPage::Due& due : found.due) {
        const auto reading = page_->read(due.slot, due.word);
        expect(reading.has_value(), "a due slot cannot be read");
        const int key = reading->name[1] - '0';
        due_.push_back({key, scope(key).version, {due.slot, due.word}});
      }
      next = std::min(next, look_at_idleness(activity, now));
      for (const SlotReading& ended : page_->take_thread_ended()) {
        ModelScope& left = scope(ended.name[1] - '0');
        expect(left.has_lost_thread && !std::exchange(left.is_reported, true),
               "the end of the thread of {} is reported", ended.name);
      }
      for (int key = 0; key < kAll; ++key) {
        const ModelScope& each = scope(key);
        const bool is_due = std::ranges::find(due_, key, &DueScope::key) != due_.end();
        expect(is_due ==
                   (model_.is_here(each) && each.state == State::kOpen && each.due <= model_.now),
               "k{} is due: {}", key, is_due);
        expect(!model_.is_here(each) || each.state != State::kOpen || !each.has_lost_thread ||
                   each.is_reported,
               "the end of the thread of k{} is not reported", key);
      }
    }
    announce_next_scan(server_->board(), next.ns);
    is_message_ = false;
  }

  Instant look_at_idleness(const WorkerPage::Activity& activity, Instant now) {
    const Model::Idle& idle = model_.idle;
    Instant next = Instant::never();
    bool is_due = false;
    for (const auto& watch : activity.watches) {
      Instant deadline = now + watch.timeout;
      if (!activity.is_inside && activity.last_left > watch.since) {
        deadline = page_->idle_due(watch, activity.last_left, scan_at(now)).value_or(deadline);
      }
      is_due = is_due || deadline <= now;
      next = std::min(next, deadline);
      if (deadline <= now) {
        due_.push_back({kIdle, 0, {watch.slot, deadline.ns}});
      }
    }
    const bool is_idle = idle.is_on && !idle.is_judged && !model_.is_inside() && idle.since >= 0 &&
                         idle.since + idle.timeout <= model_.now;
    expect(is_due == is_idle, "the worker is idle: {}", is_due);
    expect((activity.watches.size() == 1) == (idle.is_on && !idle.is_judged),
           "{} idle timeouts are watched", activity.watches.size());
    return is_due ? Instant::never() : next;
  }

  void expire() {
    for (const DueScope& due : std::exchange(due_, {})) {
      const bool is_idle = due.key == kIdle;
      const bool won = is_idle ? page_->try_expire_idle(due.place.slot, {due.place.word})
                               : page_->try_expire(due.place.slot, due.place.word);
      const bool is_unchanged =
          is_idle ? model_.idle.is_on && !model_.idle.is_judged
                  : scope(due.key).state == State::kOpen && scope(due.key).version == due.version;
      expect(won == is_unchanged, "the verdict on k{} comes first: {}", due.key, won);
      if (won) {
        model_.judge(due.key);
        kills_.push_back(due.place);
      }
    }
  }

  // Ends the kill or revokes its verdict.
  void settle(std::size_t number, bool is_revoked) {
    const Kill kill = kills_[number];
    if (model_.kills[number].key == kIdle && !is_revoked) {
      last_idle_verdict_ = {kill.word};
    }
    kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(number));
    model_.settle(number, is_revoked);
    if (is_revoked) {
      page_->reopen(kill.slot, kill.word);
      due_.clear();
    } else {
      page_->finish(kill.slot, kill.word);
    }
  }

  // The next server.
  void start(bool are_recorded) {
    is_alive_ = true;
    server_->board().next_wake = kWakeAlways;
    server_->pipe().open();
    server_->board().incarnation.fetch_add(1);
    page_.reset();
    find_page();
    for (ModelScope& each : model_.scopes) {
      each.is_reported = false;
    }
    if (page_) {
      auto judged = page_->judged_slots();
      expect(judged.size() == kills_.size(), "{} slots are judged: expected {}", judged.size(),
             kills_.size());
      for (std::size_t i = kills_.size(); i-- > 0;) {
        const auto found = std::ranges::find(judged, kills_[i].slot, &WorkerPage::Judged::slot);
        const bool is_released = model_.kills[i].is_released;
        expect(found != judged.end() && found->released == is_released &&
                   (is_released || found->word == kills_[i].word),
               "the slot of a kill is not judged any more");
        if (is_released) {
          page_->acknowledge_late_release(kills_[i].slot);
          kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(i));
          model_.settle(i, false);
        } else if (!are_recorded) {
          settle(i, true);
        }
      }
      if (model_.idle.is_on && !model_.idle.is_judged && last_idle_verdict_ > Instant{}) {
        page_->restore_idle_verdict(last_idle_verdict_);
      }
    }
    look();
  }

  void make_again() {
    std::filesystem::rename(dir_, fmt::format("{}.{}", dir_, ++removed_));
    std::filesystem::create_directory(dir_);
    server_ = new testing::FakeServer(dir_);
    set_max_timeout();
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
    server_->board().next_wake = kWakeAlways;
  }

  // --- both ---

  void check() {
    find_page();
    check_messages();
    for (int key = 0; key < kAll; ++key) {
      check_slot(key);
      if (key < kKeys && scopes_[static_cast<std::size_t>(key)]) {
        check_times(key, scopes_[static_cast<std::size_t>(key)]->times());
      }
    }
    for (std::size_t i = 0; i < kills_.size(); ++i) {
      const bool is_released = page_->was_released_late(kills_[i].slot, kills_[i].word);
      expect(is_released == model_.kills[i].is_released, "k{} is released late: {}",
             model_.kills[i].key, is_released);
    }
  }

  // Slots that are not free, and have not been released late, by key.
  void check_slot(int key) {
    if (!page_) {
      return;
    }
    const ModelScope& known = scope(key);
    const State state = model_.is_here(known) ? known.state : State::kOut;
    State found = State::kOut;
    for (std::size_t i = 0; i < slots_in_use(page_->layout()); ++i) {
      const Slot& slot = page_->layout().slot(i);
      const std::int64_t word = slot.deadline;
      if (word == slot_word::kFree || word == slot_word::kReleasedLate ||
          read_name(page_->layout().name(i)) != name_of(key)) {
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
      expect(((slot.flags & slot_flag::kResumed) != 0) == known.is_resumed, "k{} has the flags {}",
             key, slot.flags.load());
      const Instant due = WorkerPage::deadline_of(slot, word, scan_at({}));
      expect(due.is_never() ? known.due >= kNever
                            : std::chrono::abs(due - begin_ - hours(known.due)) < kInexact ||
                                  (known.due <= model_.now && due <= Instant::now()),
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
      const int left = known.is_paused()     ? known.left
                       : known.due >= kNever ? kNever
                                             : known.due - model_.now;
      expect(!times->is_expired && times->is_paused == known.is_paused() &&
                 (left >= kNever ? times->remaining == kNoDeadline
                                 : std::chrono::abs(times->remaining - hours(left)) < kInexact),
             "k{} has {} ns left: expected {} h", key, times->remaining.count(), left);
    }
    expect(!times || times->is_expired == (known.state != State::kOpen), "k{} is expired", key);
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

  struct DueScope {
    int key;
    int version;
    Kill place;
  };

  testing::TempFolder folder_;
  const std::string dir_ = folder_.path("run");
  testing::FakeServer* server_ = nullptr;  // never destroyed: the process ends
  Model model_;
  Instant begin_;
  std::array<std::unique_ptr<Hand>, kThreads - 1> hands_;
  std::optional<TimerClient> client_;
  std::optional<TimerClient> idle_client_;
  std::array<std::optional<TimerScope>, kKeys> scopes_;
  std::array<std::unique_ptr<PausedRegion>, kThreads> regions_;
  std::map<std::string, std::uint64_t> released_;  // on this page
  bool has_statistics_ = false;
  int forks_ = 0;
  int removed_ = 0;

  GivenTime given_;
  std::shared_ptr<MappedPage> page_;
  std::string page_name_;
  std::vector<std::shared_ptr<MappedPage>> old_pages_;  // of directories that were removed
  std::vector<DueScope> due_;
  std::vector<Kill> kills_;  // as those of the model
  Instant last_look_;
  Instant last_idle_verdict_;
  bool is_alive_ = true;
  bool is_full_ = false;       // the pipe
  bool is_message_ = false;    // in the pipe
  bool is_announced_ = false;  // a message comes for another reason than a deadline
  bool is_optional_ = false;   // a message may come
  bool may_be_late_ = false;   // a message that the client writes later may come
};

}  // namespace

const Kit& page_kit() {
  static const Kit kit{"page",
                       {14, 8, 12, 3, 3, 3, 2, 2, 1, 3, 1, 12, 10, 6, 4, 2, 4, 14, 1, 1},
                       [](unsigned variant) { return std::make_unique<PageSystem>(variant); }};
  return kit;
}

}  // namespace filetimer::slots
