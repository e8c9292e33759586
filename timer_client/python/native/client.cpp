// SPDX-License-Identifier: MIT
#include "timer_client/python/native/client.hpp"

#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/heartbeat.hpp"
#include "timer_client/python/native/paused.hpp"
#include "timer_client/python/native/scope.hpp"
#include "timer_client/python/native/values.hpp"

namespace filetimer::python {

PyTypeObject* g_client_type = nullptr;
PyObject* g_default_client = nullptr;

namespace {

// How long Ctrl-C may go unheard while a question is under way.
constexpr std::chrono::milliseconds kSignalPeriod{50};

ClientObject& as_client(PyObject* self) {
  return *reinterpret_cast<ClientObject*>(self);
}

// --- callbacks ---

// What on_shutdown() calls, from a thread of the library's. The lock is held while it runs, and
// whoever wants it has let go of the GIL.
class Callback {
 public:
  explicit Callback(PyObject* function) : function_(Ref::to(function)) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() {
    if (is_ended_) {
      (void)function_.release();  // the interpreter may be gone
    } else {
      const WithGil gil;
      function_ = Ref();
    }
  }

  void call() {
    const std::lock_guard held(lock_);
    if (is_ended_) {
      return;
    }
    const WithGil gil;
    const Ref result(PyObject_CallNoArgs(function_.get()));
    if (!result) {
      PyErr_WriteUnraisable(function_.get());
    }
  }

  // Without the GIL. In a forked child the lock may be one that nobody will give back.
  void end() {
    if (made_by_ == ::getpid()) {
      const std::lock_guard held(lock_);
      is_ended_ = true;
    }
  }

 private:
  Ref function_;
  std::mutex lock_;
  bool is_ended_ = false;
  const pid_t made_by_ = ::getpid();
};

// All that may still be called. With the GIL.
std::vector<std::weak_ptr<Callback>>& callbacks() {
  static auto& all = *new std::vector<std::weak_ptr<Callback>>;
  return all;
}

bool g_is_ending = false;  // with the GIL

// --- life ---

PyObject* new_client(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    new (&as_client(self).client) std::shared_ptr<TimerClient>();
  }
  return self;
}

// The client's end waits for a callback that runs, which may want the GIL.
void let_go(std::shared_ptr<TimerClient>& client) {
  if (client) {
    const auto last = std::move(client);
    client.reset();
    const WithoutGil free;
    const auto ends_here = std::move(last);
  }
}

void dealloc_client(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject* type_of_error = nullptr;
  PyObject* error = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type_of_error, &error, &trace);
  let_go(as_client(self).client);
  as_client(self).client.~shared_ptr();
  PyErr_Restore(type_of_error, error, trace);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* connect(PyObject* self, PyObject* args) {
  const char* dir = nullptr;
  const char* fifo = nullptr;
  PyObject* timeout = nullptr;
  int is_unwatched_allowed = 0;
  int statistics = 0;
  PyObject* rpc_timeout = nullptr;
  PyObject* idle_timeout = nullptr;
  if (PyArg_ParseTuple(args, "ssOppOO", &dir, &fifo, &timeout, &is_unwatched_allowed, &statistics,
                       &rpc_timeout, &idle_timeout) == 0) {
    return nullptr;
  }
  ConnectOptions options;
  options.dir = dir;
  options.fifo = fifo;
  options.when_missing = is_unwatched_allowed != 0 ? ConnectOptions::Missing::kUnwatched
                                                   : ConnectOptions::Missing::kThrow;
  options.statistics = statistics != 0;
  std::optional<nanoseconds> patience;
  std::optional<nanoseconds> idle;
  if (!to_optional_timeout(timeout, "the timeout of configure()", patience, true) ||
      !to_rpc_timeout(rpc_timeout, options.rpc_timeout) ||
      !to_optional_timeout(idle_timeout, "the idle_timeout", idle)) {
    return nullptr;
  }
  // The client adds it to a time; an end that nobody lives to see.
  constexpr nanoseconds kLongestPatience = std::chrono::seconds{1'000'000'000};
  options.timeout = std::min(patience.value_or(options.timeout), kLongestPatience);
  options.idle_timeout = idle.value_or(nanoseconds{0});
  options.while_waiting = [] {
    const WithGil gil;
    let_handlers_run();
  };
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    std::shared_ptr<TimerClient> made;
    {
      const WithoutGil free;
      made = std::make_shared<TimerClient>(TimerClient::connect(std::move(options)));
    }
    let_go(as_client(self).client);
    as_client(self).client = std::move(made);
    Py_RETURN_NONE;
  });
}

