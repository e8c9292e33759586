// What the server keeps of a worker's timers of the pipe, read back as the next server does.
// SPDX-License-Identifier: MIT
#include "timer_server/pages/wire_page.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "timer_server/pages/page_guard.hpp"
#include "timer_server/pages/worker_page.hpp"
#include "timer_server/timer_table.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct WirePageStage {
  WirePageStage() {
    PageGuard::install();
    worker = *table.add_worker(std::move(*open_process(::getpid())));
    worker->wire_page = std::make_unique<WirePage>(path);
  }

  Scope& acquire(std::string_view id, std::int64_t deadline, std::size_t shown = 0) {
    ScopeTerms terms;
    terms.acquired = {1000};
    terms.deadline = {deadline};
    terms.signal = 9;
    terms.grace = grace_of(1500us);
    terms.soft_ms = 7;
    return **table.acquire(*worker, id, id.substr(0, shown == 0 ? id.size() : shown), terms);
  }
  void save() { REQUIRE(worker->wire_page->save(*worker->process, facts)); }
  [[nodiscard]] std::vector<SlotReading> kept() const {
    std::vector<SlotReading> scopes;
    if (const auto page = WirePage::read(path)) {
      for (const auto& [slot, reading] : page->scopes) {
        scopes.push_back(reading);
      }
    }
    return scopes;
  }
  [[nodiscard]] bool has_file() const { return ::access(path.c_str(), F_OK) == 0; }

  testing::TempFolder folder;
  const std::string path = folder.path("1");
  std::optional<WorkerFacts> facts;
  TimerTable table;
  Worker* worker = nullptr;
};

}  // namespace

TEST_CASE("Timers of the pipe are kept with all that is known of them") {
  WirePageStage stage;
  stage.acquire("forward#2", 5000, 7);
  stage.save();
  const auto kept = stage.kept();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].id == "forward#2");
  CHECK(kept[0].name == "forward");
  CHECK(kept[0].deadline == Instant{5000});
  CHECK(kept[0].acquired == Instant{1000});
  CHECK(kept[0].signal == 9);
  CHECK(kept[0].soft_ms == 7);
  CHECK(*kept[0].grace_ms == 2);  // rounded up: nobody gets less than was asked for
  const auto page = WirePage::read(stage.path);
  CHECK(page->claims.pid == ::getpid());
  CHECK(page->claims.start_time == stage.worker->process->start_time);
}

TEST_CASE("Time that a timer of the pipe was given is kept for the next server") {
  WirePageStage stage;
  Scope& scope = stage.acquire("forward", 5000);
  stage.save();
  stage.table.postpone(scope, {9000});
  stage.save();
  REQUIRE(stage.kept().size() == 1);
  CHECK(stage.kept()[0].deadline == Instant{9000});
  // Until the worker goes on: the next server looks for itself whether it is halted.
  stage.table.postpone(scope, Instant::never());
  stage.save();
  CHECK(stage.kept()[0].deadline == Instant{9000});
}

TEST_CASE("Who the worker is in its job is kept as soon as it is known") {
  WirePageStage stage;
  stage.acquire("forward", 5000);
  stage.save();
  stage.facts = worker_facts_claimed("10", "2", "job 7");
  stage.acquire("step", 5000);
  stage.save();
  const auto page = WirePage::read(stage.path);
  CHECK(page->claims.rank == "10");
  CHECK(page->claims.local_rank == "2");
  CHECK(page->claims.job_id == "job 7");
  CHECK(page->claims.comm == stage.worker->process->comm);
  CHECK(stage.kept().size() == 2);
}

TEST_CASE("What was opened and closed between two savings is never written") {
  WirePageStage stage;
  stage.table.close(stage.acquire("forward", 5000));
  stage.save();
  CHECK(!stage.has_file());
}

