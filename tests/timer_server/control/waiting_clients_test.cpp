// Answers on pipes that are read, not read, or closed.
// SPDX-License-Identifier: MIT
#include "timer_server/control/waiting_clients.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMost = 20;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  // Returns everything that can be read now.
  std::string read() const {
    std::string text;
    std::array<char, 65536> bytes{};
    for (ssize_t got = 0; (got = ::read(reader.get(), bytes.data(), bytes.size())) > 0;) {
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return text;
  }
  [[nodiscard]] bool is_at_end() const {
    char byte = 0;
    return ::read(reader.get(), &byte, 1) == 0;
  }
  UniqueFd reader;
  UniqueFd writer;
};

struct ClientStage {
  ClientStage() {
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
    clients.emplace(loop.get(), kMost, [this](WaitingClients::Id id) { withdrawn.push_back(id); });
  }
  // Dispatches the events that are pending.
  void run() const {
    while (::sd_event_run(loop.get(), 0) > 0) {
    }
  }
  std::vector<WaitingClients::Id> withdrawn;
  EventLoop loop = make_event_loop();
  std::optional<WaitingClients> clients;
};

}  // namespace

TEST_CASE("Each answer is a line, and after the last one the pipe is closed") {
  ClientStage stage;
  Pipe pipe;
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  REQUIRE(id.has_value());
  stage.clients->tell(*id, "granted");
  stage.clients->watch(*id);
  stage.run();
  stage.clients->finish(*id, "done");
  CHECK(pipe.read() == "granted\ndone\n");
  CHECK(pipe.is_at_end());
  CHECK(stage.clients->count() == 0);
  CHECK(stage.withdrawn.empty());
  stage.clients->finish(*id, "again");  // the client is gone
}

TEST_CASE("A client that closes its pipe has withdrawn") {
  ClientStage stage;
  Pipe left;
  Pipe stays;
  const auto id = stage.clients->add(std::move(left.writer), "");
  const auto other = stage.clients->add(std::move(stays.writer), "");
  stage.clients->watch(*id);
  stage.clients->watch(*other);
  stage.run();
  CHECK(stage.withdrawn.empty());
  left.reader.reset();
  stage.run();
  CHECK(stage.withdrawn == std::vector{*id});
  CHECK(stage.clients->count() == 1);
  stage.clients->finish(*other, "done");
  CHECK(stays.read() == "done\n");
}

TEST_CASE("A client that is gone is known before its withdrawal is reported") {
  ClientStage stage;
  Pipe pipe;
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  stage.clients->watch(*id);
  CHECK(!stage.clients->has_left(*id));
  pipe.reader.reset();
  CHECK(stage.clients->has_left(*id));
  CHECK(stage.withdrawn.empty());
  CHECK(stage.clients->has_left(*id + 1));  // never added
}

TEST_CASE("A last answer that does not fit its pipe is written in parts") {
  ClientStage stage;
  Pipe pipe;
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  const std::string answer(1'000'000, 'a');
  stage.clients->finish(*id, answer);
  std::string read;
  for (int i = 0; i < 1000 && read.size() <= answer.size(); ++i) {
    read += pipe.read();
    stage.run();
  }
  CHECK(read == answer + '\n');
  CHECK(pipe.is_at_end());
  CHECK(stage.clients->count() == 0);
}

TEST_CASE("A client that does not read its last answer in time, or is gone, is removed") {
  ClientStage stage;
  Pipe pipe;
  Pipe left;
  const std::string answer(1'000'000, 'a');
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  stage.clients->finish(*id, answer);
  stage.clients->finish(*stage.clients->add(std::move(left.writer), ""), answer);
  left.reader.reset();
  stage.run();
  CHECK(stage.clients->count() == 1);
  const Instant due = stage.clients->advance({});
  CHECK(due <= Instant::now() + WaitingClients::kUnreadLimit);
  CHECK(stage.clients->advance({due.ns - 1}) == due);
  CHECK(stage.clients->advance(due).is_never());
  CHECK(stage.clients->count() == 0);
  CHECK(stage.withdrawn.empty());  // it had its answer
}

TEST_CASE("An answer that is not the last one is lost as a whole when the pipe is full") {
  ClientStage stage;
  Pipe pipe;
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  const std::string answer(4000, 'w');
  for (int i = 0; i < 100; ++i) {
    stage.clients->tell(*id, answer);
  }
  std::string read = pipe.read();
  CHECK(!read.empty());
  CHECK(read.size() % (answer.size() + 1) == 0);
}

TEST_CASE("The end of file after an answer at exit does not come before the exit") {
  ClientStage stage;
  Pipe pipe;
  const int writer = pipe.writer.get();
  const auto id = stage.clients->add(std::move(pipe.writer), "");
  stage.clients->finish_at_exit(*id, "done");
  stage.clients.reset();
  CHECK(pipe.read() == "done\n");
  CHECK(!pipe.is_at_end());
  ::close(writer);
}

TEST_CASE("The number of waiting clients has a limit") {
  ClientStage stage;
  std::vector<WaitingClients::Id> ids;
  const Pipe pipe;
  for (std::size_t i = 0; i < kMost; ++i) {
    const auto id = stage.clients->add(UniqueFd(::dup(pipe.writer.get())), "no");
    REQUIRE(id.has_value());
    ids.push_back(*id);
  }
  CHECK(!stage.clients->add(UniqueFd(::dup(pipe.writer.get())), "no"));
  CHECK(pipe.read() == "no\n");
  stage.clients->finish(ids[0], "done");
  CHECK(stage.clients->add(UniqueFd(::dup(pipe.writer.get())), "no"));
}
