// ControlRequests without a server and without worker processes: what is answered to whom, and when
// a shutdown is carried out. A test is a script; Script says what its steps are.
// SPDX-License-Identifier: MIT
#include "timer_server/control/control_requests.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "common/mapped_file.hpp"
#include "tests/support/control_connection.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_server/core_stage.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

using Client = testing::ControlConnection;

Settings with_longest_wait() {
  Settings settings;
  settings.max_wait = 1min;
  return settings;
}

struct QuestionStage : CoreStage {
  explicit QuestionStage(LifeCycle::Kind kind = LifeCycle::Kind::kAlone)
      : CoreStage(with_longest_wait()), life(kind) {
    control.emplace(
        core, life,
        ControlRequests::Server{
            [this](Announcement) { on_publish(); },
            [this](JsonWriter& json) {
              json.field("workers", core.workers.count()).field("askers", control->client_count());
            }});
    control->listen(directory->take_control_socket());
  }
  void open_scopes(std::size_t count) {
    pipe->cancel_all();
    SlotReading terms;
    terms.deadline = Instant::never();
    for (std::size_t scope = 0; scope < count; ++scope) {
      const std::string name = "scope" + std::to_string(scope);
      REQUIRE(pipe->acquire(name, name.size(), terms));
    }
  }
  void ask(const Client& client, const std::string& packet) {
    client.send(packet);
    run();
    control->take(now);
  }
  // Dispatches the events that are pending.
  void run() {
    while (core.loop.dispatch_one(0)) {
    }
  }
  const std::shared_ptr<PipePage> pipe = add_worker(4711).pipe;
  bool has_kills = false;
  std::function<void()> on_publish = [] {};
  LifeCycle life;
  Instant now{1'000'000};
  std::optional<ControlRequests> control;
};

// Steps are separated by semicolons. Behind " > " is a part of what has to follow, without the
// quotes of JSON:
//   open N            so many scopes are open
//   kills 1|0         a kill is under way, or none is
//   workers gone      the last worker has been removed
//   workers ask       the process of the clients is a worker, and so is another one
//   asked             the server has asked its COMMAND to end
//   command ended     COMMAND has ended
//   slow              a drain takes longer than one iteration reads requests
//   look [MS]         that much later; follows: the shutdown that is carried out, or "nothing"
//   next              follows: in how many milliseconds the next look is due, or "never"
//   page              follows: the announcement on the status page
//   clients           follows: the number of clients that wait
//   gone X            the client X hangs up
//   leaves X          likewise, and the server does not notice yet
//   forget X          the next X is another client
//   stopped           the server has stopped
//   log               follows: the log
//   asks X REQUEST... the client X asks, and the server does not notice yet
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
    } else if (first == "workers" && second == "ask") {
      stage_.add_worker(::getpid());
      stage_.add_worker(4712);  // the first one that is visited
    } else if (first == "workers") {
      stage_.core.workers.remove(*stage_.core.workers.find(4711));
    } else if (first == "asked") {
      CHECK(stage_.life.handle(LifeCycle::Event::kShutdown, stage_.now) ==
            LifeCycle::Action::kAskCommandToEnd);
    } else if (first == "command") {
      (void)stage_.life.handle(LifeCycle::Event::kCommandEnded, stage_.now);
    } else if (first == "slow") {
      stage_.on_publish = [] {
        for (const Instant until = Instant::now() + 20ms; Instant::now() < until;) {
        }
      };
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
    } else if (first == "forget") {
      clients_.erase(second);
    } else if (first == "gone" || first == "leaves") {
      clients_.at(second)->close();
      if (first == "gone") {
        stage_.run();
      }
    } else if (first == "stopped") {
      control.answer_stopped();
    } else if (first == "log") {
      CHECK(stage_.core.log->drain(10s));
      return testing::read_file(stage_.core.log->path());
    } else if (first == "asks") {
      std::string request;
      words >> request;
      client_of(second).send(question(request, words));
    } else {
      Client& client = client_of(first);
      if (!second.empty()) {
        stage_.ask(client, question(second, words));
      }
      const std::string answers = client.read();
      return answers.empty() || answers == "END" ? "-" : answers;
    }
    return {};
  }

  Client& client_of(const std::string& name) {
    auto& client = clients_[name];
    if (!client) {
      client = std::make_unique<Client>(stage_.folder.path());
    }
    return *client;
  }

  static std::string question(const std::string& request, std::istringstream& options) {
    std::map<std::string, std::string> given{{"wait", "10"}};
    for (std::string option; options >> option;) {
      const std::size_t equals = option.find('=');
      given[option.substr(0, equals)] = option.substr(equals + 1);
    }
    wire::Question asked;
    asked.request = request;
    asked.wait_s = std::stod(given["wait"]);
    asked.graceful = given["graceful"];
    asked.force = given.contains("force");
    asked.off = given.contains("off");
    if (given.contains("rank")) {
      asked.name = given.contains("name") ? given["name"] : "start";
      asked.rank = std::stoi(given["rank"]);
      asked.world = std::stoi(given["of"]);
    }
    return wire::format_question(asked);
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
  Client client(stage.folder.path());
  bool was_silent = false;
  stage.on_publish = [&] {
    was_silent = client.read().empty();
    CHECK(stage.control->announcement() == Announcement::kDraining);
  };
  stage.ask(client, R"({"version":1,"request":"drain"})");
  CHECK(was_silent);
  CHECK(client.read().find(R"("draining":true)") != std::string::npos);
}

