// Connections that are read, not read, or closed, and their answers.
// SPDX-License-Identifier: MIT
#include "timer_server/control/control_clients.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/limits.hpp"
#include "tests/support/control_connection.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"
#include "timer_server/runtime_directory.hpp"

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMostClients = 2;

using Connection = testing::ControlConnection;

struct ClientStage {
  ClientStage() {
    clients.emplace(loop, kMostClients, [this](ControlClients::Id id) { withdrawn.push_back(id); });
    clients->listen(make_control_socket(folder.path()).value());
  }
  [[nodiscard]] Connection connect() const { return Connection(folder.path()); }
  // Returns a client that has asked, and its id.
  std::pair<Connection, ControlClients::Id> add() {
    Connection connection = connect();
    connection.send("ask");
    run();
    return {std::move(connection), clients->take().value().client};
  }
  // Checks that a client is removed when the patience with it has ended, which began after
  // `before`.
  void check_patience(Instant before) {
    const Instant due = clients->advance({});
    CHECK(due >= before + 10s);
    CHECK(due <= Instant::now() + 10s);
    const std::size_t count = clients->count();
    CHECK(clients->advance({due.ns - 1}) == due);
    CHECK(clients->count() == count);
    CHECK(clients->advance(due).is_never());
    CHECK(clients->count() == count - 1);
  }
  // Dispatches the events that are pending.
  void run() {
    while (loop.dispatch_one(0)) {
    }
  }
  testing::TempFolder folder;
  std::vector<ControlClients::Id> withdrawn;
  EventLoop loop;
  std::optional<ControlClients> clients;
};

const std::string kLongAnswer(1'000'000, 'a');

}  // namespace

TEST_CASE("The socket is this user's alone, replaces one that was left, and nothing else") {
  const testing::TempFolder folder;
  const std::string path = folder.path("control");
  (void)make_control_socket(folder.path()).value();
  CHECK(make_control_socket(folder.path()).has_value());
  struct stat st {};
  REQUIRE(::lstat(path.c_str(), &st) == 0);
  CHECK(st.st_mode == (S_IFSOCK | 0600));
  REQUIRE(::unlink(path.c_str()) == 0);
  testing::write_file(path, "kept");
  CHECK(make_control_socket(folder.path()).error().message ==
        "'" + path + "' is in the way: expected a socket, or nothing");
  CHECK(testing::read_file(path) == "kept");
}

TEST_CASE("A request has the process that the kernel names, and is cut behind its limit") {
  ClientStage stage;
  Connection late = stage.connect();
  stage.run();
  CHECK_FALSE(stage.clients->take().has_value());
  const std::string longest(kMaxControlBytes, 'a');
  late.send(longest + "bc");
  stage.run();
  const auto asked = stage.clients->take();
  REQUIRE(asked.has_value());
  CHECK(asked->packet == longest + 'b');
  CHECK(asked->process.pid == ::getpid());
  CHECK(asked->process.uid == ::geteuid());
}

TEST_CASE("Each answer to a client is a line, and after the last one the server hangs up") {
  ClientStage stage;
  auto [connection, id] = stage.add();
  CHECK(stage.clients->count_waiting() == 0);
  CHECK(stage.clients->grant(id, 2s));
  CHECK(stage.clients->count_waiting() == 1);
  stage.clients->tell(id, "waiting");
  stage.run();
  stage.clients->finish(id, "done");
  CHECK(connection.read() ==
        "{\"version\":1,\"answer\":\"granted\",\"wait_s\":2}\nwaiting\ndone\nEND");
  CHECK(stage.clients->count() == 0);
  CHECK(stage.withdrawn.empty());
  stage.clients->finish(id, "again");  // the client is gone
  CHECK_FALSE(stage.clients->grant(id, 2s));
}

TEST_CASE("An answer before the last one is written as a whole, or else not at all") {
  ClientStage stage;
  auto [connection, id] = stage.add();
  const std::string longest(kAnswerPacketBytes - 1, 'a');  // its newline is written with it
  stage.clients->tell(id, longest + 'a');
  stage.clients->tell(id, longest);
  stage.clients->finish(id, "done");
  CHECK(connection.read() == longest + "\ndone\nEND");
}

TEST_CASE("A client that hangs up has withdrawn, and is known to be gone before") {
  ClientStage stage;
  auto [left, id] = stage.add();
  auto [stays, other] = stage.add();
  stays.send("more, which is not read");
  stage.run();
  CHECK_FALSE(stage.clients->has_left(id));
  left.close();
  CHECK(stage.clients->has_left(id));
  CHECK(stage.clients->has_left(other + 1));  // never added
  CHECK(stage.withdrawn.empty());
  stage.run();
  CHECK(stage.withdrawn == std::vector{id});
  CHECK(stage.clients->count() == 1);
}

