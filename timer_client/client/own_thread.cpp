// SPDX-License-Identifier: MIT
#include "timer_client/client/own_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <thread>

namespace filetimer {

bool start_own_thread(std::function<void()> body) noexcept {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits the mask
  bool started = false;
  try {
    std::thread([body = std::move(body)] {
      ::pthread_setname_np(::pthread_self(), "filetimer");
      body();
    }).detach();
    started = true;
  } catch (const std::system_error&) {
    // The system gives no thread.
  } catch (const std::bad_alloc&) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace filetimer
