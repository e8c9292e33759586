// What metrics tell of the scopes of workers, from pages in files and the scopes of the pipe.
// SPDX-License-Identifier: MIT
#include "timer_server/metrics_collection.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "common/duration_buckets.hpp"
#include "tests/timer_server/registry_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct MetricsStage : RegistryParts {
  using RegistryParts::RegistryParts;

  // Gives the worker a page that has counted `times` scopes of `name` that took 2 ms.
  void count_scopes(Worker& worker, std::string_view name, std::uint64_t times) const {
    TestPage content;
    content.header().pid = worker.process->pid;
    content.header().statistics = 1;
    SlotStatistics& entry = content.page().statistics(0);
    write_name(entry.name, name);
    entry.count = times;
    entry.total_ns = static_cast<std::int64_t>(times) * 2'000'000;
    entry.histogram[bucket_of(2'000'000)] = static_cast<std::uint32_t>(times);
    const std::string path = page_folder.page_path(fmt::format("{}-1", worker.process->pid));
    content.write(path);
    auto page = MappedPage::open(path, fmt::format("{}-1", worker.process->pid));
    REQUIRE(page);
    worker.pages.push_back(std::move(*page));
  }
  Metrics collect() {
    collection.begin();
    return read_to_end();
  }
  Metrics read_to_end() {
    while (!collection.advance(0ns)) {
    }
    Metrics metrics;
    collection.add_to(metrics, {100'000});
    return metrics;
  }

  MetricsCollection collection{workers, policy, pages};
};

}  // namespace

TEST_CASE("The oldest open scope and the earliest deadline are those of all workers") {
  MetricsStage stage;
  CHECK(stage.collect().oldest_scope_age == 0ns);
  CHECK(!stage.collect().until_deadline);
  Worker& first = stage.add_worker(kNoProcess);
  Worker& second = stage.add_worker(kNoProcess + 1);
  stage.acquire(first, "a", terms_between({30'000}, {150'000}));
  stage.acquire(first, "b", terms_between({40'000}, Instant::never()));
  stage.acquire(second, "c", terms_between({20'000}, {900'000}));
  const Metrics metrics = stage.collect();
  CHECK(metrics.open_scopes == 3);
  CHECK(metrics.oldest_scope_age == 80'000ns);
  CHECK(metrics.until_deadline == 50'000ns);
}

TEST_CASE("A paused scope has a deadline only if there is a limit of timeouts") {
  Settings limited;
  limited.max_timeout = 50'000ns;
  for (const Settings& settings : {Settings{}, limited}) {
    MetricsStage stage(settings);
    TestPage content;
    content.open(0, {.acquired = 20'000,
                     .timeout = 30'000,
                     .word = slot_word::kPaused + 40'000,
                     .started = 20'000});
    stage.add_page(stage.add_worker(kNoProcess), content);
    const Metrics metrics = stage.collect();
    CHECK(metrics.open_scopes == 1);
    CHECK(metrics.until_deadline.has_value() == settings.max_timeout.has_value());
    CHECK(metrics.until_deadline.value_or(-10'000ns) == -10'000ns);  // it was paused at 40,000
  }
}

TEST_CASE("The open scopes of a worker that ended are not those of the next with its pid") {
  MetricsStage stage;
  Worker& first = stage.add_worker(kNoProcess);
  TestPage content;
  content.open(0, {.acquired = 20'000, .word = 150'000});
  stage.add_page(first, content);
  stage.collection.begin();
  stage.registry.remove(first);
  stage.add_worker(kNoProcess);
  const Metrics metrics = stage.read_to_end();
  CHECK(metrics.open_scopes == 0);
  CHECK(!metrics.until_deadline);
}

TEST_CASE("Durations are added over workers, and a worker that has ended still counts") {
  MetricsStage stage;
  Worker& first = stage.add_worker(kNoProcess);
  Worker& second = stage.add_worker(kNoProcess + 1);
  stage.count_scopes(first, "forward", 3);
  stage.count_scopes(second, "forward", 4);
  const auto count = [](const Metrics& metrics) {
    return metrics.durations.at("forward").counts[1];  // up to 2.5 ms
  };
  CHECK(count(stage.collect()) == 7);
  stage.registry.remove(first);
  const Metrics metrics = stage.collect();
  CHECK(count(metrics) == 7);
  CHECK(metrics.durations.at("forward").total_s == doctest::Approx(0.014));
}

TEST_CASE("A worker that ends while pages are read is counted once") {
  MetricsStage stage;
  Worker& first = stage.add_worker(kNoProcess);
  Worker& second = stage.add_worker(kNoProcess + 1);
  stage.count_scopes(first, "forward", 3);
  stage.count_scopes(second, "forward", 4);
  stage.collection.begin();
  CHECK(!stage.collection.advance(0ns));  // one page is read
  stage.registry.remove(first);
  stage.registry.remove(second);
  const Metrics metrics = stage.read_to_end();
  CHECK(metrics.durations.at("forward").counts[1] == 7);
  CHECK(!stage.collection.is_under_way());
}

TEST_CASE("A name that was counted among the others stays there when names end") {
  MetricsStage stage;
  for (std::size_t i = 0; i < kMaxMetricScopes + 6; ++i) {
    Worker& worker = stage.add_worker(kNoProcess + static_cast<pid_t>(i));
    stage.count_scopes(worker, fmt::format("scope {}", i), 1);
  }
  const Metrics before = stage.collect();
  CHECK(before.durations.size() == kMaxMetricScopes + 1);
  CHECK(before.durations.at(kOtherScopes).counts[1] == 6);
  for (std::size_t i = 0; i < kMaxMetricScopes; i += 2) {
    stage.registry.remove(*stage.workers.find(kNoProcess + static_cast<pid_t>(i)));
  }
  const Metrics after = stage.collect();
  REQUIRE(after.durations.size() == before.durations.size());
  for (const auto& each : after.durations) {
    const std::string& scope = each.first;
    CAPTURE(scope);
    CHECK(each.second.counts == before.durations.at(scope).counts);
  }
}