PyObject* close_client(PyObject* self, PyObject*) {
  let_go(as_client(self).client);
  Py_RETURN_NONE;
}

// --- questions ---

template <class Value>
Value answer_of(std::future<Value> future) {
  for (;;) {
    bool is_there = false;
    {
      const WithoutGil free;
      is_there = future.wait_for(kSignalPeriod) == std::future_status::ready;
    }
    if (is_there) {
      return future.get();
    }
    let_handlers_run();
  }
}

// Asks, and makes a Python value of the answer. The thread that runs Python's signal handlers lets
// a thread of the library's wait, and hears of Ctrl-C; what it has asked goes on then.
template <class Now, class Async, class Convert>
PyObject* ask(PyObject* self, Now&& now, Async&& async, Convert&& convert) {
  if (open_client(self) == nullptr) {
    return nullptr;
  }
  const std::shared_ptr<TimerClient> client = as_client(self).client;
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    if (::gettid() == ::getpid()) {
      return convert(answer_of(async(*client)));
    }
    const auto answer = [&] {
      const WithoutGil free;
      return now(*client);
    }();
    return convert(answer);
  });
}

PyObject* ping(PyObject* self, PyObject* timeout_or_none) {
  RpcTimeout timeout;
  if (!to_rpc_timeout(timeout_or_none, timeout)) {
    return nullptr;
  }
  if (open_client(self) == nullptr) {
    return nullptr;
  }
  const std::shared_ptr<TimerClient> client = as_client(self).client;
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    if (::gettid() == ::getpid()) {
      answer_of(client->ping_async(timeout));
    } else {
      const WithoutGil free;
      client->ping(timeout);
    }
    Py_RETURN_NONE;
  });
}

PyObject* status(PyObject* self, PyObject* timeout_or_none) {
  RpcTimeout timeout;
  if (!to_rpc_timeout(timeout_or_none, timeout)) {
    return nullptr;
  }
  return ask(
      self, [&](TimerClient& client) { return client.status(timeout); },
      [&](TimerClient& client) { return client.status_async(timeout); },
      [](const ServerStatus& found) -> PyObject* {
        const Ref made(PyDict_New());
        const auto put = [&made](const char* key, const Ref& value) {
          return made && value && PyDict_SetItemString(made.get(), key, value.get()) == 0;
        };
        const auto number = [](std::int64_t value) { return Ref(PyLong_FromLongLong(value)); };
        const bool is_whole =
            put("server_pid", number(found.server_pid)) &&
            put("server_version", text_of(found.server_version)) &&
            put("uptime", seconds_of(found.uptime)) && put("dir", text_of(found.dir)) &&
            put("fifo", text_of(found.fifo)) && put("log", text_of(found.log)) &&
            put("announcement", text_of(found.announcement)) &&
            put("workers", number(found.workers)) &&
            put("open_scopes", number(found.open_scopes)) &&
            put("requests", number(found.requests)) && put("rejected", number(found.rejected)) &&
            put("expired", number(found.expired)) && put("killed", number(found.killed)) &&
            put("kills_under_way", number(found.kills_under_way)) &&
            put("unkillable", number(found.unkillable)) && put("askers", number(found.askers)) &&
            put("descriptors", number(found.descriptors)) &&
            put("descriptor_limit", number(found.descriptor_limit)) &&
            put("worker_limit", number(found.worker_limit)) &&
            put("log_trouble", text_of(found.log_trouble)) &&
            put("command_pid", number(found.command_pid)) && put("json", text_of(found.json));
        return is_whole ? Py_NewRef(made.get()) : nullptr;
      });
}

PyObject* drain(PyObject* self, PyObject* args) {
  int on = 0;
  PyObject* timeout_or_none = nullptr;
  RpcTimeout timeout;
  if (PyArg_ParseTuple(args, "pO", &on, &timeout_or_none) == 0 ||
      !to_rpc_timeout(timeout_or_none, timeout)) {
    return nullptr;
  }
  return ask(
      self, [&](TimerClient& client) { return client.drain(on != 0, timeout); },
      [&](TimerClient& client) { return client.drain_async(on != 0, timeout); },
      [](const DrainResult& result) { return PyLong_FromLongLong(result.open_scope_count); });
}