TEST_CASE("A last answer that does not fit is written in parts, also behind others") {
  for (const bool is_full : {false, true}) {
    CAPTURE(is_full);
    ClientStage stage;
    auto [connection, id] = stage.add();
    const std::string before(4000, 'w');
    for (int i = 0; is_full && i < 100; ++i) {
      stage.clients->tell(id, before);
    }
    stage.clients->finish(id, kLongAnswer);
    std::string read;
    for (int i = 0; i < 1000 && !read.ends_with("END"); ++i) {
      read += connection.read();
      stage.run();
    }
    // Of those before some are lost, each as a whole.
    const std::size_t begin = read.find('a');
    CHECK((begin > 0) == is_full);
    CHECK(begin % (before.size() + 1) == 0);
    CHECK(read.substr(begin) == kLongAnswer + "\nEND");
    CHECK(stage.clients->count() == 0);
  }
}

TEST_CASE("A client that does not read its last answer in time, or is gone, is removed") {
  ClientStage stage;
  auto [connection, id] = stage.add();
  auto [left, other] = stage.add();
  CHECK(stage.clients->advance(Instant::now() + 1h).is_never());
  const Instant before = Instant::now();
  stage.clients->grant(id, 2s);
  stage.clients->finish(id, kLongAnswer);
  CHECK(stage.clients->count_waiting() == 0);
  stage.clients->finish(other, kLongAnswer);
  left.close();
  stage.run();
  CHECK(stage.clients->count() == 1);
  stage.check_patience(before);
  CHECK(stage.withdrawn.empty());  // it had its answer
}

TEST_CASE("A client that asks nothing for too long is removed, and at once if it hangs up") {
  ClientStage stage;
  const auto asks = stage.add();
  const Instant before = Instant::now();
  Connection silent = stage.connect();
  stage.run();
  stage.check_patience(before);
  CHECK(silent.read() == "END");
  CHECK(stage.clients->count() == 1);
  Connection left = stage.connect();
  stage.run();
  CHECK(stage.clients->count() == 2);
  left.close();
  stage.run();
  CHECK(stage.clients->count() == 1);
  CHECK(stage.withdrawn.empty());
}

TEST_CASE("The end of file after an answer at exit does not come before the exit") {
  ClientStage stage;
  Connection connection = stage.connect();
  connection.send("ask");
  const int kept = UniqueFd(::dup(0)).get();  // the number that the server's end gets
  stage.run();
  const auto id = stage.clients->take().value().client;
  stage.clients->finish_at_exit(id, "done");
  CHECK(stage.clients->count() == 0);
  stage.clients.reset();
  CHECK(connection.read() == "done\n");
  CHECK(::close(kept) == 0);
  CHECK(connection.read() == "END");
}

TEST_CASE("A client over the limit gets the refusal, until another client is removed") {
  ClientStage stage;
  const auto [first, id] = stage.add();
  const auto second = stage.add();
  Connection third = stage.connect();
  stage.run();
  CHECK(
      third.read().ends_with("2 clients wait for an answer: there is no room for another\"}\nEND"));
  stage.clients->finish(id, "done");
  stage.add();
}

TEST_CASE("A client for which no descriptor is left is accepted a little later") {
  ClientStage stage;
  const Connection waiting = stage.connect();
  waiting.send("later");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const auto lowest_free = static_cast<rlim_t>(UniqueFd(::dup(0)).get());
  const rlimit none{lowest_free, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  (void)stage.loop.dispatch_one(0);
  const bool sleeps = !stage.loop.dispatch_one(0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(sleeps);
  CHECK_FALSE(stage.clients->take().has_value());
  const Instant again = stage.clients->advance({});
  REQUIRE_FALSE(again.is_never());
  stage.clients->advance(again);
  stage.run();
  CHECK(stage.clients->take().value().packet == "later");
  CHECK(stage.clients->advance({}) > again);  // the patience with the client
}

TEST_CASE("No more connections are accepted together than the kernel lets wait") {
  FILETIMER_SKIP_IF(
      std::stoul(testing::read_file("/proc/sys/net/core/somaxconn")) <= kMaxWaitingClients,
      "net.core.somaxconn lets no more connections wait");
  ClientStage stage;
  UniqueFd socket = make_control_socket(stage.folder.path()).value();
  // In place of clients that connect meanwhile.
  REQUIRE(::listen(socket.get(), 2 * static_cast<int>(kMaxWaitingClients)) == 0);
  const UniqueFd same(::dup(socket.get()));
  for (std::size_t i = 0; i < kMaxWaitingClients + 2; ++i) {
    stage.connect().close();
  }
  stage.clients->listen(std::move(socket));
  stage.clients->accept_all();
  CHECK(UniqueFd(::accept(same.get(), nullptr, nullptr)).get() >= 0);
  CHECK(UniqueFd(::accept(same.get(), nullptr, nullptr)).get() < 0);
}

TEST_CASE("Connections that wait when the server ends are accepted") {
  ClientStage stage;
  Connection one = stage.connect();
  Connection other = stage.connect();
  one.send("1");
  other.send("2");
  stage.clients->accept_all();
  CHECK(stage.clients->take().value().packet == "1");
  CHECK(stage.clients->take().value().packet == "2");
}
