// SPDX-License-Identifier: MIT
#include "timer_client/python/native/main_thread.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "timer_client/python/native/values.hpp"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace filetimer::python {
namespace {

constexpr long kPeriodNs = 50'000'000;

void (*g_python_handler)(int) = nullptr;  // set before pass_on() is installed
timer_t g_timer{};
// The process that made g_timer, which a child does not inherit. Relaxed: a signal handler reads
// only what its own process has written.
std::atomic<pid_t> g_timer_owner{0};

void set_timer(long period_ns) {
  if (g_timer_owner.load(std::memory_order_relaxed) == ::getpid()) {
    itimerspec when{};
    when.it_value.tv_nsec = period_ns;
    when.it_interval.tv_nsec = period_ns;
    ::timer_settime(g_timer, 0, &when, nullptr);
  }
}

// The signal handler. Makes only system calls that are async-signal-safe.
void pass_on(int signal) {
  const int error = errno;
  set_timer(kPeriodNs);
  if (::gettid() == ::getpid()) {
    g_python_handler(signal);
  } else {
    ::tgkill(::getpid(), ::getpid(), signal);
  }
  errno = error;
}

bool take_over_handler(int signal) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 ||
      action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
    return false;
  }
  if (action.sa_handler != pass_on) {
    g_python_handler = action.sa_handler;
    action.sa_handler = pass_on;
    return ::sigaction(signal, &action, nullptr) == 0;
  }
  return true;
}

}  // namespace

PyObject* is_free_signal(PyObject*, PyObject* number) {
  int signal = 0;
  if (!to_int(number, "the signal", 1, 64, signal)) {
    return nullptr;
  }
  struct sigaction action {};
  const bool is_free = ::sigaction(signal, nullptr, &action) == 0 &&
                       (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  return PyBool_FromLong(is_free ? 1 : 0);
}

PyObject* send_to_main_thread(PyObject*, PyObject* number) {
  if (g_timer_owner.load(std::memory_order_relaxed) == ::getpid()) {
    Py_RETURN_NONE;
  }
  int signal = 0;
  if (!to_int(number, "the signal", 1, 64, signal)) {
    return nullptr;
  }
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_notify_thread_id = ::getpid();  // the main thread's
  // If the system has no more timers, the signal is sent only once. That is not an error.
  if (take_over_handler(signal) && ::timer_create(CLOCK_MONOTONIC, &event, &g_timer) == 0) {
    g_timer_owner.store(::getpid(), std::memory_order_relaxed);
  }
  Py_RETURN_NONE;
}

PyObject* stop_signalling_main_thread(PyObject*, PyObject*) {
  set_timer(0);
  Py_RETURN_NONE;
}

}  // namespace filetimer::python
