// A worker of the pipe from both sides: the client that writes lines, and the scopes that the
// server keeps for it, with the file for the next server.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <unistd.h>

#include <filetimer/pipe_client.hpp>

#include "common/wire_parser.hpp"
#include "tests/slots/machine.hpp"
#include "tests/support/moved_clock.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "timer_server/scopes/pipe_page.hpp"

namespace filetimer::slots {
namespace {

using namespace std::chrono_literals;

constexpr Duration kInexact = 1min;  // the machine runs in less than that

Duration length(int hours) {
  return hours >= kNever ? kForever : hours * Duration{1h};
}

class PipeSystem final : public System {
 public:
  explicit PipeSystem(unsigned variant) {
    model_.is_pipe = true;
    model_.longest = variant % 4 == 0 ? 3 : kNever;
    terms_.max_timeout = length(model_.longest);
    begin_ = Instant::now();
    page_ = std::make_shared<PipePage>(folder_.path(), ::getpid(), terms_);
  }

  void apply(const Op& op) override {
    const std::string name = name_of(op.a);
    switch (op.kind) {
      case Kind::kAcquire:
      case Kind::kRenew:
        expect(client_.acquire(length(op.b), name) == PipeClient::Sent::kYes, "no line");
        model_.renew(op.a, 0, op.b, false);
        read();
        break;
      case Kind::kRelease:
        expect(client_.release(name) == PipeClient::Sent::kYes, "no line");
        was_inside_ = model_.release(op.a) == State::kOpen;
        read();
        break;
      case Kind::kLook:
        look();
        save();
        break;
      case Kind::kExpire:
        for (const DueScope& due : std::exchange(due_, {})) {
          const ModelScope& scope = model_.scopes[due.key];
          const bool won = page_->try_expire(due.place.slot, due.place.word);
          expect(won == (scope.state == State::kOpen && scope.version == due.version),
                 "the verdict on k{} comes first: {}", due.key, won);
          if (won) {
            model_.judge(static_cast<int>(due.key));
            kills_.push_back(due.place);
          }
        }
        break;
      case Kind::kFinish:
      case Kind::kRevoke:
        if (!kills_.empty()) {
          settle(0, op.kind == Kind::kRevoke);
        }
        break;
      case Kind::kStart:
        start(op.a == 1);
        break;
      case Kind::kHour:
        ++model_.now;
        testing::move_clock(1h);
        break;
      default:
        return;
    }
    check();
  }

  void finish() override {
    while (!kills_.empty()) {
      settle(0, false);
    }
    for (int key = 0; key < kKeys; ++key) {
      apply({Kind::kRelease, key});
    }
    expect(page_->is_empty() && page_->judged_slots().empty(), "a slot is not free");
    save();
    const auto next = PipePage::adopt(folder_.path(), ::getpid(), terms_);
    expect(!next || (*next)->adopted().empty(), "the file has a scope");
  }

 private:
  struct DueScope {
    std::size_t key;
    int version;
    WorkerPage::Due place;
  };

  template <class... Values>
  static void expect(bool holds, fmt::format_string<Values...> what, Values&&... values) {
    if (!holds) {
      throw Difference{fmt::format(what, std::forward<Values>(values)...)};
    }
  }
  static std::string name_of(int key) { return fmt::format("k{}", key); }

  // Carries out the line in the pipe, as Inbox and ScopePolicy do.
  void read() {
    const testing::Line line = pipe_.next();
    if (line.is_release()) {
      expect(page_->release(line.scope_id) == was_inside_, "the worker was inside: {}",
             !was_inside_);
      return;
    }
    ScopeTerms terms;
    const ClockReading now = ClockReading::now();
    terms.acquired = now.mono;
    terms.deadline = monotonic_from_unix(line.expiration_time, now);
    terms.asked = terms.deadline.is_never()
                      ? kForever
                      : Duration{std::chrono::nanoseconds(
                            static_cast<std::int64_t>(*line.x_timeout_s * 1e9))};
    terms.signal = line.signal;
    const auto first = page_->acquire(line.scope_id, line.scope_id.size(), terms);
    expect(first.has_value(), "the acquire is refused");
  }

