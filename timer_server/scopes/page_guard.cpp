// SPDX-License-Identifier: MIT
#include "timer_server/scopes/page_guard.hpp"

#include <signal.h>
#include <sys/mman.h>

#include <cstdint>

namespace filetimer {
namespace {

// Volatile: written by the thread and read by the handler that interrupts it.
volatile std::uintptr_t g_begin = 0;
volatile std::uintptr_t g_end = 0;
volatile sig_atomic_t g_faulted = 0;

void on_sigbus(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (address >= g_begin && address < g_end) {
    // The instruction that failed is run again, and reads 0 from the private memory.
    void* const begin = reinterpret_cast<void*>(static_cast<std::uintptr_t>(g_begin));
    if (::mmap(begin, g_end - g_begin, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == begin) {
      g_faulted = 1;
      return;
    }
  }
  ::signal(SIGBUS, SIG_DFL);  // the instruction is run again, and the kernel ends the process
}

}  // namespace

PageGuard::PageGuard(void* begin, std::size_t bytes) {
  g_faulted = 0;
  g_end = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  g_begin = reinterpret_cast<std::uintptr_t>(begin);
}

PageGuard::~PageGuard() {
  g_end = 0;
  g_begin = 0;
}

bool PageGuard::faulted() {
  return g_faulted != 0;
}

void PageGuard::install() {
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace filetimer
