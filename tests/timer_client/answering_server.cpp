// SPDX-License-Identifier: MIT
#include "tests/timer_client/answering_server.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/wire_parser.hpp"

namespace filetimer::testing {
namespace {

constexpr int kBoundMs = 20'000;

}  // namespace

void AnsweringServer::Answers::say(std::string_view line) {
  say_raw(std::string(line) + "\n");
}

void AnsweringServer::Answers::say_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd room{pipe_.get(), POLLOUT, 0};
    if (::poll(&room, 1, kBoundMs) != 1 || (room.revents & POLLERR) != 0) {
      return;
    }
    const ssize_t written = ::write(pipe_.get(), bytes.data(), bytes.size());
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
}

void AnsweringServer::Answers::stop_reading() {
  server_.requests_.reset();
}

void AnsweringServer::Answers::wait_until_hung_up() {
  pollfd reader{pipe_.get(), 0, 0};
  ::poll(&reader, 1, kBoundMs);
}

AnsweringServer::AnsweringServer(std::string dir, Script script, Opens opens)
    : dir_(std::move(dir)),
      script_(std::move(script)),
      opens_(opens),
      end_(::eventfd(0, EFD_CLOEXEC)) {
  // A test may have made the directory before.
  REQUIRE((::mkdir((dir_ + "/replies").c_str(), 0700) == 0 || errno == EEXIST));
  REQUIRE((::mkfifo(pipe().c_str(), 0600) == 0 || errno == EEXIST));
  // Opened for writing, too, so that poll() reports no hang-up when a client closes the pipe.
  requests_.reset(::open(pipe().c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(requests_);
  thread_ = std::thread([this] { run(); });
}

AnsweringServer::AnsweringServer(std::string dir, std::string line)
    : AnsweringServer(std::move(dir),
                      [line](const AskedQuestion&, Answers& answers) { answers.say(line); }) {}

AnsweringServer::~AnsweringServer() {
  ::eventfd_write(end_.get(), 1);
  thread_.join();
}

std::vector<AskedQuestion> AnsweringServer::asked() const {
  const std::scoped_lock held(mutex_);
  return asked_;
}

std::vector<std::string> AnsweringServer::reply_names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/replies")) {
    names.push_back(entry.path().filename());
  }
  return names;
}

void AnsweringServer::run() {
  ::signal(SIGPIPE, SIG_IGN);
  std::string unread;
  for (;;) {
    std::vector<pollfd> waits{{end_.get(), POLLIN, 0}};
    if (requests_) {
      waits.push_back({requests_.get(), POLLIN, 0});
    }
    ::poll(waits.data(), waits.size(), -1);
    if (waits[0].revents != 0) {
      return;
    }
    char bytes[4096];
    const ssize_t got = ::read(requests_.get(), bytes, sizeof bytes);
    unread.append(bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    for (std::size_t end = 0; (end = unread.find('\n')) != unread.npos;) {
      const std::string line = unread.substr(0, end);
      unread.erase(0, end + 1);
      answer(line);
    }
  }
}

void AnsweringServer::answer(const std::string& line) {
  wire::Parser parser;
  const std::string padded = line + std::string(wire::Parser::padding(), ' ');
  const auto request = parser.parse(std::string_view(padded).substr(0, line.size()));
  if (!request || request->question.request.empty()) {
    return;
  }
  const wire::Question& question = request->question;
  const AskedQuestion asked{.request = std::string(question.request),
                            .reply = std::string(question.reply),
                            .wait_s = question.wait_s,
                            .pid = request->pid,
                            .graceful = std::string(question.graceful),
                            .force = question.force,
                            .off = question.off,
                            .name = std::string(question.name),
                            .rank = question.rank,
                            .world = question.world};
  {
    const std::scoped_lock held(mutex_);
    asked_.push_back(asked);
  }
  UniqueFd pipe;
  if (opens_ == Opens::kYes) {
    pipe.reset(
        ::open((dir_ + "/replies/" + asked.reply).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }
  Answers answers(std::move(pipe), *this);
  script_(asked, answers);
}

}  // namespace filetimer::testing
