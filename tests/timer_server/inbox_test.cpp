// Requests through a real named pipe, about made-up workers.
// SPDX-License-Identifier: MIT
#include "timer_server/inbox.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <stdexcept>

#include "tests/timer_server/registry_parts.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct InboxStage : RegistryParts {
  struct Kind {
    bool is_around_command = false;
    bool outlives_server = false;
  };
  InboxStage() : InboxStage(Kind{}) {}
  explicit InboxStage(Kind kind, Settings with = {})
      : RegistryParts(std::move(with)), pipe(make_pipe(kind.outlives_server)) {
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
    REQUIRE(::mkfifo(folder.path("replies/reply").c_str(), 0600) == 0);
    reply.reset(::open(folder.path("replies/reply").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    inbox.emplace(Inbox::Context{.loop = loop.get(),
                                 .pipe = pipe,
                                 .workers = workers,
                                 .registry = registry,
                                 .pages = pages,
                                 .folder = page_folder,
                                 .policy = policy,
                                 .control = control,
                                 .life = life,
                                 .rejections = rejections,
                                 .unsaved = unsaved,
                                 .cut_timeouts = cut_timeouts,
                                 .overdue = overdue,
                                 .is_around_command = kind.is_around_command});
    inbox->listen();
  }

  RequestPipe make_pipe(bool outlives_server) const {
    const std::string path = folder.path("requests");
    if (!outlives_server) {
      return std::move(*RequestPipe::open(path));
    }
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    return std::move(
        *RequestPipe::take(path, UniqueFd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC))));
  }
  void write(const std::string& text) const {
    const UniqueFd end(::open(pipe.path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(::write(end.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void send(const std::string& text) {
    write(text);
    control.begin_iteration();
    inbox->read();
  }
  static wire::Request acquire_request(std::string_view id, pid_t pid = 4711) {
    wire::Request request;
    request.pid = pid;
    request.scope_id = id;
    request.expiration_time = kNever;
    request.signal = SIGKILL;
    return request;
  }
  static std::string acquire_line(std::string_view id, pid_t pid = 4711) {
    return wire::format(acquire_request(id, pid));
  }
  static std::string release_line(std::string_view id, pid_t pid = 4711) {
    wire::Request request = acquire_request(id, pid);
    request.expiration_time = -1;
    return wire::format(request);
  }
  static std::string question_line(std::string_view what, bool force = false) {
    wire::Question question;
    question.request = what;
    question.reply = "reply";
    question.wait_s = 10;
    question.force = force;
    return wire::format_question(question, ::getpid());
  }
  // The names of the worker's open scopes, the oldest first.
  std::string open_scopes() {
    std::string all;
    for (const ScopeView& scope : policy.open_scopes_of(worker)) {
      all += (all.empty() ? "" : " ") + scope.name;
    }
    return all;
  }
  bool wakes_loop() const { return ::sd_event_run(loop.get(), 0) > 0; }

  Worker& worker = add_worker(4711);
  OpenScopes scopes{workers, policy};
  bool publish_fails = false;
  LifeCycle life{LifeCycle::Kind::kAlone};
  CutTimeouts cut_timeouts{settings.max_timeout.value_or(kForever), records, *log};
  OverdueScopes overdue{records, *log};
  RequestPipe pipe;
  DumpRequests dumps{{workers, policy, side_threads, EvidenceLevel::kNone, 2s,
                      [](const Worker&) { return std::optional<PythonDump>(); }}};
  ControlRequests control{loop.get(), folder.path(), std::move(*ReplyFolder::make(folder.path())),
                          1min,
                          ControlRequests::Context{scopes, life, rejections, records, *log, dumps,
                                                   [this](Announcement) {
                                                     if (publish_fails) {
                                                       throw std::runtime_error("no memory");
                                                     }
                                                   }}};
  UniqueFd reply;
  std::optional<Inbox> inbox;
};

std::int64_t unix_seconds() {
  return ClockReading::now().wall_ns / 1'000'000'000;
}

}  // namespace

TEST_CASE("An acquire opens a scope on the worker's pipe page, and a release ends it") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward") + InboxStage::acquire_line("backward"));
  CHECK(stage.open_scopes() == "forward backward");
  CHECK(stage.inbox->count() == 2);
  CHECK(stage.worker.left_on_pipe == Instant{});
  stage.unsaved.save(stage.workers);
  CHECK(testing::exists(stage.page_folder.server_pages() + "/4711"));
  stage.send(InboxStage::release_line("backward"));
  CHECK(stage.open_scopes() == "forward");
  CHECK(stage.worker.left_on_pipe > Instant{});
  CHECK(stage.worker.left_on_pipe <= Instant::now());
  stage.unsaved.save(stage.workers);
  CHECK_FALSE(stage.worker.pipe->needs_save());
  CHECK(stage.take_rejection().empty());
}

TEST_CASE("Scopes that are opened in one reading keep their order") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("b") + InboxStage::acquire_line("a"));
  CHECK(stage.open_scopes() == "b a");
  const auto scopes = stage.policy.open_scopes_of(stage.worker);
  CHECK(scopes.at(1).terms.acquired == scopes.at(0).terms.acquired + 1ns);
}

