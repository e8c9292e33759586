// Answers on pipes that are read, not read, or closed.
// SPDX-License-Identifier: MIT
#include "timer_server/control/waiting_clients.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

using namespace filetimer;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMostClients = 2;

struct ReplyPipe {
  ReplyPipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  // Returns everything that can be read now, and "END" at the end of the file.
  std::string read() const {
    std::string text;
    std::array<char, 65536> bytes{};
    ssize_t got = 0;
    while ((got = ::read(reader.get(), bytes.data(), bytes.size())) > 0) {
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return got == 0 ? text + "END" : text;
  }
  UniqueFd reader;
  UniqueFd writer;
};

struct ClientStage {
  ClientStage() {
    ::signal(SIGPIPE, SIG_IGN);  // the server blocks it
    clients.emplace(loop, kMostClients, [this](WaitingClients::Id id) { withdrawn.push_back(id); });
  }
  WaitingClients::Id add(ReplyPipe& pipe) {
    return clients->add(std::move(pipe.writer), "").value();
  }
  // Dispatches the events that are pending.
  void run() {
    while (loop.dispatch_one(0)) {
    }
  }
  std::vector<WaitingClients::Id> withdrawn;
  EventLoop loop;
  std::optional<WaitingClients> clients;
};

const std::string kLongAnswer(1'000'000, 'a');

}  // namespace

TEST_CASE("Each answer to a client is a line, and after the last one its pipe is closed") {
  ClientStage stage;
  ReplyPipe pipe;
  const auto id = stage.add(pipe);
  stage.clients->tell(id, "granted");
  stage.clients->watch(id);
  stage.run();
  stage.clients->finish(id, "done");
  CHECK(pipe.read() == "granted\ndone\nEND");
  CHECK(stage.clients->count() == 0);
  CHECK(stage.withdrawn.empty());
  stage.clients->finish(id, "again");  // the client is gone
}

TEST_CASE("An answer before the last one is written as a whole, or else not at all") {
  ClientStage stage;
  ReplyPipe pipe;
  const auto id = stage.add(pipe);
  const std::string longest(kMaxAtomicWrite - 1, 'a');  // its newline is written with it
  stage.clients->tell(id, longest + 'a');
  stage.clients->tell(id, longest);
  stage.clients->finish(id, "done");
  CHECK(pipe.read() == longest + "\ndone\nEND");
}

TEST_CASE("A client that closes its pipe has withdrawn, and is known to be gone before") {
  ClientStage stage;
  ReplyPipe left;
  ReplyPipe stays;
  const auto id = stage.add(left);
  const auto other = stage.add(stays);
  stage.clients->watch(id);
  stage.clients->watch(other);
  stage.run();
  CHECK_FALSE(stage.clients->has_left(id));
  left.reader.reset();
  CHECK(stage.clients->has_left(id));
  CHECK(stage.clients->has_left(other + 1));  // never added
  CHECK(stage.withdrawn.empty());
  stage.run();
  CHECK(stage.withdrawn == std::vector{id});
  CHECK(stage.clients->count() == 1);
}

TEST_CASE("A last answer that does not fit its pipe is written in parts, also behind others") {
  for (const bool is_full : {false, true}) {
    CAPTURE(is_full);
    ClientStage stage;
    ReplyPipe pipe;
    const auto id = stage.add(pipe);
    const std::string before(4000, 'w');
    for (int i = 0; is_full && i < 100; ++i) {
      stage.clients->tell(id, before);
    }
    stage.clients->finish(id, kLongAnswer);
    std::string read;
    for (int i = 0; i < 1000 && !read.ends_with("END"); ++i) {
      read += pipe.read();
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
  ReplyPipe pipe;
  ReplyPipe left;
  const auto id = stage.add(pipe);
  const auto other = stage.add(left);
  CHECK(stage.clients->advance(Instant::now() + 1h).is_never());
  const Instant before = Instant::now();
  stage.clients->finish(id, kLongAnswer);
  stage.clients->finish(other, kLongAnswer);
  left.reader.reset();
  stage.run();
  CHECK(stage.clients->count() == 1);
  const Instant due = stage.clients->advance({});
  CHECK(due >= before + WaitingClients::kUnreadLimit);
  CHECK(due <= Instant::now() + WaitingClients::kUnreadLimit);
  CHECK(stage.clients->advance({due.ns - 1}) == due);
  CHECK(stage.clients->advance(due).is_never());
  CHECK(stage.clients->count() == 0);
  CHECK(stage.withdrawn.empty());  // it had its answer
}

TEST_CASE("The end of file after an answer at exit does not come before the exit") {
  ClientStage stage;
  ReplyPipe pipe;
  const int kept = pipe.writer.get();
  stage.clients->finish_at_exit(stage.add(pipe), "done");
  CHECK(stage.clients->count() == 0);
  stage.clients.reset();
  CHECK(pipe.read() == "done\n");
  CHECK(::close(kept) == 0);
}

TEST_CASE("A client over the limit gets the refusal, until another client is removed") {
  ClientStage stage;
  std::array<ReplyPipe, kMostClients + 1> pipes;
  const auto first = stage.add(pipes[0]);
  stage.add(pipes[1]);
  const UniqueFd again(::dup(pipes[2].writer.get()));
  CHECK_FALSE(stage.clients->add(std::move(pipes[2].writer), "no").has_value());
  CHECK(pipes[2].read() == "no\n");
  stage.clients->finish(first, "done");
  CHECK(stage.clients->add(UniqueFd(::dup(again.get())), "no").has_value());
}