TEST_CASE("Requests that need no wait are answered at once, and wrong ones with the reason") {
  play(
      "a ping > answer:done,server_pid:; a > -; clients > 0; next > never; "
      "b stop > request is 'stop': expected ping, status, dump, drain; "
      "c ping wait=-1 > wait_s is -1: expected over 0; "
      "f ping wait=0 > wait_s is 0: expected over 0; "
      "d shutdown graceful=hooks > graceful is 'hooks': expected 'scopes' or 'workers'; "
      "look > nothing; e rendezvous > lacks rank or world; look > nothing");
}

TEST_CASE("A packet that is no request is answered with what was expected") {
  struct Case {
    const char* packet;
    const char* reason;
  };
  for (const Case& c : {Case{"ping", "not one JSON object"}, Case{"[1]", "not one JSON object"},
                        Case{R"({"request":"ping"})", "lacks the key 'version'"},
                        Case{R"({"version":2})", "version is 2: expected 1"},
                        Case{R"({"version":1,"request":5})", "request is 5: expected a string"},
                        Case{R"({"version":1,"wait_s":"1s"})", R"(is \"1s\": expected a number)"},
                        Case{R"({"version":1,"force":1})", "force is 1: expected true or false"},
                        Case{R"({"version":1,"rank":1.5})", "rank is 1.5: expected an integer"},
                        Case{R"({"version":1,"world":4294967296})", "expected an integer"}}) {
    CAPTURE(c.packet);
    QuestionStage stage;
    Client client(stage.folder.path());
    stage.ask(client, c.packet);
    const std::string answer = client.read();
    CAPTURE(answer);
    CHECK(answer.find(R"("answer":"invalid")") != std::string::npos);
    CHECK(answer.find(c.reason) != std::string::npos);
  }
}

TEST_CASE("A request of a process of another user is refused, and rejected in the log") {
  QuestionStage stage;
  REQUIRE(::chmod(stage.folder.path().c_str(), 0777) == 0);
  REQUIRE(::chmod(stage.folder.path("control").c_str(), 0777) == 0);
  const bool is_another = ::seteuid(testing::kSomebodyElse) == 0;
  std::optional<Client> client;
  if (is_another &&
      ::faccessat(AT_FDCWD, stage.folder.path("control").c_str(), W_OK, AT_EACCESS) == 0) {
    client.emplace(stage.folder.path());
  }
  REQUIRE((!is_another || ::seteuid(0) == 0));
  FILETIMER_SKIP_IF(!client, "another user cannot reach the socket here");
  stage.ask(*client, R"({"version":1,"request":"shutdown","force":true})");
  const std::string reason = "user 65533 may not ask the server of user 0";
  CHECK(client->read().find(R"("answer":"refused","reason":")" + reason) != std::string::npos);
  const RejectionReport rejected = stage.core.rejections.take(stage.now, true).value();
  CHECK(rejected.reason == reason);
  CHECK(rejected.pid == ::getpid());
  CHECK(rejected.line.starts_with(R"({"version":1,)"));
  CHECK_FALSE(stage.control->advance(stage.now, false).has_value());
  // Root may ask the server of every user.
  Client root(stage.folder.path());
  root.send(R"({"version":1,"request":"ping","wait_s":10})");
  stage.run();
  REQUIRE(::seteuid(testing::kSomebodyElse) == 0);
  stage.control->take(stage.now);
  REQUIRE(::seteuid(0) == 0);
  CHECK(root.read().find(R"("answer":"done")") != std::string::npos);
}

TEST_CASE("An answer lists 64 of many scopes, and the workers as well") {
  QuestionStage stage;
  stage.open_scopes(70);
  Client client(stage.folder.path());
  stage.ask(client, R"({"version":1,"request":"shutdown","graceful":"workers","wait_s":10})");
  CHECK_FALSE(stage.control->advance(stage.now, false).has_value());
  const std::string answer = client.read();
  CAPTURE(answer);
  CHECK(answer.find(R"("open_scope_count":70,)") != std::string::npos);
  std::size_t listed = 0;
  for (std::size_t at = 0; (at = answer.find(R"("scope":)", at)) != std::string::npos; ++at) {
    ++listed;
  }
  CHECK(listed == 64);
  CHECK(answer.find(R"("worker_count":1,"workers":[{"pid":4711,)") != std::string::npos);
}

TEST_CASE("A status request is answered with the fields of the server, which counts who waits") {
  play(
      "a status > ,server_version:; b rendezvous rank=0 of=2; open 1; c shutdown graceful=scopes; "
      "d rendezvous rank=0 of=2; e status > workers:1,askers:1; gone c; f status > askers:0");
}

TEST_CASE("A shutdown is refused while a scope is open, and carried out when no scope is open") {
  play(
      "open 2; a shutdown > reason:2 scopes are open,open_scope_count:2,open_scopes:[{; "
      "look > nothing; open 1; b shutdown > reason:1 scope is open; page > none; "
      "c shutdown force= > answer:granted; look > shutdown: now, forced");
  play(
      "kills 1; look > nothing; b shutdown > answer:refused,reason:a kill is under way; kills 0; "
      "look > nothing; page > none; "
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
      "a shutdown graceful=workers; look > nothing; a > worker_count:1,workers:[{pid:4711,; "
      "workers gone; "
      "look 20 > shutdown: workers");
  play("workers gone; workers ask; a shutdown graceful=workers; look > nothing");
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
      "c drain off= > draining:false; a > reason:drain --off withdrew the shutdown,"
      "open_scope_count:1,open_scopes:[{; page > none; "
      "open 0; look 1000 > nothing");
  play(
      "a shutdown; b drain off= > the server has been asked to end; page > shutdown; "
      "look > shutdown: if_idle");
}