  void look() {
    due_.clear();
    WorkerPage::Found found;
    WorkerPage::Activity activity;
    const Instant next = page_->scan(
        {.now = Instant::now(), .terms = terms_, .given = given_, .resumed = {}}, found, activity);
    for (const WorkerPage::Due& due : found.due) {
      const auto reading = page_->read(due.slot, due.word);
      expect(reading.has_value(), "a due slot cannot be read");
      const auto key = static_cast<std::size_t>(reading->id[1] - '0');
      due_.push_back({key, model_.scopes[key].version, due});
    }
    int earliest = kNever;
    for (std::size_t key = 0; key < kKeys; ++key) {
      const ModelScope& scope = model_.scopes[key];
      const bool is_due = std::ranges::find(due_, key, &DueScope::key) != due_.end();
      expect(is_due == (scope.state == State::kOpen && scope.due <= model_.now), "k{} is due: {}",
             key, is_due);
      earliest = scope.state == State::kOpen && !is_due ? std::min(earliest, scope.due) : earliest;
    }
    expect(next <= begin_ + length(earliest) + kInexact, "the next look is after {} h", earliest);
  }

  void settle(std::size_t number, bool is_revoked) {
    const WorkerPage::Due kill = kills_[number];
    kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(number));
    const bool is_released = model_.kills[number].is_released;
    model_.settle(number, is_revoked);
    if (is_revoked && is_released) {
      page_->acknowledge_late_release(kill.slot);  // as Recovery does
    } else if (is_revoked) {
      page_->reopen(kill.slot, kill.word);
    } else {
      page_->finish(kill.slot, kill.word);
    }
  }

  void save() { expect(page_->save(process_, {}).has_value(), "the page is not saved"); }

  // The next server, which finds what was saved. Kills of released scopes end with their server.
  void start(bool are_recorded) {
    save();
    auto next = PipePage::adopt(folder_.path(), ::getpid(), terms_);
    if (!next) {
      return;  // no scope was open when the page was saved
    }
    page_ = *next;
    due_.clear();
    for (std::size_t i = kills_.size(); i-- > 0;) {
      if (model_.kills[i].is_released) {
        kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(i));
        model_.settle(i, false);
      }
    }
    const auto judged = page_->judged_slots();
    expect(judged.size() == kills_.size(), "{} slots are judged: expected {}", judged.size(),
           kills_.size());
    for (std::size_t i = kills_.size(); i-- > 0;) {
      const auto found = std::ranges::find(judged, kills_[i].slot, &WorkerPage::Judged::slot);
      expect(found != judged.end() && found->word == kills_[i].word && !found->released,
             "the slot of a kill is not judged any more");
      if (!are_recorded) {
        settle(i, true);
      }
    }
  }

  void check() {
    std::size_t open = 0;
    std::size_t inside = 0;
    const std::vector<SlotReading> readings = page_->open_slots();
    for (std::size_t key = 0; key < kKeys; ++key) {
      const ModelScope& scope = model_.scopes[key];
      const std::string name = name_of(static_cast<int>(key));
      const auto found = std::ranges::find(readings, name, &SlotReading::id);
      expect((found != readings.end()) == (scope.state != State::kOut), "{} is listed", name);
      inside += found != readings.end() ? 1U : 0U;
      open += scope.state == State::kOpen ? 1U : 0U;
      expect(page_->has_open(name) == (scope.state == State::kOpen), "{} is open", name);
      expect(found == readings.end() || is_at(due_time(*found, terms_.max_timeout), scope.due),
             "{} is not due at {} h", name, scope.due);
    }
    expect(inside == readings.size() && page_->watched_count() == open,
           "{} scopes are open: expected {}", page_->watched_count(), open);
    expect(page_->activity().is_inside == (open > 0), "the worker is inside");
    for (std::size_t i = 0; i < kills_.size(); ++i) {
      expect(
          page_->was_released_late(kills_[i].slot, kills_[i].word) == model_.kills[i].is_released,
          "k{} is released late", model_.kills[i].key);
    }
  }

  [[nodiscard]] bool is_at(Instant time, int hours) const {
    return time.is_never() ? hours >= kNever
                           : std::chrono::abs(time - begin_ - length(hours)) < kInexact;
  }

  testing::TempFolder folder_;
  testing::Pipe pipe_{folder_.path("requests")};
  const PipeClient client_{pipe_.path()};
  const Process process_ = std::move(*open_process(::getpid()));
  Model model_;
  Instant begin_;
  WorkerPage::Terms terms_;
  GivenTime given_;
  std::shared_ptr<PipePage> page_;
  std::vector<DueScope> due_;
  std::vector<WorkerPage::Due> kills_;
  bool was_inside_ = false;
};

}  // namespace

const Kit& pipe_kit() {
  static const Kit kit{"pipe",
                       {10, 6, 12, 0, 0, 0, 0, 0, 0, 0, 0, 12, 10, 6, 2, 0, 3, 14, 0, 0},
                       [](unsigned variant) { return std::make_unique<PipeSystem>(variant); }};
  return kit;
}

}  // namespace filetimer::slots
