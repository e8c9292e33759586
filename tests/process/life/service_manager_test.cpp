// A server under a service manager: the passed pipe, which outlives the server, and the
// notifications. The test is the manager, like systemd: it holds the pipe open and has a socket.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>

#include "tests/process/worker.hpp"
#include "tests/support/control_connection.hpp"

using namespace filetimer::testing;
using filetimer::ControlAddress;
using filetimer::UniqueFd;
using namespace std::chrono_literals;

namespace {

// The notification socket of a service manager.
class NotifySocket {
 public:
  explicit NotifySocket(const TempFolder& temp) : path_(temp.path("notify")) {
    const auto address = ControlAddress::in(temp.path(), "notify");
    REQUIRE(address.has_value());
    REQUIRE(::bind(socket_.get(), address->get(), ControlAddress::size()) == 0);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

  // Returns the next message with `text`, and keeps the ones before it. Fails the test if none
  // comes.
  void wait_for(std::string_view text) {
    const bool came = wait_until([&] {
      const std::size_t before = said_.size();
      take();
      return std::any_of(said_.begin() + static_cast<std::ptrdiff_t>(before), said_.end(),
                         [&](const auto& said) { return contains(said, text); });
    });
    REQUIRE_MESSAGE(came, "no notification has " << text);
  }

  // Returns all messages so far.
  const std::vector<std::string>& said() {
    take();
    return said_;
  }

 private:
  void take() {
    std::array<char, 4096> bytes{};
    for (ssize_t got = 0; (got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0)) > 0;) {
      said_.emplace_back(bytes.data(), static_cast<std::size_t>(got));
    }
  }

