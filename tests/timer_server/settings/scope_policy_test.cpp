// SPDX-License-Identifier: MIT
#include "timer_server/settings/scope_policy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/test_page.hpp"
#include "tests/timer_server/core_stage.hpp"
#include "timer_server/settings/settings.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

SlotReading terms_between(Instant acquired, Instant deadline) {
  SlotReading terms;
  terms.acquired = acquired;
  terms.deadline = deadline;
  return terms;
}

struct PolicyStage : CoreStage {
  using CoreStage::CoreStage;

  const ScopePolicy& policy = core.policy;
  LostTime& lost = core.lost;
};

// 1,000 s of Unix time are 50 s after the boot.
constexpr ClockReading kReadAt{1'000'000'000'000, {50'000'000'000}};
constexpr Instant after_boot(std::chrono::seconds time) {
  return Instant{} + time;
}

wire::Request pytorch_request(double expiration = 1010) {
  wire::Request request;
  request.pid = 4711;
  request.scope_id = "forward";
  request.expiration_time = expiration;
  request.signal = 9;
  return request;
}
wire::Request own_request(double timeout_s, double expiration = 1010) {
  wire::Request request = pytorch_request(expiration);
  request.x_timeout_s = timeout_s;
  return request;
}

Settings settings_with(const std::function<void(Settings&)>& change) {
  Settings settings;
  change(settings);
  return settings;
}
Settings settings_with_grace(std::optional<Duration> grace) {
  return settings_with([&](Settings& settings) { settings.grace = grace.value_or(kForever); });
}

// An open scope of 4,000 ns, since 1,000.
SlotReading reading_of(const std::function<void(SlotReading&)>& change = [](auto&) {}) {
  SlotReading reading;
  reading.word = 5'000;
  reading.deadline = {5'000};
  reading.acquired = reading.started = {1'000};
  reading.asked = 4us;
  reading.name = "forward";
  change(reading);
  return reading;
}

std::optional<Duration> grace_of_request(const wire::Request& request, Settings settings = {}) {
  return PolicyStage(std::move(settings)).policy.terms_of(request, kReadAt).grace();
}

constexpr double kEndless = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("The timeout of a request counts from its reading, or from the opening by our client") {
  const PolicyStage parts;
  struct Row {
    wire::Request request;
    Instant acquired;
    Instant deadline;
    Duration timeout;
  };
  for (const Row& row :
       {Row{pytorch_request(), after_boot(50s), after_boot(60s), 10s},
        Row{pytorch_request(990), after_boot(50s), after_boot(40s), 0s},
        Row{pytorch_request(kEndless), after_boot(50s), Instant::never(), kForever},
        Row{own_request(30), after_boot(30s), after_boot(60s), 30s},
        // The opening is at most the reading of the request: the wall clock was set back.
        Row{own_request(5), after_boot(50s), after_boot(55s), 5s},
        Row{own_request(kEndless, kEndless), after_boot(50s), Instant::never(), kForever},
        Row{own_request(30, kEndless), after_boot(50s), Instant::never(), 30s}}) {
    const SlotReading terms = parts.policy.terms_of(row.request, kReadAt);
    CHECK(terms.acquired == row.acquired);
    CHECK(terms.deadline == row.deadline);
    CHECK(terms.timeout == row.timeout);
    CHECK(terms.asked == row.timeout);
  }
}

TEST_CASE("Each field of a request becomes a term, a soft deadline in milliseconds if it can be") {
  const PolicyStage parts;
  wire::Request request = pytorch_request();
  const auto terms = [&] { return parts.policy.terms_of(request, kReadAt); };
  CHECK(terms().signal == 9);
  CHECK(terms().tid == 0);
  CHECK(terms().soft_ms == 0);
  CHECK(terms().flags == 0);
  request.signal = 15;
  CHECK(terms().signal == 15);
  request.x_tid = 12;
  CHECK(terms().tid == 12);
  request.x_whole_process = true;
  CHECK(terms().flags == slot_flag::kWholeProcess);
  request.x_signal_first = true;
  CHECK(terms().flags == (slot_flag::kWholeProcess | slot_flag::kSignalFirst));
  request = own_request(30);
  const auto soft_of = [&](double seconds) {
    request.x_soft_s = seconds;
    return terms().soft_ms;
  };
  CHECK(soft_of(1.5) == 1'500);
  CHECK(soft_of(0.0101) == 11);
  CHECK(soft_of(0) == 0);
  CHECK(soft_of(-1) == 0);
  CHECK(soft_of(4'294'967.295) == 0xFFFF'FFFF);
  CHECK(soft_of(4'294'967.3) == 0);
}

TEST_CASE("The grace of a request is its own, else --grace, else that of its client") {
  const wire::Request pytorch = pytorch_request();
  const wire::Request own = own_request(30);
  CHECK_FALSE(grace_of_request(pytorch));
  CHECK(grace_of_request(own) == 10'000ms);
  CHECK(grace_of_request(pytorch, settings_with_grace(3s)) == 3'000ms);
  CHECK(grace_of_request(own, settings_with_grace(3s)) == 3'000ms);
  CHECK_FALSE(grace_of_request(own, settings_with_grace(std::nullopt)));
  for (wire::Request request : {pytorch, own}) {
    for (const Settings& settings :
         {Settings{}, settings_with_grace(3s), settings_with_grace(std::nullopt)}) {
      request.x_grace_s = 0.0011;
      CHECK(grace_of_request(request, settings) == 2ms);
      request.x_grace_s = 0;
      CHECK(grace_of_request(request, settings) == 0ms);
      request.x_grace_s = -1;  // off
      CHECK_FALSE(grace_of_request(request, settings));
      request.x_grace_s = kEndless;
      CHECK_FALSE(grace_of_request(request, settings));
    }
    request.x_grace_s = std::nan("");
    CHECK(grace_of_request(request, settings_with_grace(3s)) == 3'000ms);
  }
}

TEST_CASE("The grace of a slot is its own, else --grace, else 10 s") {
  const auto grace_of_slot = [](std::optional<std::uint32_t> grace_ms, Settings settings = {}) {
    const PolicyStage parts(std::move(settings));
    return parts.policy.view_of(reading_of([&](auto& slot) { slot.grace_ms = grace_ms; })).grace();
  };
  CHECK(grace_of_slot({}) == 10'000ms);
  CHECK(grace_of_slot({}, settings_with_grace(3s)) == 3'000ms);
  CHECK_FALSE(grace_of_slot({}, settings_with_grace(std::nullopt)));
  CHECK(grace_of_slot(7, settings_with_grace(std::nullopt)) == 7ms);
  CHECK_FALSE(grace_of_slot(kNoSigkill, settings_with_grace(3s)));
}

TEST_CASE("A slot is shown as its worker has opened it") {
  const PolicyStage parts;
  for (const std::uint16_t flags :
       {slot_flag::kWholeProcess, slot_flag::kIdle, slot_flag::kSignalFirst}) {
    const SlotReading view = parts.policy.view_of(reading_of([&](SlotReading& slot) {
      slot.acquired = {700};
      slot.soft_ms = 3;
      slot.signal = 15;
      slot.tid = 12;
      slot.flags = flags;
    }));
    CHECK(view.name == "forward");
    CHECK(view.acquired == Instant{700});
    CHECK(view.deadline == Instant{5'000});
    CHECK(view.timeout == 4us);  // of the last renewal
    CHECK(view.asked == 4us);
    CHECK(view.soft_ms == 3);
    CHECK(view.signal == 15);
    CHECK(view.tid == 12);
    CHECK(view.flags == flags);
    CHECK_FALSE(slot_word::is_paused(view.word));
  }
  const SlotReading endless = parts.policy.view_of(reading_of([](SlotReading& slot) {
    slot.word = slot_word::kPaused + 2'000;
    slot.deadline = Instant::never();
  }));
  CHECK(slot_word::is_paused(endless.word));
  CHECK(endless.timeout == kForever);
}

TEST_CASE("--max-timeout cuts the deadline of a slot, and not that of an idle timeout") {
  const PolicyStage parts(
      settings_with([](Settings& settings) { settings.max_timeout = Duration{300}; }));
  const auto terms_with = [&](const std::function<void(SlotReading&)>& change) {
    return parts.policy.view_of(reading_of(change));
  };
  const SlotReading cut = terms_with([](SlotReading& slot) { slot.acquired = {700}; });
  CHECK(cut.deadline == Instant{1'300});
  CHECK(cut.timeout == 300ns);
  CHECK(cut.asked == 4us);
  CHECK(terms_with([](SlotReading& slot) { slot.deadline = {1'200}; }).timeout == 200ns);
  const SlotReading endless = terms_with([](SlotReading& slot) {
    slot.word = slot_word::kNoDeadline;
    slot.deadline = Instant::never();
  });
  CHECK(endless.deadline == Instant{1'300});
  const SlotReading idle = terms_with([](SlotReading& slot) { slot.flags = slot_flag::kIdle; });
  CHECK(idle.deadline == Instant{5'000});
}

TEST_CASE("The time that a worker and the server have lost moves the deadline of its scopes") {
  PolicyStage parts;
  Worker& worker = parts.add_worker(4711);
  CHECK(parts.policy.view_of(reading_of(), worker).deadline == Instant{5'000});
  parts.lost.add({3'300}, {4'000});
  CHECK(parts.policy.view_of(reading_of(), worker).deadline == Instant{5'700});
  CHECK(parts.policy.view_of(reading_of()).deadline == Instant{5'000});
  worker.lost.add({4'000}, {4'500});
  CHECK(parts.policy.view_of(reading_of(), worker).deadline == Instant{6'200});
}

TEST_CASE("Open scopes are listed oldest first, and if there are too many, the last opened ones") {
  PolicyStage parts;
  Worker& worker = parts.add_worker(4711);
  worker.lost.add({1'000}, {4'000});
  parts.acquire(worker, "third", terms_between({3'000}, {9'000}));
  parts.acquire(worker, "first", terms_between({1'000}, {9'000}));
  TestPage content;
  // Neither the first nor the last of its slots has the scope that was opened last.
  content.open(0, {.name = "second", .acquired = 2'000});
  content.open(1, {.name = "fourth", .acquired = 4'000});
  content.open(2, {.name = "early", .acquired = 500});
  content.write(parts.folder.path("own"));
  const auto page = MappedPage::open(parts.folder.path("own"), "own");
  REQUIRE(page);
  worker.pages.push_back(*page);
  const auto names = [&](std::size_t most) {
    std::string all;
    for (const SlotReading& scope : parts.policy.open_scopes_of(worker, most)) {
      all += scope.name + " ";
    }
    return all;
  };
  CHECK(names(1'024) == "early first second third fourth ");
  CHECK(names(5) == "early first second third fourth ");
  CHECK(names(3) == "second third fourth ");
  CHECK(names(1) == "fourth ");
  CHECK(names(0).empty());
  std::size_t count = 0;  // of all, those of the page with the last one, too
  CHECK(parts.policy.open_scopes_of(worker, 1, &count).size() == 1);
  CHECK(count == 5);
  // With the missed time that the worker got back.
  CHECK(parts.policy.open_scopes_of(worker).at(1).deadline == Instant{12'000});
}

TEST_CASE("A warning says which soft deadline has passed") {
  const PolicyStage parts(settings_with([](Settings& settings) { settings.warn_at = 0.5; }));
  SlotReading terms;
  CHECK(parts.policy.reason_to_warn(terms, false) == "0.5 of its timeout has passed (--warn-at)");
  terms.soft_ms = 1'500;
  CHECK(parts.policy.reason_to_warn(terms, false) == "its soft deadline of 1500ms has passed");
  CHECK(parts.policy.reason_to_warn(terms, true) == "its timeout has passed");
}
