// ControlRequests without a server and without worker processes: what is answered to whom, and when
// a shutdown is carried out. A test is a script; Script says what its steps are.
// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
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

struct QuestionStage {
  explicit QuestionStage(LifeCycle::Kind kind = LifeCycle::Kind::kAlone) : life(kind) {
    Process process;
    process.pid = 4711;
    Worker& worker = **workers.add(std::move(process));
    worker.pipe = std::make_shared<PipePage>(folder.path(), 4711, WorkerPage::Terms{});
    worker.pages.push_back(worker.pipe);
    pipe = worker.pipe;
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
    control.emplace(loop, folder.path(), std::move(*ReplyFolder::make(folder.path())), 1min,
                    ControlRequests::Context{scopes, life, rejections, records, *log, dumps,
                                             [this](Announcement) { on_publish(); }});
  }
  void open_scopes(std::size_t count) {
    pipe->cancel_all();
    ScopeTerms terms;
    terms.deadline = Instant::never();
    for (std::size_t scope = 0; scope < count; ++scope) {
      const std::string name = "scope" + std::to_string(scope);
      REQUIRE(pipe->acquire(name, name.size(), terms));
    }
  }
  void ask(const wire::Question& asked) {
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
  LostTime lost;
  ScopePolicy policy{settings, lost};
  OpenScopes scopes{workers, policy};
  bool has_kills = false;
  std::function<void()> on_publish = [] {};
  LifeCycle life;
  Rejections rejections;
  filetimer::Records records{RecordOrigin::of_this_process(folder.path())};
  std::unique_ptr<RecordLog> log = open_test_log(folder);
  Instant now{1'000'000};
  EventLoop loop;
  SideThreads side_threads;
  DumpRequests dumps{{workers, policy, side_threads, EvidenceLevel::kProc, 2s,
                      [](const Worker&) { return std::optional<PythonDump>(); }}};
  std::optional<ControlRequests> control;
};

// Steps are separated by semicolons. Behind " > " is a part of what has to follow, without the
// quotes of JSON:
//   open N            so many scopes are open
//   kills 1|0         a kill is under way, or none is
//   workers gone      the last worker has been removed
//   asked             the server has asked its COMMAND to end
//   command ended     COMMAND has ended
//   look [MS]         that much later; follows: the shutdown that is carried out, or "nothing"
//   next              follows: in how many milliseconds the next look is due, or "never"
//   page              follows: the announcement on the status page
//   clients           follows: the number of clients that wait
//   statuses          the status requests are answered; follows: how many
//   gone X            the client X closes its pipe
//   stopped           the server has stopped
//   rejected          follows: the last reason why a request was rejected
//   X [REQUEST...]    the client X asks; follows: its answers since its last step, "-" for none
class Script {
 public:
  explicit Script(LifeCycle::Kind kind) : stage_(kind) {}

  void play(const std::string& steps) {
    for (std::size_t at = 0; at < steps.size();) {
      const std::size_t end = std::min(steps.find("; ", at), steps.size());
      const std::string step = steps.substr(at, end - at);
      const std::size_t arrow = std::min(step.find(" > "), step.size());
      CAPTURE(step);
      std::string got = carry_out(step.substr(0, arrow));
      std::erase(got, '"');
      CAPTURE(got);
      CHECK((arrow == step.size() || got.find(step.substr(arrow + 3)) != std::string::npos));
      at = end + 2;
    }
  }

