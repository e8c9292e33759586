// A worker of the pipe from both sides: the client that writes lines, and the scopes that the
// server keeps for it, with the file for the next server.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include "common/wire.hpp"
#include "tests/slots/machine.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "timer_client/client/pipe/pipe_line.hpp"
#include "timer_server/scopes/pipe_page.hpp"

namespace filetimer::slots {
namespace {

class PipeMachine final : public Machine {
 public:
  explicit PipeMachine(unsigned variant) : Machine(variant, true) {
    terms_.max_timeout = hours(model_.longest);
    folder_.write(std::to_string(::getpid()), "left by a worker that had this pid");
    page_ = std::make_shared<PipePage>(folder_.path(), ::getpid(), terms_);
  }

 private:
  PipePage& page() { return static_cast<PipePage&>(*page_); }

  void use(const Operation& operation, int key, int) override {
    const std::string name = name_of(key);
    Sent sent = Sent::kYes;
    State before = State::kOut;
    if (operation.name == "acquire" || operation.name == "renew") {
      sent = send_request(pipe_.path(), acquire_request(hours(operation.argument(1)), name));
      model_.renew(key, 0, operation.argument(1), false);
    } else if (operation.name == "release") {
      sent = send_request(pipe_.path(), release_request(name));
      before = model_.release(key);
    } else {
      return;
    }
    expect(sent == Sent::kYes, "no line");
    read(before != State::kOut);
  }

  // Carries out the line in the pipe, as Inbox and ScopePolicy do.
  void read(bool was_inside) {
    const testing::Line line = pipe_.next();
    if (line.is_release()) {
      expect(page().release(line.scope_id) == was_inside, "the worker was inside: {}", !was_inside);
      return;
    }
    const ClockReading now = ClockReading::now();
    SlotReading terms;
    terms.acquired = now.mono;
    terms.deadline = monotonic_from_unix(line.expiration_time, now);
    terms.asked = terms.deadline.is_never()
                      ? kForever
                      : Duration{std::chrono::nanoseconds(
                            static_cast<std::int64_t>(*line.x_timeout_s * 1e9))};
    terms.signal = line.signal;
    expect(page().acquire(line.scope_id, line.scope_id.size(), terms).has_value(),
           "the acquire is refused");
  }

  void look() override {
    Machine::look();
    save();
  }
  void save() { expect(page().save(process_, {}).has_value(), "the page is not saved"); }

  // The next server finds what was saved.
  void start(bool are_recorded) override {
    save();
    auto next = PipePage::adopt(folder_.path(), ::getpid(), terms_);
    if (next) {  // else no scope was open when the page was saved
      page_ = *next;
      due_.clear();
      adopt(are_recorded);
    }
  }

  void check() override {
    Machine::check();
    std::size_t open = 0;
    std::size_t inside = 0;
    const std::vector<SlotReading> readings = page_->open_slots();
    for (int key = 0; key < kKeys; ++key) {
      const State state = scope(key).state;
      const std::string name = name_of(key);
      const auto found = std::ranges::find(readings, name, &SlotReading::id);
      expect((found != readings.end()) == (state != State::kOut), "{} is listed", name);
      inside += found != readings.end() ? 1U : 0U;
      open += state == State::kOpen ? 1U : 0U;
      expect(page().has_open(name) == (state == State::kOpen), "{} is open", name);
      expect(found == readings.end() || is_at(due_time(*found, terms_.max_timeout), scope(key).due),
             "{} is not due at {} h", name, scope(key).due);
    }
    expect(inside == readings.size() && page_->watched_count() == open,
           "{} scopes are open: expected {}", page_->watched_count(), open);
    expect(page_->activity().is_inside == (inside > 0), "the worker is inside");
  }

  void finish() override {
    end_kills();
    for (int key = 0; key < kKeys; ++key) {
      apply({"release", 0, {key}});
    }
    expect(page_->open_slots().empty() && page_->judged_slots().empty(), "a slot is not free");
    save();
    const auto next = PipePage::adopt(folder_.path(), ::getpid(), terms_);
    expect(!next || (*next)->open_slots().empty(), "the file has a scope");
  }

  testing::Pipe pipe_{folder_.path("requests")};
  const Process process_ = std::move(*open_process(::getpid()));
  WorkerPage::Terms terms_;
};

}  // namespace

std::unique_ptr<Machine> pipe_machine(unsigned variant) {
  return std::make_unique<PipeMachine>(variant);
}

}  // namespace filetimer::slots
