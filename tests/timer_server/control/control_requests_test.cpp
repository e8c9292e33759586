// ControlRequests without a server and without worker processes.
// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/timer_server/test_log.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

// A client's reply pipe.
class Client {
 public:
  Client(const testing::TempFolder& folder, std::string name)
      : name_(std::move(name)), path_(folder.path("replies/" + name_)) {
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
    pipe_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  [[nodiscard]] std::string_view name() const { return name_; }
  // Returns the answers since the last call.
  [[nodiscard]] std::string read() const {
    std::array<char, 65536> bytes{};
    const ssize_t got = ::read(pipe_.get(), bytes.data(), bytes.size());
    return {bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }
  void go() { pipe_.reset(); }

 private:
  std::string name_;
  std::string path_;
  UniqueFd pipe_;
};

wire::Question question(
    std::string_view request, const std::function<void(wire::Question&)>& more = [](auto&) {}) {
  wire::Question asked;
  asked.request = request;
  more(asked);
  return asked;
}

struct QuestionStage {
  explicit QuestionStage(LifeCycle::Kind kind = LifeCycle::Kind::kAlone) : life(kind) {
    Process process;
    process.pid = 4711;
    Worker& worker = **workers.add(std::move(process));
    worker.pipe = std::make_shared<PipePage>(folder.path(), 4711, WorkerPage::Terms{});
    worker.pages.push_back(worker.pipe);
    pipe = worker.pipe;
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
    control.emplace(loop.get(), folder.path(), std::move(*ReplyFolder::make(folder.path())), 1min,
                    ControlRequests::Context{scopes, life, rejections, records, *log, dumps,
                                             [this](Announcement) { on_publish(); }});
  }
  void open_scopes(std::size_t count) {
    pipe->release_all();
    ScopeTerms terms;
    terms.deadline = Instant::never();
    for (std::size_t scope = 0; scope < count; ++scope) {
      const std::string name = "scope" + std::to_string(scope);
      REQUIRE(pipe->acquire(name, name.size(), terms));
    }
  }
  auto advance(Instant at) { return control->advance(at, has_kills); }
  void ask(const Client& client, wire::Question asked) {
    asked.reply = client.name();
    if (asked.wait_s == 0) {
      asked.wait_s = 10;
    }
    wire::Request request;
    request.pid = ::getpid();
    request.question = asked;
    control->begin_iteration();
    control->take(request, "the line", now);
  }
  testing::TempFolder folder;
  Workers workers;
  std::shared_ptr<PipePage> pipe;
  Settings settings;
  GivenTime given_time;
  ScopePolicy policy{settings, given_time};
  OpenScopes scopes{workers, policy};
  bool has_kills = false;
  std::function<void()> on_publish = [] {};
  LifeCycle life;
  Rejections rejections;
  filetimer::Records records{RecordOrigin::of_this_process(folder.path())};
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Instant now{1'000'000};
  EventLoop loop = make_event_loop();
  SideThreads side_threads;
  DumpRequests dumps{{workers, policy, side_threads, EvidenceLevel::kProc, 2s,
                      [](const Worker&) { return std::optional<PythonDump>(); }}};
  std::optional<ControlRequests> control;
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A drain is on the status page before its client gets the answer") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  bool was_silent = false;
  stage.on_publish = [&] {
    was_silent = client.read().empty();
    CHECK(stage.control->announcement() == Announcement::kDraining);
  };
  stage.ask(client, question("drain"));
  CHECK(was_silent);
  CHECK(contains(client.read(), R"("draining":true)"));
  stage.on_publish = [] {};
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("drain", [](auto& q) { q.off = true; }));
  CHECK(stage.control->announcement() == Announcement::kNone);
}

TEST_CASE("A shutdown is refused while a scope is open, and returned when no scope is open") {
  QuestionStage stage;
  stage.open_scopes(2);
  const Client refused(stage.folder, "1-a");
  stage.ask(refused, question("shutdown"));
  CHECK(contains(refused.read(), "2 scopes are open"));
  CHECK_FALSE(stage.advance(stage.now));
  stage.open_scopes(0);
  const Client client(stage.folder, "1-b");
  stage.ask(client, question("shutdown"));
  const auto shutdown = stage.advance(stage.now);
  REQUIRE(shutdown);
  CHECK(shutdown->why == "shutdown: if_idle");
  CHECK_FALSE(shutdown->is_forced);
  stage.control->answer_stopped();
  CHECK(contains(client.read(), R"("answer":"done")"));
}

TEST_CASE("A graceful shutdown is returned when the last scope is released") {
  QuestionStage stage;
  stage.open_scopes(1);
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  CHECK_FALSE(stage.advance(stage.now));
  CHECK(contains(client.read(), R"("answer":"waiting")"));
  CHECK(stage.control->announcement() == Announcement::kShutdown);
  const Instant next_look = stage.now + ShutdownRequests::kLookPeriod;
  CHECK(stage.control->next() == next_look);
  stage.open_scopes(0);
  const auto shutdown = stage.advance(next_look);
  REQUIRE(shutdown);
  CHECK(shutdown->why == "shutdown: graceful");
}

TEST_CASE("A graceful shutdown whose time is up is withdrawn, or forced") {
  for (const bool force : {false, true}) {
    CAPTURE(force);
    QuestionStage stage;
    stage.open_scopes(1);
    const Client client(stage.folder, "1-a");
    stage.ask(client, question("shutdown", [force](auto& q) {
                q.wait_s = 1;
                q.graceful = "scopes";
                q.force = force;
              }));
    CHECK_FALSE(stage.advance(stage.now));
    const auto shutdown = stage.advance(stage.now + 1s);
    REQUIRE(shutdown.has_value() == force);
    if (force) {
      CHECK(shutdown->is_forced);
    } else {
      CHECK(contains(client.read(), R"("answer":"timed_out")"));
      CHECK(stage.control->announcement() == Announcement::kNone);
    }
  }
}

TEST_CASE("A server around COMMAND keeps serving after a withdrawn shutdown") {
  QuestionStage stage(LifeCycle::Kind::kAroundCommand);
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) {
              q.wait_s = 1;
              q.graceful = "scopes";
            }));
  REQUIRE(stage.advance(stage.now));
  CHECK(stage.life.handle(LifeCycle::Event::kShutdown, stage.now) ==
        LifeCycle::Action::kAskCommandToEnd);
  CHECK_FALSE(stage.advance(stage.now + 1s));
  CHECK(contains(client.read(), "COMMAND has not ended"));
  CHECK_FALSE(stage.life.is_asked_to_end());
}

