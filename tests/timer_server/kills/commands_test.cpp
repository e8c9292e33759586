// SPDX-License-Identifier: MIT
#include "timer_server/kills/commands.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/support/files.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

TEST_CASE("4,096 hooks may wait, and a further one is dropped, with a record") {
  const testing::TempFolder folder;
  Settings settings;
  settings.dir = folder.path();
  settings.on_expiry = "true";
  const auto directory = RuntimeDirectory::open(settings, {}).value();
  Core core{settings, *directory};
  Commands commands(core);
  const WorkerIdentity worker{
      std::make_shared<const Process>(std::move(*open_process(::getpid())))};
  const auto log_after_hook = [&](const std::string& id) {
    commands.add_hook(
        {.worker = worker, .id = id, .incident = "i1", .scope = "step", .verdict = "dead"},
        Instant::now());
    CHECK(core.log->drain(10s));
    return testing::read_file(core.log->path());
  };
  for (std::size_t i = 1; i < Commands::kMaxHooksWaiting; ++i) {
    commands.add_hook(
        {.worker = worker, .id = "waits", .incident = "i1", .scope = "step", .verdict = "dead"},
        Instant::now());
  }
  CHECK_FALSE(testing::contains(log_after_hook("the last one"), "\"hook\""));
  const std::string log = log_after_hook("one more");
  CHECK(testing::contains(log, R"("id":"one more")"));
  CHECK(testing::contains(log, "too many hooks wait"));
}
