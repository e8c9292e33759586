// SPDX-License-Identifier: MIT
#include "timer_server/watch/unsaved_pages.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/timer_server/worker_parts.hpp"

using namespace filetimer;

namespace {

struct SavingStage : WorkerParts {
  void open(std::string_view id) {
    acquire(worker, id, 9'000);
    unsaved.note(worker);
  }
  // The names of the scopes that the next server would find.
  [[nodiscard]] std::vector<std::string> saved() const {
    std::vector<std::string> names;
    if (const auto page = PipePage::adopt(folder.path(), 4711, {})) {
      for (const SlotReading& scope : (*page)->adopted()) {
        names.push_back(scope.name);
      }
    }
    return names;
  }

  const std::string path = folder.path("4711");
  Worker& worker = add_worker(4711);
};

using Saved = std::vector<std::string>;

}  // namespace

TEST_CASE("The pages of noted workers are saved, once") {
  SavingStage stage;
  stage.open("forward");
  CHECK_FALSE(testing::exists(stage.path));
  stage.unsaved.save(stage.workers);
  CHECK(stage.saved() == Saved{"forward"});
  CHECK_FALSE(stage.worker.pipe->needs_save());
  stage.acquire(stage.worker, "unnoted", 9'000);
  stage.unsaved.save(stage.workers);
  CHECK(stage.saved() == Saved{"forward"});
  stage.unsaved.note(stage.worker);
  stage.unsaved.save(stage.workers);
  CHECK(stage.saved() == Saved{"forward", "unnoted"});
}

TEST_CASE("A worker without a pipe page, and one whose page has not changed, is not noted") {
  SavingStage stage;
  stage.unsaved.note(stage.worker);
  stage.unsaved.save(stage.workers);
  stage.open("forward");
  stage.unsaved.save(stage.workers);
  *stage.worker.facts = worker_facts_claimed("3", "1", "job-7");
  stage.unsaved.note(stage.worker);
  stage.unsaved.save(stage.workers);
  CHECK((*PipePage::adopt(stage.folder.path(), 4711, {}))->claims().rank.empty());
}

TEST_CASE("A page is saved with the job of its worker once that is known") {
  SavingStage stage;
  stage.open("forward");
  stage.unsaved.save(stage.workers);
  *stage.worker.facts = worker_facts_claimed("3", "1", "job-7");
  stage.unsaved.save(stage.workers);
  CHECK((*PipePage::adopt(stage.folder.path(), 4711, {}))->claims().rank.empty());
  stage.unsaved.note_facts(4711);
  stage.unsaved.save(stage.workers);
  CHECK((*PipePage::adopt(stage.folder.path(), 4711, {}))->claims().rank == "3");
  CHECK((*PipePage::adopt(stage.folder.path(), 4711, {}))->claims().job_id == "job-7");
}

TEST_CASE("The page of a worker that is removed is not saved") {
  SavingStage stage;
  stage.open("forward");
  SUBCASE("it is forgotten") {
    stage.unsaved.forget(4711);
  }
  SUBCASE("it is not found") {
    stage.workers.remove(stage.worker);
  }
  stage.unsaved.save(stage.workers);
  CHECK_FALSE(testing::exists(stage.path));
}

TEST_CASE("The scopes of a page that cannot be saved are watched, and those of others are saved") {
  SavingStage stage;
  Worker& other = stage.add_worker(4712);
  const std::string missing = stage.folder.path("missing");
  other.pipe = std::make_shared<PipePage>(missing, 4712, WorkerPage::Terms{});
  other.pages.push_back(other.pipe);
  stage.acquire(other, "lost", 9'000);
  stage.unsaved.note(other);
  stage.open("forward");
  stage.unsaved.save(stage.workers);
  CHECK(other.pipe->watched_count() == 1);
  CHECK(stage.saved() == Saved{"forward"});
}