  std::string path_;
  UniqueFd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  std::vector<std::string> said_;
};

// Starts servers with its pipe or another file as descriptor 3. The folder has what they share.
class Manager : public TempFolder {
 public:
  explicit Manager(const std::string& pipe = "run/requests")
      : pipe_path_(path(pipe)), program_(path("start-service")) {
    make_folder("run");
    REQUIRE(::mkfifo(pipe_path_.c_str(), 0600) == 0);
    pipe_.reset(::open(pipe_path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(pipe_);
    write_program("3<&0");
  }

  // The descriptor as which standard input is passed.
  void write_program(const std::string& descriptors) const {
    filetimer::testing::write_program(
        program_, fmt::format("#!/bin/sh\nexport LISTEN_PID=$$ WATCHDOG_PID=$$\n"
                              "exec '{}' \"$@\" {} </dev/null\n",
                              server_path(), descriptors));
  }

  [[nodiscard]] int pipe() const { return pipe_.get(); }
  [[nodiscard]] const std::string& pipe_path() const { return pipe_path_; }
  void send(std::string_view bytes) const { send_raw(pipe_path_, bytes); }
  [[nodiscard]] bool is_in_place() const {
    return filetimer::identity_of(pipe_.get()) == filetimer::identity_of(pipe_path_);
  }

  [[nodiscard]] Server::Setup setup(std::vector<std::string> args = {}) const {
    return {.args = std::move(args),
            .environment = {{"LISTEN_FDS", "1"}, {"LISTEN_FDNAMES", "requests"}},
            .in = pipe(),
            .program = program_};
  }

  // Starts a server that must fail, with `fd` as its pipe. Returns its standard error, one line.
  [[nodiscard]] std::string refused(int fd, ExitStatus wanted, std::vector<std::string> args = {},
                                    const std::string& names = "requests") const {
    args.insert(args.begin(), {"--dir", path("run")});
    const Finished finished =
        run(program_, args,
            {{"LISTEN_FDS", contains(names, ":") ? "2" : "1"}, {"LISTEN_FDNAMES", names}}, fd);
    CHECK(finished.status == wanted);
    CHECK(std::ranges::count(finished.err, '\n') == 1);
    CHECK(finished.err.starts_with("timer_server: error: "));
    return finished.err;
  }

 private:
  std::string pipe_path_;
  std::string program_;
  UniqueFd pipe_;
};

}  // namespace

TEST_CASE("requests written while no server runs are carried out by the next one, in order") {
  const Manager manager;
  Worker hung("block");
  Server first(manager, manager.setup());
  WorkerInScope healthy(first, "step");
  first.barrier();
  CHECK(first.stop() == exited(0));
  CHECK(manager.is_in_place());
  manager.send(release(healthy.pid(), "step") + acquire_past(hung.pid(), "s"));
  set_clocks(manager, filetimer::Instant::now() + 2h);
  Server::Setup later = manager.setup();
  later.environment.merge(with_own_clocks(manager).environment);
  Server next(manager, later);
  CHECK(hung.status() == killed_by(SIGKILL));
  next.barrier();
  CHECK(healthy.is_alive());
  CHECK(count(next.records(), "expired", healthy.pid()) == 0);
  CHECK(count(next.records(), "rejected") == 0);
}

TEST_CASE("requests that come while a server stops are kept for the next one") {
  const Manager manager;
  NotifySocket notify(manager);
  const Worker late("block");
  Server::Setup setup = manager.setup({"--on-expiry", "sleep 60"});
  setup.environment["NOTIFY_SOCKET"] = notify.path();
  Server first(manager, setup);
  notify.wait_for("READY=1");
  expire(first);
  first.process().signal(SIGTERM);
  notify.wait_for("STOPPING=1");  // now it waits for the hook
  first.send(acquire_far(late.pid(), "s"));
  const auto is_read = [&] {
    int bytes = -1;
    return ::ioctl(manager.pipe(), FIONREAD, &bytes) == 0 && bytes == 0;
  };
  REQUIRE(wait_until(is_read));
  CHECK(first.stop() == exited(0));  // ends the wait for the hook
  const Server next(manager, manager.setup());
  CHECK(adopted_by(next) == 1);
  CHECK(count(next.records(), "rejected") == 0);
}

TEST_CASE("an acquire that is read together with a shutdown is kept for the next server") {
  const Manager manager;
  const Worker late("block");
  Server first(manager, manager.setup());
  std::optional<ControlConnection> shutdown;
  {
    const Stopped stopped(first);
    shutdown.emplace(first.dir());
    shutdown->send(R"({"version": 1, "request": "shutdown", "force": true})");
    first.send(acquire_far(late.pid(), "s"));
  }
  CHECK(first.process().status() == exited(0));
  CHECK(count(first.records(), "rejected") == 0);
  CHECK(adopted_by(Server(manager, manager.setup())) == 1);
}

TEST_CASE("no line is lost or split while servers are replaced under steady writers") {
  const Manager manager;
  Worker worker("block");
  constexpr int kRounds = 5;
  constexpr int kWriters = 3;
  constexpr int kLines = 4000;  // more than the pipe holds, so writers wait while no server runs
  std::vector<std::unique_ptr<Child>> writers;
  for (int i = 0; i < kWriters; ++i) {
    // Each line a renewal; at the end the scope is released. One write a line.
    const std::string scope = fmt::format("w{}", i);
    writers.push_back(std::make_unique<Child>(
        Launch{.argv = {"/bin/sh", "-c",
                        "i=0; while [ $i -lt $1 ]; do printf %s \"$2\" >\"$4\"; i=$((i+1)); done; "
                        "printf %s \"$3\" >\"$4\"",
                        "sh", std::to_string(kLines), acquire_far(worker.pid(), scope),
                        release(worker.pid(), scope), manager.pipe_path()}}));
  }
  std::string log;
  for (int round = 0; round < kRounds; ++round) {
    Server server(manager, manager.setup());
    log = server.log();
    if (round + 1 == kRounds) {
      for (const auto& writer : writers) {
        CHECK(writer->status() == exited(0));
      }
      server.barrier();
    }
    CHECK(server.stop() == exited(0));
  }
  CHECK(count(read_log(log), "rejected") == 0);
  std::int64_t requests = 0;
  for (const Record& record : of_event(read_log(log), "server_stopped")) {
    requests += record.integer("requests");
  }
  CHECK(requests == kWriters * (kLines + 1) + 1);  // the barrier is one
  CHECK(worker.is_alive());
}

TEST_CASE("the link to a passed pipe elsewhere stays while no server runs") {
  const Manager manager("elsewhere");
  Worker hung("block");
  Server first(manager, manager.setup({"--fifo", manager.pipe_path()}));
  CHECK(first.fifo() == manager.pipe_path());
  CHECK(first.stop() == exited(0));
  CHECK(manager.is_in_place());
  send_raw(manager.path("run/requests"), acquire_past(hung.pid(), "s"));
  const Server next(manager, manager.setup({"--fifo", manager.pipe_path()}));
  CHECK(hung.status() == killed_by(SIGKILL));
}

TEST_CASE("a removed passed pipe is read to its end, and a new pipe is made at its path") {
  const Manager manager;
  Worker first("block");
  manager.send(acquire_past(first.pid(), "s"));
  REQUIRE(::unlink(manager.pipe_path().c_str()) == 0);
  Server server(manager, manager.setup());
  CHECK(first.status() == killed_by(SIGKILL));
  server.wait_for_message("'" + manager.pipe_path() + "' was gone: made again");
  expect_kill(server);
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(exists(manager.pipe_path()));  // that one was its own
}

TEST_CASE("a descriptor that is not the expected pipe is refused in one line, and so are two") {
  const Manager manager;
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(contains(manager.refused(socket.get(), exited(2)),
                 "is not a named pipe: expected '" + manager.pipe_path() + "'"));
  // The pipe of another --fifo.
  CHECK(contains(manager.refused(manager.pipe(), exited(2), {"--fifo", manager.path("third")}),
                 "the pipe that was passed is '" + manager.pipe_path() + "': expected '" +
                     manager.path("third") + "'"));
  CHECK_FALSE(exists(manager.path("third")));
  // One that others may write to.
  REQUIRE(::chmod(manager.pipe_path().c_str(), 0620) == 0);
  CHECK(contains(manager.refused(manager.pipe(), exited(2)), "mode 0620"));
  REQUIRE(::chmod(manager.pipe_path().c_str(), 0600) == 0);
  manager.write_program("3<&0 4<&0");
  const std::string said = manager.refused(manager.pipe(), exited(2), {}, "one:two");
  CHECK(contains(said, "2 descriptors were passed ('one', 'two')"));
  CHECK(manager.is_in_place());
}

TEST_CASE("a failed start leaves the passed pipe with its content") {
  const Manager manager;
  Worker worker("block");
  manager.send(acquire_past(worker.pid(), "s"));
  CHECK(
      contains(manager.refused(manager.pipe(), exited(1), {"--log", manager.path("no/log.jsonl")}),
               manager.path("no")));
  CHECK(manager.is_in_place());
  const Server server(manager, manager.setup());
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("a server notifies the service manager of its readiness, its status and its stop") {
  const TempFolder temp;
  NotifySocket notify(temp);
  Server server(temp, {.args = {"--max-interval", "20ms"},
                       .environment = {{"NOTIFY_SOCKET", notify.path()}}});
  notify.wait_for("READY=1");
  WorkerInScope worker(server, "s");
  notify.wait_for("STATUS=watching 1 worker, killed 0 since the start");
  expire(server, worker);
  notify.wait_for("STATUS=watching 0 workers, killed 1 since the start");
  CHECK(server.stop() == exited(0));
  notify.wait_for("STOPPING=1");
  for (const std::string& said : notify.said()) {
    CHECK_FALSE(contains(said, "WATCHDOG"));  // not requested
  }
  CHECK_FALSE(contains(server.err(), "keep-alives"));
}

TEST_CASE("the service manager gets keep-alives while the loop runs") {
  const Manager manager;
  NotifySocket notify(manager);
  Server::Setup setup = manager.setup();
  setup.environment["NOTIFY_SOCKET"] = notify.path();
  setup.environment["WATCHDOG_USEC"] = "200000";
  Server server(manager, setup);
  notify.wait_for("WATCHDOG=1");
  notify.wait_for("WATCHDOG=1");
  server.process().halt();
  const std::size_t before = notify.said().size();
  let_pass(300ms);  // more than a whole period
  CHECK(notify.said().size() == before);
  server.process().signal(SIGCONT);
  notify.wait_for("WATCHDOG=1");
}

TEST_CASE("COMMAND inherits no variable and no descriptor of the service manager") {
  const Manager manager;
  NotifySocket notify(manager);
  Server::Setup setup = manager.setup();
  setup.environment["NOTIFY_SOCKET"] = notify.path();
  setup.environment["WATCHDOG_USEC"] = "30000000";
  setup.command = {"/bin/sh", "-c", "env; ls -l /proc/self/fd"};
  Server server(manager, setup);
  CHECK(server.process().status() == exited(0));
  const std::string out = server.out();
  REQUIRE(contains(out, "FILETIMER_DIR=" + manager.path("run")));
  REQUIRE(contains(out, " 2 -> "));
  for (const char* name : {"LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_", " 3 -> /tmp"}) {
    CAPTURE(name);
    CHECK_FALSE(contains(out, name));
  }
  CHECK_FALSE(contains(out, "-> " + manager.pipe_path()));
  CHECK(manager.is_in_place());
}
