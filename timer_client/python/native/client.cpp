// SPDX-License-Identifier: MIT
#include <setjmp.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "timer_client/client/environment.hpp"
#include "timer_client/client/page/own_page.hpp"
#include "timer_client/client/process_lock.hpp"
#include "timer_client/client/write_signals.hpp"
#include "timer_client/python/native/native.hpp"

namespace filetimer::python {

PyTypeObject* g_client_type = nullptr;

namespace {

PyObject* g_default_client = nullptr;  // made by configure(); null: none was made yet

struct ClientObject {
  PyObject_HEAD std::shared_ptr<TimerClient> client;  // null: closed. Guarded by the GIL
  unsigned offered_in;  // fork_watch::count() where it has offered stacks last; 0: it offers none
};

ClientObject& object_of(PyObject* self) {
  return *reinterpret_cast<ClientObject*>(self);
}

// Returns null, with an error set, after close().
TimerClient* must_be_open(PyObject* self) {
  TimerClient* const client = open_client(self);
  if (client == nullptr) {
    PyErr_SetString(g_errors.timer_error, "the client is closed");
  }
  return client;
}

// Runs Python's signal handlers. Throws PythonError if one of them raised an exception.
void run_signal_handlers(WithoutGil& released) {
  if (released.with_gil([] { return PyErr_CheckSignals(); }) != 0) {
    throw PythonError();
  }
}

// --- life ---

PyObject* new_client(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = PyType_GenericAlloc(type, 0);
  if (self != nullptr) {
    new (&object_of(self).client) std::shared_ptr<TimerClient>();
  }
  return self;
}

void dealloc_client(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  object_of(self).client.~shared_ptr();
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* connect(PyObject* self, PyObject* args) {
  const char* dir = nullptr;
  PyObject* timeout = nullptr;
  int missing = 0;
  int allow_tracing = 0;
  PyObject* idle_timeout = nullptr;
  const char* timeouts = nullptr;
  if (PyArg_ParseTuple(args, "yOipOy", &dir, &timeout, &missing, &allow_tracing, &idle_timeout,
                       &timeouts) == 0) {
    return nullptr;
  }
  ConnectOptions options;
  options.dir = dir;
  options.timeouts = timeouts;
  options.missing = static_cast<ConnectOptions::Missing>(missing);  // as _client.py has them
  options.stacks = allow_tracing != 0;
  std::optional<Timeout> patience;
  std::optional<Timeout> idle;
  if (!to_optional_timeout(timeout, "the timeout of configure()", patience, true) ||
      !to_optional_timeout(idle_timeout, "the idle_timeout", idle, true)) {
    return nullptr;
  }
  if (idle && idle->is_none()) {
    idle.reset();
  }
  options.timeout = patience.value_or(options.timeout);
  options.idle_timeout = idle.value_or(options.idle_timeout);
  return guarded([&] {
    std::shared_ptr<TimerClient> made;
    {
      WithoutGil free;
      options.while_waiting = [&free] { run_signal_handlers(free); };
      made = std::make_shared<TimerClient>(TimerClient::connect(std::move(options)));
    }
    std::swap(object_of(self).client, made);
    object_of(self).offered_in = allow_tracing != 0 ? fork_watch::count() : 0;
    Py_RETURN_NONE;
  });
}

PyObject* close_client(PyObject* self, PyObject*) {
  const auto last = std::move(object_of(self).client);
  Py_RETURN_NONE;
}

// --- the rest ---

PyObject* start(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  std::optional<Timeout> timeout;
  if (!to_only_timeout("start", args, count, timeout)) {
    return nullptr;
  }
  TimerClient* const client = open_client(self);  // now: the argument may run Python code
  return guarded([&]() -> PyObject* {
    if (client != nullptr) {
      timeout ? client->start(*timeout) : client->start();
      if (!offer_stacks_in_child(self)) {
        return nullptr;
      }
    }
    Py_RETURN_NONE;
  });
}

PyObject* stop(PyObject* self, PyObject*) {
  TimerClient* const client = open_client(self);
  return PyBool_FromLong(client != nullptr && client->stop() ? 1 : 0);
}

PyObject* path_of(const std::string& path) {
  return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
}

PyObject* stacks_file(PyObject* self, PyObject*) {
  TimerClient* const client = must_be_open(self);
  return client == nullptr ? nullptr : guarded([&] { return path_of(client->stacks_file()); });
}

// faulthandler's handlers, by signal.
std::array<void (*)(int), 65> g_write_stacks{};

// faulthandler reads the stacks of other threads while they run, unless its thread holds the GIL.
// If it reads memory that one of them has freed, the stacks stay incomplete, and the worker
// continues. faulthandler then considers itself to be at work, and writes no further stacks.
// The thread that writes stacks, or 0. Relaxed: a thread only compares it with its own id.
std::atomic<pid_t> g_stacks_writer{0};
sigjmp_buf g_before_stacks;
struct sigaction g_handler_of_faults {};  // that was there before

void end_stacks_at_fault(int signal, siginfo_t* info, void*) {
  const bool is_fault = info->si_code > 0;  // otherwise the signal is from kill(2)
  if (is_fault && g_stacks_writer.load(std::memory_order_relaxed) == ::gettid()) {
    siglongjmp(g_before_stacks, 1);
  }
  ::sigaction(signal, &g_handler_of_faults, nullptr);  // the fault recurs
  if (!is_fault) {
    ::raise(signal);
  }
}

void write_stacks_guarded(int signal) {
  struct sigaction action {};
  action.sa_sigaction = end_stacks_at_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, nullptr, &g_handler_of_faults);  // known before another thread may need it
  ::sigaction(SIGSEGV, &action, &g_handler_of_faults);
  const WriteSignalsGuard guard;  // the file may have reached RLIMIT_FSIZE
  if (sigsetjmp(g_before_stacks, 1) == 0) {
    g_write_stacks[static_cast<std::size_t>(signal)](signal);
  }
  guard.consume();
  ::sigaction(SIGSEGV, nullptr, &action);
  if (action.sa_sigaction == end_stacks_at_fault) {  // the program has not installed another one
    ::sigaction(SIGSEGV, &g_handler_of_faults, nullptr);
  }
}

// The handler of a signal for stacks. faulthandler would write to whatever file has the number now.
void write_stacks(int signal) {
  const int error = errno;
  pid_t no_thread = 0;  // while another one writes stacks for another signal, none are written
  if (stacks_offers.is_same(signal) &&
      g_stacks_writer.compare_exchange_strong(no_thread, ::gettid(), std::memory_order_relaxed)) {
    write_stacks_guarded(signal);
    g_stacks_writer.store(0, std::memory_order_relaxed);
  }
  errno = error;
}

// Has the handler that faulthandler installed called by write_stacks().
void check_file_before_stacks(int signal) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != write_stacks) {
    g_write_stacks[static_cast<std::size_t>(signal)] = action.sa_handler;
    action.sa_handler = write_stacks;
    ::sigaction(signal, &action, nullptr);
  }
}