TEST_CASE("A drain counts the open scopes, and refuses ranks that wait and those that come") {
  play(
      "open 3; a rendezvous rank=0 of=2 > answer:granted; "
      "b drain > draining:true,open_scope_count:3; a > the server is draining; "
      "c rendezvous rank=1 of=2 > answer:refused,reason:the server is draining: no new rendezvous; "
      "d drain > draining:true; page > draining; e drain off=; page > none; "
      "f rendezvous rank=1 of=2 > answer:granted; stopped; f > the server was stopped");
}

TEST_CASE("Ranks that wait are refused when COMMAND was asked to end") {
  play(
      "a rendezvous rank=0 of=2 > answer:granted; asked; look > nothing; "
      "a > answer:refused,reason:the server is shutting down; next > never",
      LifeCycle::Kind::kAroundCommand);
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
  // The other asked while the server could not run, behind a request that takes long.
  play(
      "a rendezvous rank=0 of=2; slow; asks b drain off=; asks c rendezvous rank=1 of=2; "
      "look 10000 > nothing; b > answer:done; next > 0; look > nothing; a > answer:done");
  // If requests never end, the round fails a second after its time was up.
  play(
      "a rendezvous rank=0 of=2; slow; asks b drain off=; asks c drain off=; "
      "asks d rendezvous rank=1 of=2; look 10000 > nothing; a; look 1000 > nothing; "
      "a > answer:timed_out");
}

TEST_CASE("A full round lists its ranks in order") {
  const auto member = [](int rank) {
    return "{rank:" + std::to_string(rank) + ",pid:" + std::to_string(::getpid()) + "}";
  };
  play(
      "a rendezvous rank=2 of=3; b rendezvous rank=0 of=3; look 3000 > nothing; a; "
      "c rendezvous rank=1 of=3; look > nothing; a > joined:[" +
      member(0) + "," + member(1) + "," + member(2) +
      "]; next > never; log > event:rendezvous,; log > name:start,round:1,world:3,joined:[" +
      member(0) + "," + member(1) + "," + member(2) + "],missing:[],waited_s:3.000000}");
}

TEST_CASE("A round fails for all ranks when the first of them has waited long enough") {
  play(
      "a rendezvous rank=0 of=4 wait=10; b rendezvous rank=3 of=4 wait=2; next > 2000; "
      "look 1999 > nothing; a; b; a > -; look 1 > nothing; "
      "a > reason:after 2 s 2 of 4 ranks had joined,name:start; b > missing:[1,2],left:[]; "
      "log > event:rendezvous_timeout; log > missing:[1,2],left:[],waited_s:2.000000,"
      "reason:after 2 s 2 of 4 ranks had joined; log > missing: 1, 2}");
}

