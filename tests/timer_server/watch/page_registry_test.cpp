// Which files in `scopes` are read, and which worker owns each. A child holds the locks, because a
// process does not see its own.
// SPDX-License-Identifier: MIT
#include "timer_server/watch/page_registry.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "common/mapped_file.hpp"
#include "tests/support/children.hpp"
#include "tests/timer_server/registry_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

struct PagesStage : RegistryParts {
  // A page of `pid` with one open scope.
  static TestPage page_of(pid_t pid) {
    TestPage content;
    content.header().pid = pid;
    content.open(0, {.word = 9'000});
    return content;
  }
  void make(const std::string& name, TestPage content) const {
    content.write(page_folder.page_path(name));
  }
  [[nodiscard]] bool has_file(std::string_view name) const {
    return testing::exists(page_folder.page_path(name));
  }
  void wake_up(std::string_view name) {
    pages.begin_batch();
    pages.on_wake_up_message(name);
  }
  // A sweep that looks at all files, since a folder may change twice within one tick of its time.
  void sweep() {
    pages.look_at_all();
    pages.look_for_pages();
  }
  void adopt(bool is_judged = false) {
    pages.adopt([is_judged](pid_t, std::uint64_t, const SlotReading&) { return is_judged; });
  }
  // Returns the `left_open` records as "SCOPE (PID): REASON".
  std::vector<std::string> left_open() {
    std::vector<std::string> all;
    for (const testing::Record& record : records_of("left_open")) {
      all.push_back(fmt::format("{} ({}): {}", record.text("scope"), record.integer("pid"),
                                record.text("reason")));
    }
    return all;
  }
};

// A child process that locks and unlocks pages on request.
class PageHolder {
 public:
  PageHolder(const PagesStage& stage, const std::vector<std::string>& names)
      : child_({[paths = paths_of(stage, names), held = held_] {
                  for (const std::string& path : paths) {
                    auto lock = FileLock::take(path);
                    if (!lock) {
                      return false;
                    }
                    held->push_back(std::move(*lock));
                  }
                  return true;
                },
                [held = held_] {
                  held->clear();
                  return true;
                }}) {}
  void take() { REQUIRE(child_.next()); }
  void let_go() { REQUIRE(child_.next()); }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }

 private:
  static std::vector<std::string> paths_of(const PagesStage& stage,
                                           const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) {
      paths.push_back(stage.page_folder.page_path(name));
    }
    return paths;
  }
  std::shared_ptr<std::vector<FileLock>> held_ = std::make_shared<std::vector<FileLock>>();
  SteppedChild child_;
};

const std::string kUnseen = "the worker ended inside the scope while no server was running";

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("The page that a process holds makes it a worker, with a wake-up message or a sweep") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1"});
  stage.make("w-1", PagesStage::page_of(holder.pid()));
  holder.take();
  SUBCASE("a wake-up message") {
    stage.wake_up("w-1");
  }
  SUBCASE("a sweep") {
    stage.pages.look_for_pages();
  }
  SUBCASE("the start of the server") {
    stage.adopt();
  }
  Worker* const worker = stage.workers.find(holder.pid());
  REQUIRE(worker != nullptr);
  REQUIRE(worker->pages.size() == 1);
  CHECK(stage.pages.has(*worker->pages[0]));
  CHECK(worker->pages[0]->name() == "w-1");
  CHECK(worker->pages[0]->program() == worker->process->start_stack);
  CHECK(worker->pages[0]->open_count() == 1);
  CHECK(stage.pages.take_changed());
  CHECK_FALSE(stage.pages.take_changed());
  const auto owner = stage.page_folder.confirmed_owner("w-1");
  REQUIRE(owner);
  CHECK(owner->pid == holder.pid());
  CHECK(owner->start_time == worker->process->start_time);
  CHECK(owner->start_stack == worker->process->start_stack);
  stage.sweep();
  stage.wake_up("w-1");
  CHECK(worker->pages.size() == 1);
  CHECK(stage.pages.take_changed());  // it may have new scopes
  CHECK(stage.rejections.total() == 0);
}

TEST_CASE("A page is refused unless the process that holds it is the one that it names") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1"});
  TestPage content = PagesStage::page_of(holder.pid());
  std::string reason;
  const std::uint64_t started = start_time_in_proc(holder.pid());
  SUBCASE("by its pid") {
    content.header().pid = 5;
    reason = fmt::format("it says pid 5: expected {}, which holds its lock", holder.pid());
  }
  SUBCASE("by its start time") {
    content.header().start_time = started + 1;
    reason = fmt::format("it says that pid {} started at {}: expected {}", holder.pid(),
                         started + 1, started);
  }
  stage.make("w-1", content);
  holder.take();
  stage.wake_up("w-1");
  CHECK(stage.take_rejection() == fmt::format("page 'w-1': {}", reason));
  CHECK(stage.workers.count() == 0);
  CHECK(stage.has_file("w-1"));
}

