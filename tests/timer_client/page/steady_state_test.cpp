// After a thread has used its names, entering and leaving scopes allocates nothing and makes no
// system call, except for the check of the runtime directory once a second.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <new>
#include <string>
#include <vector>

#include "common/sanitizers.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_client/fake_server.hpp"
#include "timer_client/client/page/thread_slots.hpp"

using namespace std::chrono_literals;
using namespace filetimer;
using testing::Connected;

namespace {

constinit thread_local std::size_t t_allocations = 0;
constexpr std::size_t kPlenty = ~std::size_t{0};
constinit thread_local std::size_t t_allowed = kPlenty;  // allocations before one fails

void enter_and_leave(TimerClient& client, int times = 1000) {
  static const std::string kLong(1000, 'x');
  static const std::string kMiddle = "a name that does not fit a small string";
  for (int i = 0; i < times; ++i) {
    auto outer = client.expires(1h, "outer");
    auto same = client.expires(30min, "outer");
    auto by_line = client.expires(1h);
    auto odd = client.expires(kNoDeadline, "\xff", {.signal = 15, .grace = 5s});
    auto warned = client.expires(1h, kMiddle, {.signal = 9, .grace = {}, .warn_after = 30min});
    auto whole = client.expires(1h, kLong);
    auto half = client.expires(1h, kMiddle);
    same.renew(1h);
    half.release();
    client.start(1h);
    client.start(2h);
    client.stop();
  }
}

// Makes every system call end the process with SIGSYS, except for those of the check and of exit.
bool forbid_system_calls() {
  std::array<sock_filter, 6> code{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  }};
  const sock_fprog program{code.size(), code.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

#if !FILETIMER_ADDRESS_SANITIZER && !FILETIMER_THREAD_SANITIZER
void* operator new(std::size_t size) {
  ++t_allocations;
  if (void* const made = t_allowed > 0 ? std::malloc(size) : nullptr) {
    --t_allowed;
    return made;
  }
  throw std::bad_alloc();
}
void operator delete(void* made) noexcept {
  std::free(made);
}
void operator delete(void* made, std::size_t) noexcept {
  std::free(made);
}
#endif

TEST_CASE_FIXTURE(Connected, "scopes on the page allocate nothing") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer brings an allocator of its own");
  enter_and_leave(client);
  CHECK(t_allocations > 0);
  const auto allocate = [&] {
    const std::size_t before = t_allocations;
    enter_and_leave(client, 20);
    return t_allocations != before;
  };
  // A look at the files of the page allocates, and comes once a second.
  CHECK_FALSE((allocate() && allocate() && allocate()));
}

TEST_CASE_FIXTURE(
    Connected, "a scope that cannot be opened without memory does not change its thread's slots") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer brings an allocator of its own");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kMaxIdleSlots; ++i) {  // enough to rebind one to another name
    names.push_back(std::string(20, 'a') + std::to_string(i));
  }
  std::size_t opened = 0;
  const auto use = [&](const std::string& name) {
    (void)client.expires(1h, name).release();
    ++opened;
  };
  std::ranges::for_each(names, use);
  const std::string name = "a name that is new and does not fit a small string";
  std::size_t thrown = 0;
  for (bool has_opened = false; !has_opened;) {
    t_allowed = thrown;
    try {
      use(name);
      has_opened = true;
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
    t_allowed = kPlenty;
    std::ranges::for_each(names, use);
  }
  CHECK(thrown > 2);
  std::size_t counted = 0;
  for (std::size_t i = 0; i < statistics_in_use(server.page()); ++i) {
    counted += server.page().statistics(i).count;
  }
  CHECK(counted == opened);
}

TEST_CASE_FIXTURE(Connected, "where an allocation fails no slot is lost, and a thread can end") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer brings an allocator of its own");
  constexpr std::size_t kOpen = 20;
  std::vector<TimerScope> open;
  open.reserve(kOpen);
  while (open.size() < kOpen) {
    const std::string name(30 + open.size(), 'n');
    const std::size_t before = open.size();
    for (std::size_t allowed = 0; open.size() == before; ++allowed) {
      t_allowed = allowed;
      try {
        open.push_back(client.expires(1h, name));
      } catch (const std::bad_alloc&) {
      }
      t_allowed = kPlenty;
    }
  }
  CHECK(slots_in_use(server.page()) <= kOpen + kMaxIdleSlots);
  TimerScope left;
  testing::in_thread([&] {
    (void)client.expires(1h, "ended").release();
    left = client.expires(1h, "left open");
    t_allowed = 0;
  });
  CHECK(server.slot("left open").flags == slot_flag::kThreadEnded);
}

TEST_CASE("scopes on the page make no system call") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer makes system calls of its own");
  testing::FakeServer server;
  constexpr int kSkipped = 77;
  const int code = testing::in_child([&] {
    auto client = server.connect();
    enter_and_leave(client);
    if (!forbid_system_calls()) {
      return kSkipped;
    }
    enter_and_leave(client);
    ::_exit(0);  // skips the client's destructor, which may close files
  });
  FILETIMER_SKIP_IF(code == kSkipped, "no seccomp here");
  CHECK(code == 0);
}