TEST_CASE("A rank that has left is missing and named, and may join again") {
  const std::string left =
      "a rendezvous rank=0 of=3; b rendezvous rank=1 of=3; c rendezvous rank=2 of=3; gone b; "
      "look > nothing; a; a > -; ";
  play(left +
       "look 10000 > nothing; a > missing:[1],left:[1]; log > of these, joined and left: 1}");
  play(left + "d rendezvous rank=1 of=3; look > nothing; a > answer:done");
  play(left + "d rendezvous rank=1 of=3; gone a; look 10000 > nothing; d > missing:[0],left:[0]");
  // It does not limit how long the others wait.
  play(
      "a rendezvous rank=0 of=3 wait=1; b rendezvous rank=1 of=3 wait=10; gone a; next > 10000; "
      "look 1000 > nothing; b; b > -; gone b; next > never; "
      "c rendezvous rank=0 of=2 > answer:granted");
}

TEST_CASE("The ranks of a full round are looked for before it ends") {
  play(
      "a rendezvous rank=0 of=2; b rendezvous rank=1 of=2; b; leaves a; look > nothing; b > -; "
      "c rendezvous rank=0 of=2; look > nothing; b > answer:done");
}

TEST_CASE("A job that was started again with another world waits for no rank of the old one") {
  play(
      "a rendezvous rank=0 of=3; b rendezvous rank=1 of=3; leaves a; leaves b; "
      "asks c rendezvous rank=0 of=2; look 10000 > nothing; c > answer:granted; "
      // Nor for one of the same number.
      "leaves c; asks d rendezvous rank=0 of=2; look 10000 > nothing; d > answer:granted");
}

TEST_CASE("The next round begins at once, and rounds are counted by name") {
  play(
      "a rendezvous rank=0 of=1; look > nothing; a > round:1; "
      "b rendezvous rank=0 of=1; look > nothing; b > round:2; "
      "c rendezvous rank=0 of=1 name=other; look > nothing; c > round:1; "
      "d rendezvous rank=0 of=2 wait=1; look 1000 > nothing; d > round:3");
}

TEST_CASE("An unlimited number of names takes a limited amount of memory") {
  const auto join = [](std::size_t name, const char* round) {
    return "a rendezvous rank=0 of=1 name=epoch-" + std::to_string(name) +
           "; look 1000 > nothing; a > round:" + round + ",; forget a; ";
  };
  std::string steps;
  for (std::size_t i = 0; i <= Rendezvous::kMaxNames; ++i) {
    steps += join(i, "1");
  }
  const std::size_t last = Rendezvous::kMaxNames;
  play(steps + join(last, "2") + join(0, "1"));
}

TEST_CASE("A wrong join is refused with the reason and changes no round") {
  play(
      "a rendezvous rank=1 of=3; b rendezvous rank=0 of=4 > answer:invalid,reason:the world is 4; "
      "c rendezvous rank=-1 of=3 > the rank is -1: expected 0 to 2; "
      "d rendezvous rank=0 of=0 > the world is 0: expected 1 to; "
      "e rendezvous rank=0 of=1 name= > the rendezvous' name has 0 bytes: expected 1 to 255; "
      "f rendezvous rank=0 of=1 name=" +
      std::string(256, 'x') +
      " > the rendezvous' name has 256 bytes: expected 1 to 255; i rendezvous rank=0 of=1 name=" +
      std::string(255, 'x') +
      " > answer:granted; "
      "g rendezvous rank=0 of=3; h rendezvous rank=2 of=3; look > nothing; a > answer:done");
}

TEST_CASE("A server around COMMAND serves on after a shutdown whose time is up") {
  constexpr auto kAround = LifeCycle::Kind::kAroundCommand;
  play(
      "a shutdown graceful=scopes wait=1; look > shutdown: graceful; asked; "
      "b drain off= > answer:refused,reason:the server has been asked to end; page > shutdown; "
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

TEST_CASE("A server that starts wakes those who wait for the end of a killed one's announcement") {
  const testing::TempFolder folder;
  Settings settings;
  settings.dir = folder.path();
  RuntimeDirectory::open(settings, {}).value()->status_page().announce(Announcement::kDraining);
  const auto file =
      MappedFile::map(folder.path("server"), MappedFile::Access::kReadWrite, kBoardBytes);
  REQUIRE(file);
  auto* const word = &static_cast<Board*>(file->data())->announcement;
  std::atomic<int> error = 0;
  std::thread client([&] {
    constexpr timespec kLimit{5, 0};
    const long result = ::syscall(SYS_futex, word, FUTEX_WAIT, word->load(), &kLimit, nullptr, 0);
    error = result == 0 ? 0 : errno;
  });
  std::this_thread::sleep_for(100ms);
  CHECK(RuntimeDirectory::open(settings, {}));
  client.join();
  CHECK(error != ETIMEDOUT);
}
