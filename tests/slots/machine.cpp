// SPDX-License-Identifier: MIT
#include "tests/slots/machine.hpp"

#include "tests/support/moved_clock.hpp"

namespace filetimer::slots {

Duration hours(int count) {
  return count >= kNever ? kForever : std::chrono::hours{count};
}

Machine::Machine(unsigned variant, bool is_pipe) : begin_(Instant::now()) {
  model_.is_pipe = is_pipe;
  model_.longest = variant % 4 == 0 ? 3 : kNever;
}

void Machine::play(const Operations& operations, std::size_t from) {
  for (std::size_t i = from; i < operations.size(); ++i) {
    rest_ = [&, i] { play(operations, i + 1); };
    try {
      apply(operations[i]);
    } catch (const std::runtime_error& difference) {
      throw std::runtime_error(
          fmt::format("{}: {}", testing::text_of({operations[i]}), difference.what()));
    }
  }
  finish();
}

void Machine::apply(const Operation& operation) {
  const std::string& name = operation.name;
  if (name == "hour") {
    ++model_.now;
    model_.must_look = true;
    testing::move_clock(std::chrono::hours{1});
  } else if (name == "start") {
    if (!is_alive_ || model_.is_pipe) {
      start(operation.argument(0) == 1);
    }
  } else if (name == "look" && is_alive_) {
    look();
  } else if (name == "expire" && is_alive_) {
    expire();
  } else if ((name == "finish" || name == "revoke") && is_alive_ && !kills_.empty()) {
    settle(0, name == "revoke");
  } else {
    use(operation, operation.argument(0), operation.argument(2));
  }
  check();
}

WorkerPage::Scan Machine::scan_at(Instant now) const {
  return {.now = now,
          .terms = {.max_timeout = hours(model_.longest)},
          .server = lost_,
          .worker = lost_};
}

bool Machine::is_at(Instant time, int hour) const {
  return time.is_never() ? hour >= kNever
                         : std::chrono::abs(time - begin_ - hours(hour)) < kInexact;
}

void Machine::look() {
  due_.clear();
  activity_ = {};
  next_look_ = Instant::never();
  if (!page_) {
    return;
  }
  WorkerPage::Found found;
  next_look_ = page_->scan(scan_at(Instant::now()), found, activity_);
  expect(activity_.is_inside == model_.is_inside(), "the worker is inside: {}",
         activity_.is_inside);
  for (const WorkerPage::Due& due : found.due) {
    const auto reading = page_->read(due.slot, due.word);
    expect(reading.has_value(), "a due slot cannot be read");
    const int key = reading->name[1] - '0';
    due_.push_back({key, scope(key).version, due});
  }
  for (int key = 0; key < kAll; ++key) {
    const ModelScope& each = scope(key);
    const bool is_open = model_.is_here(each) && each.state == State::kOpen;
    const bool is_due = std::ranges::find(due_, key, &Due::key) != due_.end();
    expect(is_due == (is_open && each.due <= model_.now), "k{} is due: {}", key, is_due);
    expect(!is_open || is_due || next_look_ <= begin_ + hours(each.due) + kInexact,
           "the next look is after the deadline of k{}", key);
  }
}

void Machine::expire() {
  for (const Due& due : std::exchange(due_, {})) {
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

// Ends the kill, or revokes its verdict.
void Machine::settle(std::size_t number, bool is_revoked) {
  const WorkerPage::Due kill = kills_[number];
  const Model::Kill known = model_.kills[number];
  if (known.key == kIdle && !is_revoked) {
    last_idle_verdict_ = {kill.word};
  }
  kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(number));
  model_.settle(number, is_revoked);
  if (!is_revoked) {
    page_->finish(kill.slot, kill.word);
    return;
  }
  due_.clear();
  if (known.is_released && model_.is_pipe) {
    page_->acknowledge_late_release(kill.slot);  // as Recovery does
  } else {
    page_->reopen(kill.slot, kill.word);
  }
}

void Machine::end_kills() {
  while (!kills_.empty()) {
    settle(0, false);
  }
}

void Machine::adopt(bool are_recorded) {
  const auto judged = page_->judged_slots();
  std::size_t expected = 0;
  for (std::size_t i = kills_.size(); i-- > 0;) {
    const WorkerPage::Due kill = kills_[i];
    const bool is_released = model_.kills[i].is_released;
    const auto found = std::ranges::find(judged, kill.slot, &WorkerPage::Judged::slot);
    // A late release of a line is not saved: the kill ends with its server.
    const bool is_kept = !is_released || !model_.is_pipe;
    expected += is_kept ? 1U : 0U;
    expect(!is_kept || (found != judged.end() && found->released == is_released &&
                        (is_released || found->word == kill.word)),
           "the slot of a kill is not judged any more");
    if (is_released) {
      page_->acknowledge_late_release(kill.slot);
      kills_.erase(kills_.begin() + static_cast<std::ptrdiff_t>(i));
      model_.settle(i, false);
    } else if (!are_recorded) {
      settle(i, true);
    }
  }
  expect(judged.size() == expected, "{} slots are judged: expected {}", judged.size(), expected);
}

void Machine::check() {
  for (std::size_t i = 0; i < kills_.size(); ++i) {
    const bool is_released = page_->released_late_at(kills_[i]).has_value();
    expect(is_released == model_.kills[i].is_released, "k{} is released late: {}",
           model_.kills[i].key, is_released);
  }
}

}  // namespace filetimer::slots
