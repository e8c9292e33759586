// A worker whose threads hang in functions with known names, or keep working. Reads and writes
// lines as test_worker does. Dies with its parent.
//
// hang THREADS: of every three threads one waits for a lock, one spins, one reads. Prints "ready".
//
// pool THREADS: of every three threads one waits for a lock, one reads, one waits for a signal.
// Prints "ready".
//
// astray THREADS: threads that run where there is no file of code. Prints "ready".
//
// serve THREADS: threads that never stop working. Commands: "ping": answers "pong" when every
// thread has made progress since; "signals": answers how many SIGRTMIN it got.
// SPDX-License-Identifier: MIT
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hang {

// Not inlined and not the last call of its caller: each has a frame of its own.
[[gnu::noinline]] void in_lock(std::mutex& mutex) {
  mutex.lock();
  mutex.unlock();
}

[[gnu::noinline]] void in_loop(std::atomic<unsigned>& turns) {
  for (;;) {
    turns.fetch_add(1, std::memory_order_relaxed);
  }
}

[[gnu::noinline]] void in_read(int fd) {
  char byte = 0;
  while (::read(fd, &byte, 1) != 0) {
  }
}

[[gnu::noinline]] void in_pause() {
  while (::pause() != 0) {
  }
}

}  // namespace hang

namespace {

void say(const std::string& line) {
  const std::string bytes = line + "\n";
  if (::write(STDOUT_FILENO, bytes.data(), bytes.size()) < 0) {
    ::_exit(90);
  }
}

int run_hanging(int threads, bool spins) {
  std::mutex held;
  held.lock();
  std::atomic<unsigned> turns{0};
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) {
    return 91;
  }
  std::vector<std::jthread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      i % 3 == 0   ? hang::in_lock(held)
      : i % 3 == 2 ? hang::in_read(pipe[0])
      : spins      ? hang::in_loop(turns)
                   : hang::in_pause();
    });
  }
  while (spins && threads > 1 && turns == 0) {
    std::this_thread::yield();
  }
  say("ready");
  hang::in_read(STDIN_FILENO);
  ::_exit(0);
}

int run_astray(int threads) {
  // Sets the frame pointer to 1, so that none leads back to a file, and jumps to itself.
#ifdef __aarch64__
  constexpr std::uint32_t kCode[] = {0xd280003d, 0x14000000};
#else
  constexpr unsigned char kCode[] = {0xbd, 1, 0, 0, 0, 0xeb, 0xfe};
#endif
  void* const place =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memcpy(place, kCode, sizeof kCode);
  __builtin___clear_cache(static_cast<char*>(place), static_cast<char*>(place) + 8);
  std::vector<std::jthread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back(reinterpret_cast<void (*)()>(place));
  }
  say("ready");
  hang::in_read(STDIN_FILENO);
  ::_exit(0);
}

std::atomic<int> signals{0};

int run_serving(int threads) {
  std::signal(SIGRTMIN, [](int) { signals.fetch_add(1); });
  std::atomic<unsigned> wanted{0};
  std::deque<std::atomic<unsigned>> seen(static_cast<std::size_t>(threads));
  std::vector<std::jthread> all;
  for (std::atomic<unsigned>& mine : seen) {
    all.emplace_back([&wanted, &mine] {
      for (;;) {
        mine.store(wanted.load());
        std::this_thread::sleep_for(std::chrono::microseconds{100});
      }
    });
  }
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "signals") {
      say(std::to_string(signals.load()));
      continue;
    }
    const unsigned turn = wanted.fetch_add(1) + 1;
    for (const std::atomic<unsigned>& each : seen) {
      while (each.load() != turn) {
        std::this_thread::yield();
      }
    }
    say("pong");
  }
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(100);
  const std::string mode = argc == 3 ? argv[1] : "";
  return mode == "hang"     ? run_hanging(std::stoi(argv[2]), true)
         : mode == "pool"   ? run_hanging(std::stoi(argv[2]), false)
         : mode == "astray" ? run_astray(std::stoi(argv[2]))
         : mode == "serve"  ? run_serving(std::stoi(argv[2]))
                            : 2;
}