PyObject* shutdown(PyObject* self, PyObject* args) {
  int graceful = 0;
  int workers = 0;
  int force = 0;
  PyObject* time = nullptr;
  PyObject* timeout_or_none = nullptr;
  RpcTimeout timeout;
  ShutdownOptions options;
  if (PyArg_ParseTuple(args, "pppOO", &graceful, &workers, &force, &time, &timeout_or_none) == 0 ||
      !to_timeout(time, "the timeout of shutdown()", options.timeout) ||
      !to_rpc_timeout(timeout_or_none, timeout)) {
    return nullptr;
  }
  options.graceful = graceful != 0;
  options.workers = workers != 0;
  options.force = force != 0;
  return ask(
      self, [&](TimerClient& client) { return client.shutdown(options, timeout); },
      [&](TimerClient& client) { return client.shutdown_async(options, timeout); },
      [](const ShutdownResult& result) { return PyLong_FromLongLong(result.open_scope_count); });
}

// (round, [(rank, pid), ...])
PyObject* meeting_of(const RendezvousResult& result) {
  const Ref joined(PyList_New(0));
  for (const RendezvousResult::Member& member : result.joined) {
    const Ref item(Py_BuildValue("(ii)", member.rank, static_cast<int>(member.pid)));
    if (!joined || !item || PyList_Append(joined.get(), item.get()) != 0) {
      return nullptr;
    }
  }
  return joined ? Py_BuildValue("(LO)", static_cast<long long>(result.round), joined.get())
                : nullptr;
}

PyObject* rendezvous(PyObject* self, PyObject* args) {
  PyObject* rank = nullptr;
  PyObject* world = nullptr;
  PyObject* time = nullptr;
  PyObject* name = nullptr;
  PyObject* retries = nullptr;
  PyObject* backoff = nullptr;
  PyObject* timeout_or_none = nullptr;
  RpcTimeout timeout;
  RendezvousOptions options;
  Name checked;
  constexpr int kMost = std::numeric_limits<int>::max();
  if (PyArg_ParseTuple(args, "OOOOOOO", &rank, &world, &time, &name, &retries, &backoff,
                       &timeout_or_none) == 0 ||
      !to_int(rank, "the rank", -1, kMost, options.rank) ||
      !to_int(world, "the world", 0, kMost, options.world) ||
      !to_timeout(time, "the timeout of rendezvous()", options.timeout) ||
      !to_name(name, checked) || !to_int(retries, "retries", 0, kMost, options.retries) ||
      !to_timeout(backoff, "the backoff", options.backoff) ||
      !to_rpc_timeout(timeout_or_none, timeout)) {
    return nullptr;
  }
  options.name.assign(checked.text, checked.size);
  return ask(
      self, [&](TimerClient& client) { return client.rendezvous(options, timeout); },
      [&](TimerClient& client) { return client.rendezvous_async(options, timeout); }, meeting_of);
}

PyObject* on_shutdown(PyObject* self, PyObject* function) {
  TimerClient* const client = open_client(self);
  if (client == nullptr) {
    return nullptr;
  }
  if (PyCallable_Check(function) == 0) {
    PyErr_Format(PyExc_TypeError, "on_shutdown() got a %.200s: expected a callable",
                 Py_TYPE(function)->tp_name);
    return nullptr;
  }
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    auto callback = std::make_shared<Callback>(function);
    if (!g_is_ending) {
      std::erase_if(callbacks(), [](const auto& each) { return each.expired(); });
      callbacks().push_back(callback);
      client->on_shutdown([callback] { callback->call(); });
    }
    return Py_NewRef(function);
  });
}

// --- the rest ---

PyObject* start(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  TimerClient* const client = open_client(self);
  std::optional<nanoseconds> timeout;
  if (client == nullptr ||
      !to_optional_timeout(count > 0 ? args[0] : nullptr, "the timeout", timeout)) {
    return nullptr;
  }
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    timeout ? client->start(*timeout) : client->start();
    Py_RETURN_NONE;
  });
}