TEST_CASE("A renewal, a release and a new scope in the same slot are kept as they stand") {
  WirePageStage stage;
  stage.acquire("a", 5000);
  Scope& released = stage.acquire("b", 6000);
  stage.save();
  stage.acquire("a", 7000);
  stage.table.close(released);
  stage.save();
  CHECK(stage.kept().size() == 1);
  stage.acquire("c", Instant::never().ns);
  stage.save();
  const auto kept = stage.kept();
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].name == "a");
  CHECK(kept[0].deadline == Instant{7000});
  CHECK(kept[1].name == "c");
  CHECK(kept[1].deadline.is_never());
}

TEST_CASE("An expired timer is kept as judged until its kill is over") {
  WirePageStage stage;
  const WirePage::SlotNumber slot = stage.table.expire(stage.acquire("forward", 5000));
  stage.save();
  auto kept = stage.kept();
  REQUIRE(kept.size() == 1);
  CHECK(slot_word::is_expired(kept[0].word));
  CHECK(kept[0].deadline == Instant{5000});
  stage.worker->wire_page->close(slot);
  stage.save();
  CHECK(stage.kept().empty());
}

TEST_CASE("A scope without a name is kept as that, in a slot that had one before") {
  WirePageStage stage;
  Scope& named = stage.acquire("named", 5000);
  stage.save();
  stage.table.close(named);
  stage.acquire("", 5000);
  stage.save();
  REQUIRE(stage.kept().size() == 1);
  CHECK(stage.kept()[0].id.empty());
}

TEST_CASE("Of two slots with one scope the next server takes the later, and gives the other back") {
  WirePageStage stage;
  stage.acquire("forward", 5000);
  stage.save();
  ScopeTerms terms;
  for (const std::int64_t acquired : {3000, 2000, 4000}) {
    terms.acquired = {acquired};
    terms.deadline = {acquired + 5000};
    const auto slot = static_cast<WirePage::SlotNumber>(acquired / 1000);
    stage.table.adopt(*stage.worker, "step", "step", terms, slot);
  }
  CHECK(stage.table.find_scope(*stage.worker, "step")->terms.deadline == Instant{9000});
  CHECK(stage.table.scope_count() == 2);
  stage.table.close(*stage.table.find_scope(*stage.worker, "step"));
}

TEST_CASE("A slot that another server left is taken until it is closed") {
  WirePageStage stage;
  stage.acquire("old", 5000);
  stage.save();
  WirePageStage next;
  next.worker->wire_page = std::make_unique<WirePage>(stage.path);
  Result<WirePage::Kept> kept = WirePage::read(stage.path);
  next.worker->wire_page->take_over(*kept);
  ScopeTerms terms;
  terms.deadline = {5000};
  Scope& old = **next.table.adopt(*next.worker, "old", "old", terms, 0);
  next.acquire("new", 6000);
  next.save();
  CHECK(stage.kept().size() == 2);
  next.table.close(old);
  next.save();
  REQUIRE(stage.kept().size() == 1);
  CHECK(stage.kept()[0].name == "new");
}

TEST_CASE("A thousand and twenty-four timers fit, and each finds its own name") {
  WirePageStage stage;
  for (int i = 0; i < 1024; ++i) {
    stage.acquire(fmt::format("scope {}", i), 5000 + i);
  }
  stage.save();
  const auto kept = stage.kept();
  REQUIRE(kept.size() == 1024);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    CHECK(kept[i].name == fmt::format("scope {}", i));
    CHECK(kept[i].deadline.ns == static_cast<std::int64_t>(5000 + i));
  }
}

TEST_CASE("A page that can't be written is an error once, and leaves no stale timers behind") {
  WirePageStage stage;
  stage.acquire("a", 5000);
  stage.worker->wire_page = std::make_unique<WirePage>(stage.folder.path("missing/1"));
  stage.acquire("b", 5000);
  CHECK(!stage.worker->wire_page->save(*stage.worker->process, {}));
  stage.acquire("c", 5000);
  CHECK(stage.worker->wire_page->save(*stage.worker->process, {}));
  CHECK(!stage.has_file());
}
