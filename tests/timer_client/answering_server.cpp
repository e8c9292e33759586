// SPDX-License-Identifier: MIT
#include "tests/timer_client/answering_server.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "common/limits.hpp"
#include "common/run_folder.hpp"
#include "common/wire.hpp"
#include "tests/support/bound.hpp"

namespace filetimer::testing {

UniqueFd listen_in(const std::string& dir, int backlog) {
  const auto address = ControlAddress::in(dir);
  REQUIRE(address.has_value());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(socket.get(), address->get(), ControlAddress::size()) == 0);
  REQUIRE(::listen(socket.get(), backlog) == 0);
  return socket;
}

void AnsweringServer::Answers::say(std::string_view line) {
  say_raw(std::string(line) + "\n");
}

void AnsweringServer::Answers::say_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view packet = bytes.substr(0, kAnswerPacketBytes);
    if (::send(connection_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) {
      return;
    }
    bytes.remove_prefix(packet.size());
  }
}

void AnsweringServer::Answers::wait_until_hung_up() {
  pollfd client{connection_.get(), 0, 0};
  ::poll(&client, 1, static_cast<int>(kBound.count()));
}

AnsweringServer::AnsweringServer(Script script, std::string dir)
    : dir_(std::move(dir)), script_(std::move(script)), end_(::eventfd(0, EFD_CLOEXEC)) {
  if (dir_.empty()) {
    dir_ = folder_.emplace().path();
  }
  REQUIRE(::mkfifo(pipe().c_str(), 0600) == 0);
  requests_.reset(::open(pipe().c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(requests_);
  control_ = listen_in(dir_, 8);
  thread_ = std::thread([this] { run(); });
}

AnsweringServer::AnsweringServer(const std::string& line, std::string dir)
    : AnsweringServer([line](const wire::Question&, Answers& answers) { answers.say(line); },
                      std::move(dir)) {}

AnsweringServer::~AnsweringServer() {
  ::eventfd_write(end_.get(), 1);
  thread_.join();
}

std::vector<wire::Question> AnsweringServer::asked() const {
  const std::scoped_lock held(mutex_);
  return asked_;
}

void AnsweringServer::run() {
  for (;;) {
    pollfd waits[] = {{end_.get(), POLLIN, 0}, {control_.get(), POLLIN, 0}};
    ::poll(waits, 2, -1);
    if (waits[0].revents != 0) {
      return;
    }
    UniqueFd connection(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char packet[kMaxControlBytes];
    const ssize_t got = ::recv(connection.get(), packet, sizeof packet, 0);
    const auto asked =
        wire::parse_question({packet, static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
    if (!asked) {
      continue;
    }
    {
      const std::scoped_lock held(mutex_);
      asked_.push_back(*asked);
    }
    Answers answers(std::move(connection));
    script_(*asked, answers);
  }
}

}  // namespace filetimer::testing