PyObject* stop(PyObject* self, PyObject*) {
  TimerClient* const client = open_client(self);
  return client == nullptr ? nullptr : PyBool_FromLong(client->stop() ? 1 : 0);
}

PyObject* stacks_file(PyObject* self, PyObject*) {
  TimerClient* const client = open_client(self);
  return client == nullptr ? nullptr : guarded(static_cast<PyObject*>(nullptr), [&] {
    const std::string path = client->stacks_file();
    return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  });
}

PyObject* offer_stacks(PyObject* self, PyObject* number) {
  TimerClient* const client = open_client(self);
  int signal = 0;
  if (client == nullptr || !to_int(number, "the signal for stacks", 0, 64, signal)) {
    return nullptr;
  }
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return PyBool_FromLong(client->offer_stacks(signal) ? 1 : 0); });
}

PyObject* is_watched(PyObject* self, void*) {
  TimerClient* const client = open_client(self);
  return client == nullptr ? nullptr : PyBool_FromLong(client->is_watched() ? 1 : 0);
}

PyObject* target(PyObject* self, void*) {
  TimerClient* const client = open_client(self);
  return client == nullptr ? nullptr : guarded(static_cast<PyObject*>(nullptr), [&] {
    const std::string path = client->target();
    return PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
  });
}

PyObject* is_closed(PyObject* self, void*) {
  return PyBool_FromLong(as_client(self).client ? 0 : 1);
}

// Help of what is also a function of the package is there; see module.cpp.
PyMethodDef g_methods[] = {
    {"expires", as_method(expires_of_client), METH_FASTCALL | METH_KEYWORDS, kExpiresHelpOfClient},
    {"heartbeat", as_method(heartbeat_of_client), METH_FASTCALL | METH_KEYWORDS,
     kHeartbeatHelpOfClient},
    {"paused", as_method(paused_of_client), METH_FASTCALL, kPausedHelpOfClient},
    {"start", as_method(start), METH_FASTCALL,
     "start($self, timeout=None, /)\n--\n\n"
     "Start the one timer of the whole job, named 'job', or renew it.\n\n"
     "timeout: seconds or a timedelta; None: the server's --default-timeout.\n"
     "Raises InvalidArgument, also when the server has no default, and TimerError."},
    {"stop", stop, METH_NOARGS,
     "stop($self, /)\n--\n\n"
     "End the timer of start(). False when it was not open, or when the verdict came first."},
    {"close", close_client, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "End the client: what start() opened is released; an open scope stays watched until it is\n"
     "left. Waits for a callback of on_shutdown() that runs. Any other call raises TimerError\n"
     "from then on; to close it again does nothing."},
    {"_connect", connect, METH_VARARGS, nullptr},
    {"_ping", ping, METH_O, nullptr},
    {"_status", status, METH_O, nullptr},
    {"_drain", drain, METH_VARARGS, nullptr},
    {"_shutdown", shutdown, METH_VARARGS, nullptr},
    {"_rendezvous", rendezvous, METH_VARARGS, nullptr},
    {"_on_shutdown", on_shutdown, METH_O, nullptr},
    {"_stacks_file", stacks_file, METH_NOARGS, nullptr},
    {"_offer_stacks", offer_stacks, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_properties[] = {
    {"is_watched", is_watched, nullptr, "Whether a server is there now (bool).", nullptr},
    {"target", target, nullptr, "Where requests go, for messages: the server's pipe (str).",
     nullptr},
    {"closed", is_closed, nullptr, "Whether close() was called (bool).", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

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
    client = g_default_client;
    if (client == nullptr) {
      PyErr_SetString(g_errors.timer_error,
                      "filetimer.configure() has not been called in this process");
      return nullptr;
    }
  }
  TimerClient* const found = as_client(client).client.get();
  if (found == nullptr) {
    PyErr_SetString(g_errors.timer_error, "the client is closed");
  }
  return found;
}

void let_handlers_run() {
  if (PyErr_CheckSignals() != 0) {
    throw PythonError();
  }
}

PyObject* end_callbacks(PyObject*, PyObject*) {
  g_is_ending = true;
  const auto all = std::exchange(callbacks(), {});
  {
    const WithoutGil free;
    for (const auto& each : all) {
      if (const auto callback = each.lock()) {
        callback->end();
      }
    }
  }
  Py_RETURN_NONE;
}

}  // namespace filetimer::python