 private:
  std::string carry_out(const std::string& command) {
    std::istringstream words(command);
    std::string first;
    std::string second;
    words >> first >> second;
    ControlRequests& control = *stage_.control;
    if (first == "open") {
      stage_.open_scopes(std::stoul(second));
    } else if (first == "kills") {
      stage_.has_kills = second == "1";
    } else if (first == "workers") {
      stage_.workers.remove(*stage_.workers.find(4711));
    } else if (first == "asked") {
      CHECK(stage_.life.handle(LifeCycle::Event::kShutdown, stage_.now) ==
            LifeCycle::Action::kAskCommandToEnd);
    } else if (first == "command") {
      (void)stage_.life.handle(LifeCycle::Event::kCommandEnded, stage_.now);
    } else if (first == "look") {
      stage_.now = stage_.now + std::chrono::milliseconds(second.empty() ? 0 : std::stoi(second));
      const auto shutdown = control.advance(stage_.now, stage_.has_kills);
      return shutdown ? shutdown->why + (shutdown->is_forced ? ", forced" : "") : "nothing";
    } else if (first == "next") {
      const Instant next = control.next();
      return next.is_never() ? "never" : std::to_string(std::max((next - stage_.now) / 1ms, 0L));
    } else if (first == "page") {
      constexpr const char* kNames[] = {"none", "draining", "shutdown"};
      return kNames[static_cast<std::size_t>(control.announcement())];
    } else if (first == "clients") {
      return std::to_string(control.client_count());
    } else if (first == "statuses") {
      int count = 0;
      control.answer_status([&](JsonWriter& json) { json.field("workers", ++count); });
      CHECK(control.status_requests() == 0);
      return std::to_string(count);
    } else if (first == "gone") {
      clients_.at(second)->go();
      while (stage_.loop.dispatch_one(0)) {
      }
    } else if (first == "stopped") {
      control.answer_stopped();
    } else if (first == "rejected") {
      return stage_.rejections.take(stage_.now, true).value().reason;
    } else {
      auto& client = clients_[first];
      if (!client) {
        client = std::make_unique<Client>(stage_.folder, "1-" + first);
      }
      if (!second.empty()) {
        ask(*client, second, words);
      }
      const std::string answers = client->read();
      return answers.empty() ? "-" : answers;
    }
    return {};
  }

  void ask(const Client& client, const std::string& request, std::istringstream& options) {
    std::map<std::string, std::string> given{{"wait", "10"}, {"reply", std::string(client.name())}};
    for (std::string option; options >> option;) {
      const std::size_t equals = option.find('=');
      given[option.substr(0, equals)] = option.substr(equals + 1);
    }
    wire::Question asked;
    asked.request = request;
    asked.reply = given["reply"];
    asked.wait_s = std::stod(given["wait"]);
    asked.graceful = given["graceful"];
    asked.force = given.contains("force");
    asked.off = given.contains("off");
    if (given.contains("rank")) {
      asked.name = "start";
      asked.rank = std::stoi(given["rank"]);
      asked.world = std::stoi(given["of"]);
    }
    stage_.ask(asked);
  }