PyObject* offer_stacks(PyObject* self, PyObject* arguments) {
  TimerClient* const client = must_be_open(self);
  int signal = 0;
  int file = -1;
  if (client == nullptr || PyArg_ParseTuple(arguments, "ii", &signal, &file) == 0) {
    return nullptr;
  }
  return guarded([&] {
    check_file_before_stacks(signal);  // before the offer, which ends with another handler
    const bool is_offered = client->offer_stacks(signal, file);
    return PyBool_FromLong(is_offered ? 1 : 0);
  });
}

PyObject* is_watched(PyObject* self, void*) {
  TimerClient* const client = open_client(self);
  return PyBool_FromLong(client != nullptr && client->is_watched() ? 1 : 0);
}

PyObject* target(PyObject* self, void*) {
  TimerClient* const client = must_be_open(self);
  return client == nullptr ? nullptr : guarded([&] { return path_of(client->target()); });
}

PyObject* is_closed(PyObject* self, void*) {
  return PyBool_FromLong(object_of(self).client ? 0 : 1);
}

PyMethodDef g_methods[] = {
    {"expires", as_method(expires), METH_FASTCALL | METH_KEYWORDS, kExpiresHelpOfClient},
    {"start", as_method(start), METH_FASTCALL,
     "start($self, timeout=None, /)\n--\n\n"
     "Starts the one timer of the whole job, named 'job', or renews it.\n\n"
     "timeout: seconds or a timedelta; None: the server's --default-timeout.\n"
     "Raises InvalidArgument, also when the server has no default, and TimerError."},
    {"stop", stop, METH_NOARGS,
     "stop($self, /)\n--\n\n"
     "Ends the timer of start(). Returns False if it was not open, or if the verdict came first."},
    {"close", close_client, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Ends the client and releases the timer of start(). An open scope stays watched until it is\n"
     "left. A scope that is entered later is not watched, and requests raise TimerError."},
    {"_connect", connect, METH_VARARGS, nullptr},
    {"_stacks_file", stacks_file, METH_NOARGS, nullptr},
    {"_offer_stacks", offer_stacks, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_properties[] = {
    {"is_watched", is_watched, nullptr, "Whether a server reads the pipe now (bool).", nullptr},
    {"target", target, nullptr, "The path of the server's request pipe, for messages (str).",
     nullptr},
    {"closed", is_closed, nullptr, "Whether close() was called (bool).", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// Makes the default client. Returns false if an error is set.
[[gnu::cold]] bool configure() {
  const Ref module(PyImport_ImportModule("filetimer._client"));
  const Ref made(module ? PyObject_CallMethod(module.get(), "_make_default", nullptr) : nullptr);
  return static_cast<bool>(made);
}

// At its end the interpreter imports no module, and a destructor may still enter a scope: that one
// is not watched, or offers no stacks.
void forgive_import_at_end() {
  if (PyErr_ExceptionMatches(PyExc_ImportError) != 0) {
    PyErr_Clear();
  }
}

}  // namespace

bool add_client_type(PyObject* module) {
  PyType_Slot slots[] = {{Py_tp_new, as_slot(new_client)},
                         {Py_tp_dealloc, as_slot(dealloc_client)},
                         {Py_tp_methods, g_methods},
                         {Py_tp_getset, g_properties},
                         {0, nullptr}};
  PyType_Spec spec = {"filetimer._native.Client", sizeof(ClientObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  g_client_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return g_client_type != nullptr && PyModule_AddType(module, g_client_type) == 0;
}

TimerClient* open_client(PyObject* client) {
  if (client == nullptr) {
    if (g_default_client == nullptr && !configure()) [[unlikely]] {
      forgive_import_at_end();
      return nullptr;
    }
    client = g_default_client;
  }
  return object_of(client).client.get();
}

PyObject* default_client(PyObject*, PyObject*) {
  return g_default_client == nullptr && !configure() ? nullptr : Py_NewRef(g_default_client);
}

PyObject* set_default_client(PyObject*, PyObject* client) {
  if (PyObject_TypeCheck(client, g_client_type) == 0) {
    return PyErr_Format(PyExc_TypeError, "expected a Client");
  }
  const Ref last(std::exchange(g_default_client, Py_NewRef(client)));
  Py_RETURN_NONE;
}

PyObject* has_default_client(PyObject*, PyObject*) {
  return PyBool_FromLong(g_default_client == nullptr ? 0 : 1);
}

PyObject* rpc_timeout_of_environment(PyObject*, PyObject*) {
  return guarded([] {
    const auto timeout = filetimer::rpc_timeout_of_environment();
    if (!timeout) {
      throw InvalidArgument(timeout.error().message);
    }
    return seconds_of(*timeout).release();
  });
}

PyObject* is_stacks_file_kept(PyObject*, PyObject* number) {
  int signal = 0;
  return to_int(number, "the signal", 1, 64, signal)
             ? PyBool_FromLong(stacks_offers.is_same(signal) ? 1 : 0)
             : nullptr;
}

bool offer_stacks_in_child(PyObject* client) {
  client = client == nullptr ? g_default_client : client;
  ClientObject& object = object_of(client);
  if (object.offered_in == 0 || object.offered_in == fork_watch::count()) [[likely]] {
    return true;
  }
  return guarded(false, [&] {
    if (!object.client || object.client->stacks_file().empty()) {
      return true;  // a scope that is not watched makes no page, which has the file
    }
    object.offered_in = fork_watch::count();
    const Ref module(PyImport_ImportModule("filetimer._stacks"));
    const Ref result(module ? PyObject_CallMethod(module.get(), "offer", "O", client) : nullptr);
    if (!module) {
      forgive_import_at_end();
    }
    return PyErr_Occurred() == nullptr;
  });
}

}  // namespace filetimer::python
