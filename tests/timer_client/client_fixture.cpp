// SPDX-License-Identifier: MIT
#include "tests/timer_client/client_fixture.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdio>
#include <iostream>
#include <thread>

#include "common/mapped_file.hpp"

namespace filetimer::testing {

Ends make_pipe(int flags) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | flags) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Pipe::Pipe(std::string path) : path_(std::move(path)) {
  REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
  open();
}

void Pipe::open() {
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(fd_);
}

void Pipe::close() {
  fd_.reset();
  unread_.clear();
}

Line Pipe::next() {
  const auto until = std::chrono::steady_clock::now() + kBound;
  while (unread_.find('\n') == std::string::npos) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    // Without a writer the pipe reports a hang-up at once: pause, until a writer opens it or the
    // bound is reached.
    pollfd waits{fd_.get(), POLLIN, 0};
    if (::poll(&waits, 1, 100) > 0 && (waits.revents & POLLIN) == 0) {
      ::poll(nullptr, 0, 1);
    }
    char bytes[4096];
    const ssize_t count = ::read(fd_.get(), bytes, sizeof bytes);
    if (count > 0) {
      unread_.append(bytes, static_cast<std::size_t>(count));
    }
  }
  Line line;
  line.text = unread_.substr(0, unread_.find('\n'));
  unread_.erase(0, line.text.size() + 1);
  line.parser = std::make_shared<wire::Parser>();
  const auto request = line.parser->parse(line.text);
  REQUIRE_MESSAGE(request.has_value(), line.text);
  static_cast<wire::Request&>(line) = *request;
  return line;
}

bool Pipe::is_silent() {
  pollfd waits{fd_.get(), POLLIN, 0};
  return unread_.empty() && (::poll(&waits, 1, 0) == 0 || (waits.revents & POLLIN) == 0);
}

std::size_t Pipe::fill() {
  const UniqueFd writer(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(writer);
  const std::string block(4096, '\n');
  std::size_t written = 0;
  while (::write(writer.get(), block.data(), block.size()) > 0) {
    written += block.size();
  }
  return written;
}

void Pipe::drain(std::size_t bytes) {
  std::string block(4096, '\0');
  while (bytes > 0) {
    const ssize_t count = ::read(fd_.get(), block.data(), std::min(block.size(), bytes));
    REQUIRE(count > 0);
    bytes -= static_cast<std::size_t>(count);
  }
}

void Pipe::discard() {
  std::string block(4096, '\0');
  while (::read(fd_.get(), block.data(), block.size()) > 0) {
  }
  unread_.clear();
}

void write_to_flapping(Pipe& pipe, const std::function<void()>& write) {
  const std::jthread flapping([&](const std::stop_token& end) {
    while (!end.stop_requested()) {
      pipe.discard();
      pipe.close();
      pipe.open();
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    write();
  }
}

void in_thread(const std::function<void()>& body) {
  std::thread(body).join();
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const TimerError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::unique_ptr<SteppedChild> hold(const std::vector<std::string>& paths) {
  std::vector<FileLock> locks;  // of the child, which waits within the constructor
  auto child = std::make_unique<SteppedChild>(std::vector<SteppedChild::Step>{[&] {
    for (const std::string& path : paths) {
      auto lock = FileLock::take(path);
      if (!lock) {
        return false;
      }
      locks.push_back(std::move(*lock));
    }
    return true;
  }});
  REQUIRE(child->next());
  return child;
}

int in_child(const std::function<int()>& body) {
  std::cout.flush();  // so that a child that exits normally does not write it again
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  return exit_code_of(child);
}

int exit_code_of(pid_t child) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (!is_readable_within(pidfd.get(), kBound)) {
    ::kill(child, SIGKILL);
  }
  int status = 0;
  retry_eintr([&] { return ::waitpid(child, &status, 0); });
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace filetimer::testing