TEST_CASE("The earliest deadline of the requests that were read is given once") {
  InboxStage stage;
  CHECK(stage.inbox->take_earliest_deadline().is_never());
  std::string lines;
  for (const int after : {300, 100, 200}) {
    wire::Request request = InboxStage::acquire_request(after == 100 ? "first" : "later");
    request.expiration_time = static_cast<double>(unix_seconds() + after);
    lines += wire::format(request);
  }
  stage.send(lines);
  const Instant earliest = stage.inbox->take_earliest_deadline();
  const auto scopes = stage.policy.open_scopes_of(stage.worker);
  const auto first = std::ranges::find(scopes, "first", &ScopeView::name);
  REQUIRE(first != scopes.end());
  CHECK(earliest == first->terms.deadline);
  CHECK(stage.inbox->take_earliest_deadline().is_never());
}

TEST_CASE("A name that is too long is cut, and its release finds the scope") {
  InboxStage stage;
  const std::string name(400, 'x');
  stage.send(InboxStage::acquire_line(name));
  CHECK(stage.open_scopes().size() <= kMaxScopeNameBytes);
  CHECK(stage.open_scopes().starts_with("xxx"));
  stage.send(InboxStage::release_line(name));
  CHECK(stage.open_scopes().empty());
}

TEST_CASE("The name of a scope is the beginning of its identity, else the whole identity") {
  InboxStage stage;
  wire::Request request = InboxStage::acquire_request("forward#2");
  request.x_scope = "forward";
  wire::Request other = InboxStage::acquire_request("step#1");
  other.x_scope = "another";
  stage.send(wire::format(request) + wire::format(other));
  CHECK(stage.open_scopes() == "forward step#1");
}

TEST_CASE("A line that is not a request is rejected, and the lines after it are carried out") {
  InboxStage stage;
  stage.send("nonsense\n" + InboxStage::acquire_line("forward"));
  CHECK(stage.rejections.total() == 1);
  const auto report = stage.rejections.take(Instant::now(), true);
  REQUIRE(report);
  CHECK(report->line == "nonsense");
  CHECK(stage.inbox->count() == 2);
  CHECK(stage.open_scopes() == "forward");
}

TEST_CASE("A signal that Linux does not have is rejected") {
  InboxStage stage;
  wire::Request request = InboxStage::acquire_request("forward");
  request.signal = 65;
  stage.send(wire::format(request));
  CHECK(stage.open_scopes().empty());
  const auto report = stage.rejections.take(Instant::now(), true);
  REQUIRE(report);
  CHECK(report->reason == "signal is 65: expected at most 64");
  CHECK(report->pid == 4711);
  request.signal = 64;
  stage.send(wire::format(request));
  CHECK(stage.open_scopes() == "forward");
}

TEST_CASE("A request of a process that is not a worker is rejected, unless it has just exited") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward", kNoProcess));
  CHECK(testing::contains(stage.take_rejection(), "there is no process"));
  wire::Request whole = InboxStage::acquire_request("run", kNoProcess);
  whole.x_whole_process = true;
  stage.send(wire::format(whole));
  CHECK(stage.take_rejection().empty());
  stage.registry.remove(stage.add_worker(kNoProcess));
  stage.send(InboxStage::acquire_line("forward", kNoProcess));
  CHECK(stage.take_rejection().empty());
  stage.send(InboxStage::acquire_line("forward", ::getpid()));
  CHECK(testing::contains(stage.take_rejection(), "is this server"));
  stage.send(InboxStage::release_line("forward", ::getpid()));
  CHECK(stage.take_rejection().empty());
  CHECK(stage.workers.count() == 1);
}

TEST_CASE("A release of a scope that is not open changes nothing") {
  InboxStage stage;
  stage.send(InboxStage::release_line("forward"));
  CHECK(stage.worker.pipe == nullptr);
  stage.send(InboxStage::acquire_line("forward") + InboxStage::release_line("other"));
  CHECK(stage.open_scopes() == "forward");
  CHECK(stage.worker.left_on_pipe == Instant{});
  CHECK(stage.take_rejection().empty());
}

TEST_CASE("A worker that is being killed opens no scope, and releases the others") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward") + InboxStage::acquire_line("step"));
  stage.worker.dying = true;
  stage.send(InboxStage::acquire_line("backward") + InboxStage::release_line("step"));
  CHECK(stage.open_scopes() == "forward");
  CHECK(stage.take_rejection().empty());
}

TEST_CASE("A timeout over --max-timeout is recorded when its request is read") {
  Settings settings;
  settings.max_timeout = 10s;
  InboxStage stage({}, settings);
  wire::Request request = InboxStage::acquire_request("long");
  request.x_timeout_s = 60;
  wire::Request longest = request;
  longest.scope_id = "short";
  longest.x_timeout_s = 10;
  stage.send(wire::format(request) + wire::format(longest));
  const testing::Records warned = stage.records_of("warned");
  REQUIRE(warned.size() == 1);
  CHECK(warned[0].text("scope") == "long");
  CHECK(warned[0].number("asked_s") == 60);
  CHECK(warned[0].number("granted_s") == 10);
}