TEST_CASE("A page whose lock is held by a process that cannot be named is refused") {
  PagesStage stage;
  stage.make("w-1", PagesStage::page_of(kNoProcess));
  // The kernel names no process for a lock of an open file.
  const UniqueFd file(::open(stage.page_folder.page_path("w-1").c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  REQUIRE(::fcntl(file.get(), F_OFD_SETLK, &lock) == 0);
  stage.wake_up("w-1");
  CHECK(testing::contains(stage.take_rejection(), "outside the server's pid namespace"));
  CHECK(stage.has_file("w-1"));
}

TEST_CASE("A page that an earlier server has confirmed as this server's own is refused") {
  PagesStage stage;
  stage.make("w-1", PagesStage::page_of(::getpid()));
  stage.page_folder.confirm("w-1", {::getpid(), start_time_in_proc(::getpid()), 0});
  stage.adopt();
  CHECK(stage.take_rejection() == "page 'w-1': this server holds its lock");
  CHECK(stage.workers.count() == 0);
}

TEST_CASE("The page of a process that has exited is removed, and its open scopes are recorded") {
  PagesStage stage;
  TestPage content = PagesStage::page_of(kNoProcess);
  content.header().start_time = 77;
  content.set_rank("3");
  content.open(1, {.name = "judged", .word = slot_word::expired(2'000)});
  content.open(2, {.name = "whole", .word = 9'000, .flags = slot_flag::kWholeProcess});
  content.open(3, {.name = "idle", .word = slot_word::expired(9'000), .flags = slot_flag::kIdle});
  content.open(4, {.name = "left", .word = slot_word::kFree});
  content.header().statistics = 1;
  write_name(content.page().statistics(0).name, "forward");
  content.page().statistics(0).count = 5;
  stage.make("w-1", content);
  stage.pages.look_for_pages();
  CHECK_FALSE(stage.has_file("w-1"));
  CHECK(stage.left_open() == Lines{fmt::format("forward ({}): {}", kNoProcess, kUnseen),
                                   fmt::format("judged ({}): {}", kNoProcess, kUnseen)});
  CHECK(stage.records_of("left_open").at(0).integer("start_time") == 77);
  CHECK(stage.records_of("left_open").at(0).integer("rank") == 3);
  CHECK(stage.records_of("worker_ended").size() == 1);
  CHECK(stage.pages.orphaned_scopes() == 2);
  CHECK(stage.workers.count() == 0);
  CHECK(stage.rejections.total() == 0);
}

TEST_CASE("A page of another boot is orphaned, even if a process has the pid that it names") {
  PagesStage stage;
  TestPage content = PagesStage::page_of(::getpid());
  content.header().boot = {};
  stage.make("w-1", content);
  stage.pages.look_for_pages();
  CHECK_FALSE(stage.has_file("w-1"));
  CHECK(stage.left_open() ==
        Lines{fmt::format("forward ({}): the machine was restarted", ::getpid())});
}

TEST_CASE("A scope that an earlier server has judged is not recorded as left open") {
  PagesStage stage;
  stage.make("w-1", PagesStage::page_of(kNoProcess));
  stage.adopt(true);
  CHECK_FALSE(stage.has_file("w-1"));
  CHECK(stage.left_open().empty());
  CHECK(stage.pages.orphaned_scopes() == 0);
  // Only while the server starts; later it knows its own verdicts.
  stage.make("w-2", PagesStage::page_of(kNoProcess));
  stage.sweep();
  CHECK(stage.left_open().size() == 1);
}

TEST_CASE("A page without an owner waits for the exit of the process that it names") {
  PagesStage stage;
  Child child;
  stage.make("w-1", PagesStage::page_of(child.pid()));
  stage.wake_up("w-1");
  CHECK(stage.has_file("w-1"));
  CHECK(stage.rejections.total() == 0);
  const pid_t pid = child.pid();
  child.end();
  stage.dispatch();
  CHECK_FALSE(stage.has_file("w-1"));
  CHECK(stage.left_open() == Lines{fmt::format("forward ({}): {}", pid, kUnseen)});
}

TEST_CASE("A page without an owner whose process stays alive is refused by the next sweep") {
  PagesStage stage;
  stage.make("w-1", PagesStage::page_of(::getpid()));
  stage.pages.look_for_pages();
  CHECK(stage.rejections.total() == 0);
  stage.pages.look_for_pages();
  CHECK(stage.take_rejection() == "page 'w-1': no process holds its lock");
  CHECK(stage.has_file("w-1"));
  stage.sweep();
  CHECK(stage.rejections.total() == 1);
}

TEST_CASE("A starting server takes the owner of an unlocked page from the folder") {
  PagesStage stage;
  const Child child;
  const Process process = std::move(*open_process(child.pid()));
  PageFolder::Owner owner{process.pid, process.start_time, process.start_stack};
  TestPage content = PagesStage::page_of(child.pid());
  SUBCASE("the process still runs") {
    stage.make("w-1", content);
    stage.page_folder.confirm("w-1", owner);
    stage.adopt();
    REQUIRE(stage.workers.find(child.pid()) != nullptr);
    CHECK(stage.workers.find(child.pid())->pages.size() == 1);
    CHECK(stage.has_file("w-1"));
  }
  SUBCASE("it runs another program") {
    ++owner.start_stack;
    stage.make("w-1", content);
    stage.page_folder.confirm("w-1", owner);
    stage.adopt();
    CHECK(stage.left_open() ==
          Lines{fmt::format("forward ({}): {}", child.pid(), PageRegistry::kStartedAnother)});
  }
  SUBCASE("another process has its pid") {
    owner.start_time = content.header().start_time = 1;
    stage.make("w-1", content);
    stage.page_folder.confirm("w-1", owner);
    stage.adopt();
    CHECK(stage.left_open() == Lines{fmt::format("forward ({}): {}", child.pid(), kUnseen)});
  }
  SUBCASE("a server that has started knows the owners already") {
    stage.make("w-1", content);
    stage.page_folder.confirm("w-1", owner);
    stage.wake_up("w-1");
    CHECK(stage.workers.count() == 0);
  }
}

TEST_CASE("A name that is not a page name is rejected at the start and in wake-up messages") {
  PagesStage stage;
  stage.make("w_1", PagesStage::page_of(kNoProcess));
  stage.make(".w-2", PagesStage::page_of(kNoProcess));  // it is being made
  stage.adopt();
  CHECK(stage.rejections.total() == 1);
  CHECK(stage.take_rejection() == "'w_1' is not the name of a page");
  stage.wake_up("w_1");
  CHECK(testing::contains(stage.take_rejection(), "x_page is not a page name"));
  stage.sweep();
  CHECK(stage.rejections.total() == 2);
  CHECK(stage.has_file("w_1"));
  CHECK(stage.has_file(".w-2"));
}

TEST_CASE("A sweep does not look again at a page that was refused, and a wake-up message does") {
  PagesStage stage;
  testing::write_file(stage.page_folder.page_path("w-1"), "no page");
  stage.pages.look_for_pages();
  CHECK(stage.rejections.total() == 1);
  stage.sweep();
  CHECK(stage.rejections.total() == 1);
  stage.pages.on_wake_up_message("w-1");
  CHECK(stage.rejections.total() == 2);
  stage.pages.on_wake_up_message("w-1");
  CHECK(stage.rejections.total() == 2);
  stage.make("w-1", PagesStage::page_of(kNoProcess));
  stage.wake_up("w-1");
  CHECK_FALSE(stage.has_file("w-1"));
}

TEST_CASE("A sweep looks at the files only if the folder has changed, or after look_at_all()") {
  PagesStage stage;
  stage.pages.look_for_pages();
  stage.make("w-1", PagesStage::page_of(kNoProcess));
  stage.page_folder.has_changed();  // the change was noticed
  stage.pages.look_for_pages();
  CHECK(stage.has_file("w-1"));
  stage.pages.look_at_all();
  stage.pages.look_for_pages();
  CHECK_FALSE(stage.has_file("w-1"));
}

TEST_CASE("A sweep looks at 256 new files, and the next one at the others") {
  PagesStage stage;
  for (int i = 0; i < 300; ++i) {
    testing::write_file(stage.page_folder.page_path(fmt::format("w-{}", i)), "no page");
  }
  stage.pages.look_for_pages();
  CHECK(stage.rejections.total() == 256);
  stage.pages.look_for_pages();
  CHECK(stage.rejections.total() == 300);
}

TEST_CASE("A ninth page of a worker is refused for now, and read when there is room") {
  PagesStage stage;
  Lines names;
  for (int i = 0; i < 9; ++i) {
    names.push_back(fmt::format("w-{}", i));
  }
  PageHolder holder(stage, names);
  for (const std::string& name : names) {
    stage.make(name, PagesStage::page_of(holder.pid()));
  }
  holder.take();
  stage.pages.look_for_pages();
  Worker* const worker = stage.workers.find(holder.pid());
  REQUIRE(worker != nullptr);
  CHECK(worker->pages.size() == 8);
  CHECK(stage.take_rejection().ends_with(fmt::format("pid {} has 8 pages already", holder.pid())));
  const std::shared_ptr<WorkerPage> first = worker->pages[0];
  stage.pages.remove(*worker, *first, "");
  stage.page_folder.has_changed();  // so the page is looked at without a change
  stage.pages.look_for_pages();
  CHECK(worker->pages.size() == 8);
  CHECK(stage.rejections.total() == 1);
  CHECK_FALSE(stage.pages.has(*first));
  CHECK_FALSE(stage.has_file(first->name()));
}

TEST_CASE("The open scopes of a removed page are recorded with the reason") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1"});
  TestPage content = PagesStage::page_of(holder.pid());
  content.open(1, {.name = "judged", .word = slot_word::expired(2'000)});
  content.open(2, {.name = "whole", .word = 9'000, .flags = slot_flag::kWholeProcess});
  stage.make("w-1", content);
  holder.take();
  stage.wake_up("w-1");
  Worker* const worker = stage.workers.find(holder.pid());
  REQUIRE(worker != nullptr);
  Lines expected{fmt::format("forward ({}): the worker ended", holder.pid())};
  SUBCASE("the worker has exited") {
    stage.registry.remove(*worker);
  }
  SUBCASE("the worker was killed") {
    worker->dying = true;
    stage.registry.remove(*worker);
    expected.clear();
  }
  SUBCASE("the worker runs another program") {
    stage.pages.remove(*worker, *worker->pages[0], PageRegistry::kStartedAnother);
    expected = {fmt::format("forward ({}): {}", holder.pid(), PageRegistry::kStartedAnother)};
  }
  SUBCASE("the worker has truncated it") {
    REQUIRE(::truncate(stage.page_folder.page_path("w-1").c_str(), 0) == 0);
    CHECK(worker->pages[0]->open_count() == 0);
    stage.pages.remove(*worker, *worker->pages[0], "");
    CHECK(testing::contains(stage.take_rejection(), "was truncated"));
    expected.clear();
  }
  CHECK(stage.left_open() == expected);
  CHECK_FALSE(stage.has_file("w-1"));
  CHECK_FALSE(stage.page_folder.confirmed_owner("w-1"));
}

TEST_CASE("The scopes of the pipe end with their worker, and are recorded as left open") {
  PagesStage stage;
  Worker& worker = stage.add_worker(4711);
  stage.acquire(worker, "piped", 9'000);
  stage.unsaved.note(worker);
  stage.unsaved.save(stage.workers);
  CHECK(testing::exists(stage.folder.path("4711")));
  stage.pages.remove_all(worker, "the worker ended");
  CHECK(worker.pipe == nullptr);
  CHECK(worker.pages.empty());
  CHECK(stage.left_open() == Lines{"piped (4711): the worker ended"});
  CHECK_FALSE(testing::exists(stage.folder.path("4711")));
}

TEST_CASE("A new page of a process removes the pages of its earlier programs") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1", "w-2"});
  stage.make("w-1", PagesStage::page_of(holder.pid()));
  stage.make("w-2", PagesStage::page_of(holder.pid()));
  holder.take();
  stage.wake_up("w-1");
  Worker* const worker = stage.workers.find(holder.pid());
  REQUIRE(worker != nullptr);
  auto& page = dynamic_cast<MappedPage&>(*worker->pages.at(0));
  CHECK_FALSE(runs_another_program(*worker->process, page));
  page.set_program(page.program() + 1);
  CHECK(runs_another_program(*worker->process, page));
  stage.wake_up("w-2");
  REQUIRE(worker->pages.size() == 1);
  CHECK(worker->pages[0]->name() == "w-2");
  CHECK(stage.left_open() ==
        Lines{fmt::format("forward ({}): {}", holder.pid(), PageRegistry::kStartedAnother)});
}

TEST_CASE("A scope that outlives its thread is recorded once its worker sends a wake-up message") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1"});
  TestPage content = PagesStage::page_of(holder.pid());
  content.open(0, {.word = 9'000, .flags = slot_flag::kThreadEnded});
  stage.make("w-1", content);
  holder.take();
  stage.pages.look_for_pages();
  stage.pages.record_ended_threads();
  CHECK(stage.records_of("warned").empty());
  stage.wake_up("w-1");
  stage.pages.record_ended_threads();
  stage.wake_up("w-1");
  stage.pages.record_ended_threads();
  const testing::Records warned = stage.records_of("warned");
  REQUIRE(warned.size() == 1);
  CHECK(warned[0].text("reason") == "the thread that opened it has ended; its deadline remains");
}

TEST_CASE("A worker that drops the lock of its page keeps the page while the server knows it") {
  PagesStage stage;
  PageHolder holder(stage, {"w-1"});
  stage.make("w-1", PagesStage::page_of(holder.pid()));
  holder.take();
  stage.wake_up("w-1");
  holder.let_go();
  stage.wake_up("w-1");
  stage.sweep();
  REQUIRE(stage.workers.find(holder.pid()) != nullptr);
  CHECK(stage.workers.find(holder.pid())->pages.size() == 1);
  CHECK(stage.rejections.total() == 0);
}
