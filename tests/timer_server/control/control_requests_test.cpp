// ControlRequests without a server: a fake host says what is open.
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

class FakeHost : public ControlRequests::Host {
 public:
  void write_status(JsonWriter& json, Instant /*now*/) override { json.field("workers", workers); }
  void write_open_scopes(JsonWriter& json, bool /*with_workers*/, std::size_t /*room*/) override {
    json.field("open_scope_count", open);
  }
  std::size_t open_scope_count() override { return open; }
  [[nodiscard]] bool has_workers() const override { return workers > 0; }
  [[nodiscard]] bool has_kills() const override { return false; }
  void announce() override { on_announce(); }

  std::size_t open = 0;
  std::size_t workers = 0;
  std::function<void()> on_announce = [] {};
};

// A client's reply pipe.
class Client {
 public:
  Client(const testing::TempFolder& folder, std::string name)
      : name_(std::move(name)), path_(folder.path("replies/" + name_)) {
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
    pipe_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  [[nodiscard]] std::string_view name() const { return name_; }
  // The answers that have come since the last look.
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
    ::signal(SIGPIPE, SIG_IGN);  // the server does not take it
    sd_event* event = nullptr;
    check_event(::sd_event_new(&event), "no loop");
    loop.reset(event);
    control.emplace(event, folder.path(), std::move(*ReplyFolder::make(folder.path())), 1min,
                    ControlRequests::Context{host, life, rejections, records, *log});
  }
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
  FakeHost host;
  LifeCycle life;
  Rejections rejections;
  filetimer::Records records{RecordOrigin::of_this_process(folder.path())};
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Instant now{1'000'000};
  EventLoop loop;
  std::optional<ControlRequests> control;
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A drain is on the status page before its client has the answer") {
  QuestionStage stage;
  const Client client(stage.folder, "1-a");
  bool was_silent = false;
  stage.host.on_announce = [&] {
    was_silent = client.read().empty();
    CHECK(stage.control->announcement() == Announcement::kDraining);
  };
  stage.ask(client, question("drain"));
  CHECK(was_silent);
  CHECK(contains(client.read(), R"("draining":true)"));
  stage.host.on_announce = [] {};
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("drain", [](auto& q) { q.off = true; }));
  CHECK(stage.control->announcement() == Announcement::kNone);
}

TEST_CASE("A shutdown is refused while a scope is open, and returned when none is") {
  QuestionStage stage;
  stage.host.open = 2;
  const Client refused(stage.folder, "1-a");
  stage.ask(refused, question("shutdown"));
  CHECK(contains(refused.read(), "2 scopes are open"));
  CHECK_FALSE(stage.control->advance(stage.now));
  stage.host.open = 0;
  const Client client(stage.folder, "1-b");
  stage.ask(client, question("shutdown"));
  const auto shutdown = stage.control->advance(stage.now);
  REQUIRE(shutdown);
  CHECK(shutdown->why == "shutdown");
  CHECK_FALSE(shutdown->is_forced);
  stage.control->answer_stopped();
  CHECK(contains(client.read(), R"("answer":"done")"));
}

TEST_CASE("A graceful shutdown is returned when the last scope is released") {
  QuestionStage stage;
  stage.host.open = 1;
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  CHECK_FALSE(stage.control->advance(stage.now));
  CHECK(contains(client.read(), R"("answer":"waiting")"));
  CHECK(stage.control->announcement() == Announcement::kShutdown);
  const Instant next_look = stage.now + ShutdownRequests::kLookPeriod;
  CHECK(stage.control->next() == next_look);
  stage.host.open = 0;
  const auto shutdown = stage.control->advance(next_look);
  REQUIRE(shutdown);
  CHECK(shutdown->why == "shutdown --graceful");
}

TEST_CASE("A graceful shutdown whose time is up is withdrawn, or forced") {
  for (const bool force : {false, true}) {
    CAPTURE(force);
    QuestionStage stage;
    stage.host.open = 1;
    const Client client(stage.folder, "1-a");
    stage.ask(client, question("shutdown", [force](auto& q) {
                q.wait_s = 1;
                q.graceful = "scopes";
                q.force = force;
              }));
    CHECK_FALSE(stage.control->advance(stage.now));
    const auto shutdown = stage.control->advance(stage.now + 1s);
    REQUIRE(shutdown.has_value() == force);
    if (force) {
      CHECK(shutdown->is_forced);
    } else {
      CHECK(contains(client.read(), R"("answer":"timed_out")"));
      CHECK(stage.control->announcement() == Announcement::kNone);
    }
  }
}

TEST_CASE("After a withdrawn shutdown a server around COMMAND serves on") {
  QuestionStage stage(LifeCycle::Kind::kAroundCommand);
  const Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) {
              q.wait_s = 1;
              q.graceful = "scopes";
            }));
  REQUIRE(stage.control->advance(stage.now));
  CHECK(stage.life.handle(LifeCycle::Event::kShutdown, stage.now) ==
        LifeCycle::Action::kAskCommandToEnd);
  CHECK_FALSE(stage.control->advance(stage.now + 1s));
  CHECK(contains(client.read(), "COMMAND has not ended"));
  CHECK_FALSE(stage.life.is_asked_to_end());
}

TEST_CASE(
    "After the end of COMMAND a graceful shutdown is answered, and forced, when its time is up") {
  for (const bool force : {false, true}) {
    CAPTURE(force);
    QuestionStage stage(LifeCycle::Kind::kAroundCommand);
    stage.host.open = 1;
    (void)stage.life.handle(LifeCycle::Event::kCommandEnded, stage.now);
    const Client client(stage.folder, "1-a");
    stage.ask(client, question("shutdown", [force](auto& q) {
                q.wait_s = 1;
                q.graceful = "scopes";
                q.force = force;
              }));
    CHECK_FALSE(stage.control->advance(stage.now));
    const auto shutdown = stage.control->advance(stage.now + 1s);
    REQUIRE(shutdown.has_value() == force);
    if (!force) {
      CHECK(contains(client.read(), "kills are under way"));
    }
  }
}

TEST_CASE("Of several shutdowns in one iteration the forced one is carried out") {
  for (const bool is_forced_first : {false, true}) {
    QuestionStage stage;
    const Client one(stage.folder, "1-a");
    const Client two(stage.folder, "1-b");
    stage.ask(one, question("shutdown", [&](auto& q) { q.force = is_forced_first; }));
    stage.ask(two, question("shutdown", [&](auto& q) { q.force = !is_forced_first; }));
    CHECK(stage.control->next() == Instant{});
    const auto shutdown = stage.control->advance(stage.now);
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
  CHECK(contains(client.read(), "x_request is 'stop': expected ping, status, drain, shutdown"));
  const Client other(stage.folder, "1-b");
  stage.ask(other, question("ping", [](auto& q) { q.wait_s = -1; }));
  CHECK(contains(other.read(), "x_wait_s is -1: expected over 0"));
}

TEST_CASE("The shutdown of a client that is gone stays in force") {
  QuestionStage stage;
  stage.host.open = 1;
  Client client(stage.folder, "1-a");
  stage.ask(client, question("shutdown", [](auto& q) { q.graceful = "scopes"; }));
  client.go();
  while (::sd_event_run(stage.loop.get(), 0) > 0) {
  }
  CHECK(stage.control->client_count() == 0);
  CHECK(stage.control->announcement() == Announcement::kShutdown);
}
