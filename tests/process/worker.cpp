// SPDX-License-Identifier: MIT
#include "tests/process/worker.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <sstream>

namespace filetimer::testing {
namespace {

constexpr const char* kUnshare = "/usr/bin/unshare";

Launch launch_of(const std::string& mode, const Worker::Setup& setup, int in, int out) {
  Launch launch{.argv = setup.program,
                .environment = setup.environment,
                .in = in,
                .out_fd = out,
                .user = setup.user};
  if (launch.argv.empty()) {
    launch.argv = {worker_path(), mode};
  }
  launch.argv.insert(launch.argv.end(), setup.args.begin(), setup.args.end());
  return launch;
}

}  // namespace

Worker::Worker(const std::string& mode, const Setup& setup, Pipe input, Pipe output)
    : Child(launch_of(mode, setup, input.read.get(), output.write.get())),
      input_(std::move(input.write)),
      output_(std::move(output.read)) {
  output.write.reset();  // so that its end is seen as the end of the output
  std::istringstream words(line());
  std::string word;
  words >> word;
  REQUIRE(word == "ready");
  while (words >> word) {
    const std::size_t equals = word.find('=');
    descendants_.emplace(word.substr(0, equals), HeldPid(std::stoi(word.substr(equals + 1))));
  }
}

std::string Worker::line() {
  for (;;) {
    if (const std::size_t end = read_.find('\n'); end != read_.npos) {
      const std::string first = read_.substr(0, end);
      read_.erase(0, end + 1);
      return first;
    }
    REQUIRE_MESSAGE(is_readable_within(output_.get(), kBound), "the worker says nothing");
    char bytes[512];
    const ssize_t got = retry_eintr([&] { return ::read(output_.get(), bytes, sizeof bytes); });
    REQUIRE_MESSAGE(got > 0, "the worker ended without a line");
    read_.append(bytes, static_cast<std::size_t>(got));
  }
}

std::string Worker::ask(const std::string& command) {
  tell(command);
  std::string answer = line();
  REQUIRE_MESSAGE(answer != "error", command);
  return answer;
}

void Worker::tell(const std::string& command) const {
  write_all(input_.get(), command + "\n");
}

std::unique_ptr<Worker> page_worker(const std::string& dir, const std::string& name,
                                    const std::string& claims, std::optional<uid_t> user) {
  auto worker = std::make_unique<Worker>(
      Worker::Setup{.user = user, .program = {program_path("page_worker")}});
  worker->ask("make " + dir + " " + name + " " + claims);
  return worker;
}

std::unique_ptr<Worker> client_worker(const std::string& dir,
                                      std::chrono::milliseconds idle_timeout,
                                      const Environment& environment) {
  Worker::Setup setup{.environment = environment, .program = {program_path("client_worker")}};
  setup.environment["FILETIMER_DIR"] = dir;
  auto worker = std::make_unique<Worker>(setup);
  REQUIRE(worker->ask("connect " + std::to_string(idle_timeout.count())) == "yes");
  return worker;
}

bool visit_scope(Worker& worker, const std::string& scope, std::chrono::milliseconds timeout) {
  CHECK(worker.ask(fmt::format("open {} {}", scope, timeout.count())) == "yes");
  return worker.ask("release " + scope) == "yes";
}

WatchedWorker::WatchedWorker(const Server& on, bool with_page, const std::string& page)
    : server(on),
      has_page(with_page),
      worker(with_page ? page_worker(on.dir(), page) : std::make_unique<Worker>("block")) {}

void WatchedWorker::open(int slot, const std::string& scope, std::chrono::milliseconds timeout,
                         int signal) const {
  if (has_page) {
    worker->ask(fmt::format("wake {} {} {} {}", slot, scope, timeout.count(), signal));
  } else {
    server.send(acquire(worker->pid(), scope, timeout, signal));
  }
}

std::unique_ptr<Worker> ranked_worker(const Server& server, int rank, Environment environment,
                                      std::vector<std::string> program) {
  environment["RANK"] = std::to_string(rank);
  auto worker = std::make_unique<Worker>(
      "block", Worker::Setup{.environment = std::move(environment), .program = std::move(program)});
  server.send(acquire_far(worker->pid(), "wait"));
  wait_for_rank(server, *worker, rank);
  return worker;
}

void wait_for_rank(const Server& server, const Worker& worker, int rank) {
  REQUIRE(wait_until([&] {
    const std::string listed = run_client(server, {"list", "--json"}).out;
    const std::size_t at = listed.find(fmt::format("\"pid\":{},", worker.pid()));
    return at != listed.npos &&
           listed.find(fmt::format("\"rank\":{},", rank), at) < listed.find("\"scope\"", at);
  }));
}

Record kill_of(const Server& server, Child& worker, int signal) {
  CHECK(worker.status() == killed_by(signal));
  Record killed = server.wait_for("killed", worker.pid());
  CHECK(killed.text("verdict") == "dead");
  return killed;
}

void expect_kill(const Server& server, const std::string& scope) {
  CHECK(HungWorker(server, scope).status() == killed_by(SIGKILL));
}

std::vector<std::unique_ptr<Worker>> workers_in_scopes(const Server& server, int count) {
  std::vector<std::unique_ptr<Worker>> workers;
  std::string lines;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>("block"));
    lines += acquire_far(workers.back()->pid(), "s");
  }
  server.send(lines);
  return workers;
}

Record expire(const Server& server, Worker& worker, const std::string& scope, int signal) {
  server.send(acquire_past(worker.pid(), scope, signal));
  return kill_of(server, worker, signal);
}

Record expire(const Server& server, const std::string& scope) {
  HungWorker worker(server, scope);
  return kill_of(server, worker);
}

std::vector<std::string> unshared(std::vector<std::string> options, const std::string& program) {
  options.insert(options.begin(), kUnshare);
  options.push_back(program);
  return options;
}

Finished run_unshared(std::vector<std::string> options, const std::string& program,
                      const std::vector<std::string>& args) {
  options.push_back(program);
  options.insert(options.end(), args.begin(), args.end());
  return run(kUnshare, std::move(options));
}

bool can_unshare(std::vector<std::string> options) {
  return run_unshared(std::move(options), "true").status == exited(0);
}

}  // namespace filetimer::testing
