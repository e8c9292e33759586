// filetimer._native: the C++ client for the package filetimer, and the code whose cost matters:
// Scope and expires(). Everything else is Python. The module uses CPython's API directly, so that
// `with scope:` costs little more than an empty context manager (tests/bench/python_scopes.py).
// SPDX-License-Identifier: MIT
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "timer_client/python/native/native.hpp"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace {

using namespace filetimer::python;

// Returns the value in seconds, checked as a timeout; `what` names it in the error.
PyObject* checked_seconds(PyObject*, PyObject* const* args, Py_ssize_t count) {
  filetimer::Timeout timeout{nanoseconds{}};
  const char* const what = count == 2 ? PyUnicode_AsUTF8AndSize(args[1], nullptr) : "the timeout";
  if (what == nullptr || !to_timeout(count == 0 ? Py_None : args[0], what, timeout)) {
    return nullptr;
  }
  return seconds_of(timeout.value()).release();
}

// Returns null, with an error set, in another interpreter than the main one.
PyObject* check_interpreter(PyObject*, PyObject*) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    return PyErr_Format(PyExc_ImportError, "filetimer works in the main interpreter only");
  }
  Py_RETURN_NONE;
}

// --- a signal that the main thread notices ---

// The kernel may deliver a process's signal to any thread, but only in the main thread does it
// interrupt the system call in which Python waits. Python also has a race: it notices a signal that
// arrives between its check for signals and the system call only when the call ends. The race is
// wide if threads compete for the GIL. So the signal is sent to the main thread, and again every
// 50 ms until Python's handler runs.

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

// Returns whether the signal has its default action: neither Python nor other code handles or
// ignores it.
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

// Sends the signal to the main thread from now on, in this process; a forked child must call it
// again. Python's handler must be installed already.
PyObject* send_to_main_thread(PyObject*, PyObject* number) {
  int signal = 0;
  if (!to_int(number, "the signal", 1, 64, signal)) {
    return nullptr;
  }
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal;
  event.sigev_notify_thread_id = ::getpid();  // the main thread's
  // If the system has no more timers, the signal is sent only once. That is not an error.
  if (take_over_handler(signal) && g_timer_owner.load(std::memory_order_relaxed) != ::getpid() &&
      ::timer_create(CLOCK_MONOTONIC, &event, &g_timer) == 0) {
    g_timer_owner.store(::getpid(), std::memory_order_relaxed);
  }
  Py_RETURN_NONE;
}

// Stops sending the signal. Python's handler calls this when it runs.
PyObject* stop_signalling_main_thread(PyObject*, PyObject*) {
  set_timer(0);
  Py_RETURN_NONE;
}

// --- the module ---

PyMethodDef g_functions[] = {
    {"expires", as_method(expires), METH_FASTCALL | METH_KEYWORDS, kExpiresHelp},
    {"_default_client", default_client, METH_NOARGS, nullptr},
    {"_set_default_client", set_default_client, METH_O, nullptr},
    {"_has_default_client", has_default_client, METH_NOARGS, nullptr},
    {"_check_interpreter", check_interpreter, METH_NOARGS, nullptr},
    {"_seconds", as_method(checked_seconds), METH_FASTCALL, nullptr},
    {"_is_stacks_file_kept", is_stacks_file_kept, METH_O, nullptr},
    {"_rpc_timeout_of_environment", rpc_timeout_of_environment, METH_NOARGS, nullptr},
    {"_is_free", is_free_signal, METH_O, nullptr},
    {"_send_to_main_thread", send_to_main_thread, METH_O, nullptr},
    {"_stop_sending", stop_signalling_main_thread, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef g_definition = {PyModuleDef_HEAD_INIT,
                            "filetimer._native",
                            "The compiled part of the package filetimer.",
                            -1,
                            g_functions,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  const Ref checked(check_interpreter(nullptr, nullptr));
  Ref module(checked ? PyModule_Create(&g_definition) : nullptr);
  // The errors last: their import makes the module that is used if the package was not imported
  // yet. For a subinterpreter CPython 3.13 makes the module in the main interpreter first.
  if (!module || !add_client_type(module.get()) || !add_scope_type(module.get()) ||
      !import_errors()) {
    return nullptr;
  }
  return module.release();
}