  QuestionStage stage_;
  std::map<std::string, std::unique_ptr<Client>> clients_;
};

void play(const std::string& steps, LifeCycle::Kind kind = LifeCycle::Kind::kAlone) {
  Script(kind).play(steps);
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
  wire::Question drain;
  drain.request = "drain";
  drain.reply = client.name();
  drain.wait_s = 1;
  stage.ask(drain);
  CHECK(was_silent);
  CHECK(client.read().find(R"("draining":true)") != std::string::npos);
}

TEST_CASE("Requests that need no wait are answered at once, and wrong ones with the reason") {
  play(
      "a ping > answer:done,server_pid:; a > -; clients > 0; next > never; "
      "b stop > x_request is 'stop': expected ping, status, dump, drain; "
      "c ping wait=-1 > x_wait_s is -1: expected over 0; "
      "d shutdown graceful=hooks > x_graceful is 'hooks': expected 'scopes' or 'workers'; "
      "look > nothing; e rendezvous > lacks x_rank or x_world; "
      "f shutdown force= reply=none > -; rejected > x_reply; look > nothing");
}

TEST_CASE("Status requests are answered together, with the fields that the server writes then") {
  play(
      "a status > -; b status > -; clients > 0; statuses > 2; a > workers:1; b > workers:2; "
      "statuses > 0");
}

TEST_CASE("A shutdown is refused while a scope is open, and carried out when no scope is open") {
  play(
      "open 2; a shutdown > reason:2 scopes are open,open_scope_count:2,open_scopes:[{; "
      "look > nothing; open 1; b shutdown > reason:1 scope is open; page > none; "
      "c shutdown force= > answer:granted; look > shutdown: now, forced");
  play(
      "a shutdown > answer:granted,wait_s:10; next > 0; look > shutdown: if_idle; stopped; "
      "a > answer:done");
}

TEST_CASE("A graceful shutdown waits for scopes, for kills or for workers, and tells its client") {
  // A look comes every 20 ms, and news of what is open once a second.
  play(
      "open 1; a shutdown graceful=scopes wait=3600 > answer:granted,wait_s:60; "
      "page > shutdown; look > nothing; a > answer:waiting,open_scope_count:1; next > 20; "
      "look 20 > nothing; a > -; look 980 > nothing; a > answer:waiting; open 0; "
      "look 19 > nothing; look 1 > shutdown: graceful");
  play(
      "kills 1; a shutdown graceful=scopes; look > nothing; kills 0; "
      "look 20 > shutdown: graceful");
  play(
      "a shutdown graceful=workers; look > nothing; a > worker_count:1; workers gone; "
      "look 20 > shutdown: workers");
}

TEST_CASE("A graceful shutdown whose time is up is withdrawn, or forced") {
  play(
      "open 1; a shutdown graceful=scopes wait=1; b shutdown graceful=scopes wait=2; "
      "look 1000 > nothing; a > answer:timed_out,reason:its time is up,open_scope_count:1; "
      "page > shutdown; look 1000 > nothing; b > answer:timed_out; page > none; open 0; "
      "look 1000 > nothing; next > never");
  play(
      "open 1; a shutdown graceful=scopes force= wait=1; look 980 > nothing; "
      "look 20 > shutdown: graceful_or_now, forced; stopped; a > answer:done,open_scope_count:1");
  play("a shutdown graceful=workers force= wait=1; look 1000 > shutdown: workers_or_now, forced");
}

TEST_CASE("Of several shutdowns the one that ends the server first is carried out") {
  play("a shutdown force=; b shutdown; look > shutdown: now, forced");
  play("a shutdown; b shutdown force=; look > shutdown: now, forced");
  play(
      "a shutdown graceful=workers; look > nothing; b shutdown graceful=scopes; "
      "look > shutdown: graceful");
}

TEST_CASE("The shutdowns of clients that are gone stay in force as the strongest of them") {
  play(
      "open 1; a shutdown graceful=workers wait=1; b shutdown graceful=scopes force= wait=3; "
      "c shutdown graceful=scopes wait=2; gone a; gone b; gone c; clients > 0; page > shutdown; "
      "look 2980 > nothing; look 20 > shutdown: graceful_or_now, forced");
  play(
      "a shutdown graceful=workers; b shutdown graceful=scopes; gone a; gone b; "
      "look > shutdown: graceful");
}

TEST_CASE("A drain --off withdraws shutdowns and their clients' waits, unless one is carried out") {
  play(
      "open 1; a shutdown graceful=scopes; a; b shutdown graceful=workers; gone b; "
      "c drain off= > draining:false; a > drain --off withdrew the shutdown; page > none; "
      "open 0; look 1000 > nothing");
  play(
      "a shutdown; b drain off= > the server has been asked to end; page > shutdown; "
      "look > shutdown: if_idle");
}

TEST_CASE("A drain counts the open scopes, and refuses ranks that wait and those that come") {
  play(
      "open 3; a rendezvous rank=0 of=2 > answer:granted; "
      "b drain > draining:true,open_scope_count:3; a > the server is draining; "
      "c rendezvous rank=1 of=2 > the server is draining: no new rendezvous; "
      "d drain > draining:true; page > draining; e drain off=; page > none; "
      "f rendezvous rank=1 of=2 > answer:granted; stopped; f > the server was stopped");
}

TEST_CASE("A rank waits until its round is full, and is refused if its join is wrong") {
  play(
      "a rendezvous rank=0 of=2 > answer:granted,wait_s:10; next > 10000; "
      "b rendezvous rank=0 of=2 > rank 0 has joined rendezvous 'start' already; "
      "c rendezvous rank=1 of=3 > the world is 3: the ranks that wait in rendezvous 'start' "
      "gave 2; d rendezvous rank=2 of=2 > the rank is 2: expected 0 to 1; "
      "look 9999 > nothing; a > -; e rendezvous rank=1 of=2 > answer:granted; look > nothing; "
      "a > answer:done,name:start,round:1,world:2; e > answer:done; clients > 0");
  play("a rendezvous rank=0 of=2; look 10000 > nothing; a > answer:timed_out");
}

TEST_CASE("A server around COMMAND serves on after a shutdown whose time is up") {
  constexpr auto kAround = LifeCycle::Kind::kAroundCommand;
  play(
      "a shutdown graceful=scopes wait=1; look > shutdown: graceful; asked; page > shutdown; "
      "look 1000 > nothing; a > COMMAND has not ended; page > none",
      kAround);
  play(
      "open 1; command ended; a shutdown graceful=scopes wait=1; look 1000 > nothing; "
      "a > kills are under way",
      kAround);
  play(
      "open 1; command ended; a shutdown graceful=scopes force= wait=1; "
      "look 1000 > shutdown: graceful_or_now, forced",
      kAround);
}