TEST_CASE(
    "After the end of COMMAND a graceful shutdown is answered, and forced, when its time is up") {
  for (const bool force : {false, true}) {
    CAPTURE(force);
    QuestionStage stage(LifeCycle::Kind::kAroundCommand);
    stage.open_scopes(1);
    (void)stage.life.handle(LifeCycle::Event::kCommandEnded, stage.now);
    const Client client(stage.folder, "1-a");
    stage.ask(client, question("shutdown", [force](auto& q) {
                q.wait_s = 1;
                q.graceful = "scopes";
                q.force = force;
              }));
    CHECK_FALSE(stage.advance(stage.now));
    const auto shutdown = stage.advance(stage.now + 1s);
    REQUIRE(shutdown.has_value() == force);
    if (!force) {
      CHECK(contains(client.read(), "kills are under way"));
    }
  }
}

TEST_CASE("If an iteration has several shutdowns, the forced one is carried out") {
  for (const bool is_forced_first : {false, true}) {
    QuestionStage stage;
    const Client one(stage.folder, "1-a");
    const Client two(stage.folder, "1-b");
    stage.ask(one, question("shutdown", [&](auto& q) { q.force = is_forced_first; }));
    stage.ask(two, question("shutdown", [&](auto& q) { q.force = !is_forced_first; }));
    CHECK(stage.control->next() == Instant{});
    const auto shutdown = stage.advance(stage.now);
    REQUIRE(shutdown);
    CHECK(shutdown->is_forced);
  }
}

TEST_CASE("A shutdown is not withdrawn by a drain --off that follows it in the same iteration") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown"));
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("drain", [](auto& q) { q.off = true; }));
  CHECK(contains(other.read(), "the server has been asked to end"));
  CHECK(stage.control->has_shutdown());
  CHECK(stage.control->announcement() == Announcement::kShutdown);
}

TEST_CASE("An unknown control request is answered with the known ones") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("stop"));
  CHECK(contains(client.read(), "x_request is 'stop': expected ping, status, dump, drain"));
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("ping", [](auto& q) { q.wait_s = -1; }));
  CHECK(contains(other.read(), "x_wait_s is -1: expected over 0"));
}

TEST_CASE("The shutdown of a client that is gone stays in force") {
  QuestionStage stage;
  stage.open_scopes(1);
  Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  client.go();
  while (::sd_event_run(stage.loop.get(), 0) > 0) {
  }
  CHECK(stage.control->client_count() == 0);
  CHECK(stage.control->announcement() == Announcement::kShutdown);
}

TEST_CASE("A graceful shutdown waits for a kill that is under way") {
  QuestionStage stage;
  stage.has_kills = true;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  CHECK_FALSE(stage.advance(stage.now));
  stage.has_kills = false;
  CHECK(stage.advance(stage.now + ShutdownRequests::kLookPeriod));
}

TEST_CASE("A graceful shutdown for workers waits until the last worker is removed") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "workers"; }));
  CHECK_FALSE(stage.advance(stage.now));
  stage.workers.remove(*stage.workers.find(4711));
  CHECK(stage.advance(stage.now + ShutdownRequests::kLookPeriod));
}

