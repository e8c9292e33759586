// SPDX-License-Identifier: MIT
#include "timer_server/system/loop_thread.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

using namespace filetimer;

TEST_CASE("A debug build aborts if a part is called on another thread than the one that made it") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGABRT, SIG_DFL);  // doctest has a handler of its own
    ::close(STDERR_FILENO);
    const LoopThread part;
    part.check();
    std::thread([&part] { part.check(); }).join();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
#ifdef NDEBUG
  CHECK(WIFEXITED(status));
#else
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
#endif
}