TEST_CASE("A scope for which there is no room is rejected") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward"));
  for (std::size_t i = 1; i < kMaxScopesPerWorker; ++i) {
    const std::string id = fmt::format("s{}", i);
    REQUIRE(stage.worker.pipe->acquire(id, id.size(), {}));
  }
  stage.send(InboxStage::acquire_line("one more"));
  CHECK(testing::contains(stage.take_rejection(), "no more fit"));
  stage.send(InboxStage::acquire_line("forward"));
  CHECK(stage.take_rejection().empty());
}

TEST_CASE("A draining server refuses new scopes, and renews those that are open") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward") + InboxStage::question_line("drain"));
  stage.send(InboxStage::acquire_line("forward"));
  CHECK(stage.take_rejection().empty());
  stage.send(InboxStage::acquire_line("backward"));
  CHECK(stage.take_rejection() == "the server is draining: no new scopes");
  CHECK(stage.open_scopes() == "forward");
}

TEST_CASE("A server that was asked to end accepts new scopes only if its pipe outlives it") {
  InboxStage::Kind kind;
  bool is_taken = false;
  SUBCASE("its pipe ends with it") {}
  SUBCASE("its pipe outlives it") {
    kind.outlives_server = true;
    is_taken = true;
  }
  SUBCASE("its pipe outlives it, and COMMAND may keep running") {
    kind = {.is_around_command = true, .outlives_server = true};
  }
  InboxStage stage(kind);
  stage.send(InboxStage::question_line("shutdown", true) + InboxStage::acquire_line("forward"));
  CHECK(stage.open_scopes() == (is_taken ? "forward" : ""));
  CHECK(stage.take_rejection().empty() == is_taken);
  (void)stage.life.handle(LifeCycle::Event::kShutdown, Instant::now());
  REQUIRE(stage.life.is_stopping());
  stage.send(InboxStage::acquire_line("backward"));
  CHECK(stage.take_rejection().empty() == kind.outlives_server);
}

TEST_CASE(
    "A request that cannot be carried out is rejected, and the ones after it are carried out") {
  InboxStage stage;
  stage.send(InboxStage::acquire_line("forward"));
  stage.publish_fails = true;
  stage.send(InboxStage::question_line("drain") + InboxStage::release_line("forward"));
  CHECK(stage.take_rejection() == "it could not be carried out: no memory");
  CHECK(stage.open_scopes().empty());
  CHECK(stage.inbox->count() == 3);
}

TEST_CASE("The page of a wake-up message is looked at once in a batch of requests") {
  InboxStage stage;
  const std::string line = wire::format_page_hint("missing");
  stage.send(line + line);
  CHECK(stage.pages.take_changed());
  CHECK(stage.rejections.total() == 1);
  CHECK(testing::contains(stage.take_rejection(), "page 'missing'"));
  stage.send(line);
  CHECK(stage.rejections.total() == 2);
}

TEST_CASE("A request wakes the loop, and after a flood the pipe is read in pauses") {
  InboxStage stage;
  CHECK_FALSE(stage.wakes_loop());
  stage.write(InboxStage::acquire_line("forward"));
  CHECK(stage.wakes_loop());
  stage.inbox->read();
  CHECK(stage.inbox->next().is_never());
  CHECK_FALSE(stage.wakes_loop());
  std::string flood;
  while (flood.size() <= 2'048) {
    flood += InboxStage::acquire_line("forward");
  }
  const Instant before = Instant::now();
  stage.send(flood);
  CHECK(stage.inbox->next() > before);
  CHECK(stage.inbox->next() <= Instant::now() + 200us);
  while (stage.wakes_loop()) {  // what was written before it was read
  }
  stage.write(InboxStage::acquire_line("forward"));
  CHECK_FALSE(stage.wakes_loop());
  stage.inbox->read();
  CHECK(stage.inbox->next().is_never());
  stage.write(InboxStage::acquire_line("forward"));
  CHECK(stage.wakes_loop());
}

TEST_CASE("A limited reading takes no more bytes than its limit") {
  InboxStage stage;
  const std::string first = InboxStage::acquire_line("forward");
  stage.write(first + InboxStage::acquire_line("backward"));
  stage.inbox->read(first.size());
  CHECK(stage.open_scopes() == "forward");
  stage.inbox->read();
  CHECK(stage.open_scopes() == "forward backward");
}

TEST_CASE("A replaced pipe wakes the loop after listen()") {
  InboxStage stage;
  stage.inbox->stop_listening();
  stage.write(InboxStage::acquire_line("forward"));
  CHECK_FALSE(stage.wakes_loop());
  stage.inbox->listen();
  CHECK(stage.wakes_loop());
}