TEST_CASE("Status requests are answered together, with the fields that the server writes then") {
  QuestionStage stage;
  const Client one(stage.folder, "1-a");
  const Client two(stage.folder, "1-b");
  stage.ask(one, question("status"));
  stage.ask(two, question("status"));
  CHECK(stage.control->status_requests() == 2);
  CHECK(stage.control->client_count() == 0);
  CHECK(one.read().empty());
  int workers = 0;
  stage.control->answer_status([&](JsonWriter& json) { json.field("workers", ++workers); });
  CHECK(contains(one.read(), R"("workers":1)"));
  CHECK(contains(two.read(), R"("workers":2)"));
  CHECK(stage.control->status_requests() == 0);
  CHECK(stage.control->client_count() == 0);
}

TEST_CASE("A ping is answered at once with the pid and the version of the server") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("ping"));
  const std::string answer = client.read();
  CHECK(contains(answer, R"("answer":"done")"));
  CHECK(contains(answer, R"("server_pid":)" + std::to_string(::getpid())));
  CHECK(contains(answer, R"("server_version":")"));
  CHECK(stage.control->client_count() == 0);
}

TEST_CASE("A drain is answered with the number of open scopes and refuses waiting ranks") {
  QuestionStage stage;
  stage.open_scopes(3);
  const Client rank(stage.folder, "1-a");
  stage.ask(rank, question("rendezvous", [](auto& q) {
              q.name = "start";
              q.rank = 0;
              q.world = 2;
            }));
  const Client client(stage.folder, "1-b");
  stage.ask(client, question("drain"));
  CHECK(contains(client.read(), R"("draining":true,"open_scope_count":3)"));
  CHECK(contains(rank.read(), "the server is draining"));
  const Client late(stage.folder, "1-c");
  stage.ask(late, question("rendezvous", [](auto& q) {
              q.name = "start";
              q.rank = 1;
              q.world = 2;
            }));
  CHECK(contains(late.read(), "the server is draining: no new rendezvous"));
}

TEST_CASE("A drain --off withdraws a graceful shutdown and answers its client") {
  QuestionStage stage;
  stage.open_scopes(1);
  const Client waiting(stage.folder, "1-a");
  stage.ask(waiting, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  CHECK(contains(waiting.read(), R"("answer":"granted","wait_s":10)"));
  const Client client(stage.folder, "1-b");
  stage.ask(client, question("drain", [](auto& q) { q.off = true; }));
  CHECK(contains(client.read(), R"("draining":false)"));
  CHECK(contains(waiting.read(), "drain --off withdrew the shutdown"));
  stage.open_scopes(0);
  CHECK_FALSE(stage.advance(stage.now + 1s));
}

TEST_CASE("A shutdown with an unknown x_graceful is invalid, and a forced one does not wait") {
  QuestionStage stage;
  stage.open_scopes(1);
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "hooks"; }));
  CHECK(contains(client.read(), "x_graceful is 'hooks': expected 'scopes' or 'workers'"));
  CHECK_FALSE(stage.control->has_shutdown());
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("shutdown", [](auto& q) { q.force = true; }));
  const auto shutdown = stage.advance(stage.now);
  REQUIRE(shutdown);
  CHECK(shutdown->is_forced);
}

TEST_CASE(
    "A rank is granted its wait, answered when its round is full, and refused if its join is "
    "wrong") {
  QuestionStage stage;
  const auto rank = [](int number) {
    return question("rendezvous", [number](auto& q) {
      q.name = "start";
      q.rank = number;
      q.world = 2;
    });
  };
  const Client unnumbered(stage.folder, "1-a");
  stage.ask(unnumbered, question("rendezvous", [](auto& q) { q.name = "start"; }));
  CHECK(contains(unnumbered.read(), "lacks x_rank or x_world"));
  const Client zero(stage.folder, "1-b");
  stage.ask(zero, rank(0));
  CHECK(contains(zero.read(), R"("answer":"granted","wait_s":10)"));
  CHECK(stage.control->next() == stage.now + 10s);
  const Client twice(stage.folder, "1-c");
  stage.ask(twice, rank(0));
  CHECK(contains(twice.read(), "rank 0 has joined rendezvous 'start' already"));
  const Client one(stage.folder, "1-d");
  stage.ask(one, rank(1));
  CHECK(contains(one.read(), R"("answer":"granted")"));
  CHECK_FALSE(stage.advance(stage.now));
  CHECK(contains(zero.read(), R"("answer":"done","name":"start","round":1,"world":2)"));
  CHECK(contains(one.read(), R"("answer":"done")"));
  CHECK(stage.control->client_count() == 0);
}

TEST_CASE("The wait of a client is limited to --max-wait") {
  QuestionStage stage;
  stage.open_scopes(1);
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) {
              q.graceful = "scopes";
              q.wait_s = 3600;
            }));
  CHECK(contains(client.read(), R"("wait_s":60)"));
}
