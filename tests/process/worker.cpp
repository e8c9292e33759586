// SPDX-License-Identifier: MIT
#include "tests/process/worker.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <sstream>

#include "tests/process/requests.hpp"

namespace filetimer::testing {
namespace {

constexpr const char* kUnshare = "/usr/bin/unshare";

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

Worker::Worker(const std::string& mode, const Setup& setup) {
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  std::vector<std::string> argv = setup.program;
  if (argv.empty()) {
    argv = {worker_path(), mode};
  }
  argv.insert(argv.end(), setup.args.begin(), setup.args.end());
  child_ = std::make_unique<Child>(Launch{.argv = std::move(argv),
                                          .environment = setup.environment,
                                          .in = input.read.get(),
                                          .out_fd = output.write.get(),
                                          .user = setup.user});
  input_ = std::move(input.write);
  output_ = std::move(output.read);
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
    pollfd more{output_.get(), POLLIN, 0};
    REQUIRE_MESSAGE(
        retry_eintr([&] { return ::poll(&more, 1, static_cast<int>(kBound.count())); }) == 1,
        "the worker says nothing");
    char bytes[512];
    const ssize_t got = retry_eintr([&] { return ::read(output_.get(), bytes, sizeof bytes); });
    REQUIRE_MESSAGE(got > 0, "the worker ended without a line");
    read_.append(bytes, static_cast<std::size_t>(got));
  }
}

std::string Worker::ask(const std::string& command) {
  tell(command);
  return line();
}

void Worker::tell(const std::string& command) const {
  write_all(input_.get(), command + "\n");
}

std::unique_ptr<Worker> page_worker(const std::string& dir, const std::string& name,
                                    const std::string& claims) {
  Worker::Setup setup;
  setup.program = {page_worker_path()};
  auto worker = std::make_unique<Worker>("", setup);
  REQUIRE(worker->ask("make " + dir + " " + name + " " + claims) == "ok");
  REQUIRE(worker->ask("lock") == "ok");
  return worker;
}

std::unique_ptr<Worker> client_worker(const std::string& dir,
                                      std::chrono::milliseconds idle_timeout,
                                      const Environment& environment) {
  Worker::Setup setup;
  setup.program = {client_worker_path()};
  setup.environment = environment;
  setup.environment["FILETIMER_DIR"] = dir;
  auto worker = std::make_unique<Worker>("", setup);
  REQUIRE(worker->ask("connect " + std::to_string(idle_timeout.count())) == "yes");
  return worker;
}

void wait_for_rank(const TempFolder& temp, const Server& server, const Worker& worker, int rank) {
  REQUIRE(wait_until([&] {
    const std::string listed = run_client(temp, server, {"list", "--json"}).out;
    const std::size_t at = listed.find(fmt::format("\"pid\":{},", worker.pid()));
    return at != listed.npos &&
           listed.find(fmt::format("\"rank\":{},", rank), at) < listed.find("\"scope\"", at);
  }));
}

void expect_kill(const Server& server, const std::string& scope) {
  Worker worker("block");
  server.send(acquire_past(worker.pid(), scope));
  CHECK(worker.status() == killed_by(SIGKILL));
}

std::vector<std::string> unshared(std::vector<std::string> options, const std::string& program) {
  options.insert(options.begin(), kUnshare);
  options.push_back(program);
  return options;
}

bool can_unshare(const TempFolder& temp, std::vector<std::string> options) {
  options.emplace_back("true");
  return run(temp, kUnshare, std::move(options)).status == exited(0);
}

std::size_t expiries_of(const Server& server, const Worker& worker) {
  return count(server.records(), "expired", worker.pid());
}

}  // namespace filetimer::testing
