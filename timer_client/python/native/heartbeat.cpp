// SPDX-License-Identifier: MIT
#include "timer_client/python/native/heartbeat.hpp"

#include <filetimer/timer_client.hpp>
#include <new>

#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/scope.hpp"
#include "timer_client/python/native/values.hpp"

namespace filetimer::python {
namespace {

struct HeartbeatObject {
  PyObject_HEAD TimerHeartbeat* timer;
};

PyTypeObject* g_heartbeat_type = nullptr;

TimerHeartbeat& timer_of(PyObject* self) {
  return *reinterpret_cast<HeartbeatObject*>(self)->timer;
}

PyObject* open_heartbeat(PyObject* client_or_null, PyObject* const* args, Py_ssize_t count,
                         PyObject* names) {
  PyObject* given[] = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  const char* words[] = {"timeout",    "name",          "signal", "grace",
                         "warn_after", "first_timeout", nullptr};
  const Ref tuple(PyTuple_New(count));
  const Ref dict(PyDict_New());
  if (!tuple || !dict) {
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  }
  for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); ++i) {
    if (PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(names, i), args[count + i]) != 0) {
      return nullptr;
    }
  }
  if (PyArg_ParseTupleAndKeywords(tuple.get(), dict.get(), "O|O$OOOO:heartbeat",
                                  const_cast<char**>(words), &given[0], &given[1], &given[2],
                                  &given[3], &given[4], &given[5]) == 0) {
    return nullptr;
  }
  const auto is_given = [](PyObject* value) { return value != nullptr && value != Py_None; };
  nanoseconds timeout{};
  Name name;
  ScopeOptions options;
  if (!to_timeout(given[0], "the timeout", timeout) ||
      !(is_given(given[1]) ? to_name(given[1], name) : name_of_caller(name)) ||
      (is_given(given[2]) && !to_int(given[2], "the signal", 0, 64, options.signal)) ||
      !to_optional_timeout(given[3], "the grace", options.grace, true) ||
      !to_optional_timeout(given[4], "warn_after", options.warn_after) ||
      !to_optional_timeout(given[5], "the first_timeout", options.first_timeout)) {
    return nullptr;
  }
  TimerClient* const client = open_client(client_or_null);
  if (client == nullptr) {
    return nullptr;
  }
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    auto timer = std::make_unique<TimerHeartbeat>(client->heartbeat(
        timeout, {name.text, name.line == 0 ? name.size : 0}, options, name.text, name.line));
    PyObject* const self = g_heartbeat_type->tp_alloc(g_heartbeat_type, 0);
    if (self == nullptr) {
      return nullptr;
    }
    reinterpret_cast<HeartbeatObject*>(self)->timer = timer.release();
    if (!offer_stacks_if_wanted(client_or_null)) {
      Py_DECREF(self);
      return nullptr;
    }
    return self;
  });
}

void dealloc_heartbeat(PyObject* self) {
  delete reinterpret_cast<HeartbeatObject*>(self)->timer;  // releases it
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* beat(PyObject* self, PyObject*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return PyBool_FromLong(timer_of(self).beat() ? 1 : 0); });
}

PyObject* release(PyObject* self, PyObject*) {
  return PyBool_FromLong(timer_of(self).release() ? 1 : 0);
}

PyObject* pause(PyObject* self, PyObject*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return PyBool_FromLong(timer_of(self).pause() ? 1 : 0); });
}

PyObject* resume(PyObject* self, PyObject*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return PyBool_FromLong(timer_of(self).resume() ? 1 : 0); });
}

PyObject* times(PyObject* self, PyObject*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return times_or_none(timer_of(self).times()); });
}

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  timer_of(self).release();
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {
    {"__enter__", enter, METH_NOARGS, "The heartbeat itself, which is open already."},
    {"__exit__", as_method(leave), METH_FASTCALL, "Release it."},
    {"beat", beat, METH_NOARGS,
     "beat($self, /)\n--\n\n"
     "Push the deadline to `timeout` from now. False when it is not open any more: it expired, or\n"
     "was released."},
    {"release", release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "End it. False when it was not open, or when the server's verdict came first."},
    {"pause", pause, METH_NOARGS,
     "pause($self, /)\n--\n\nIts time stands still until resume(). False when it is not open."},
    {"resume", resume, METH_NOARGS,
     "resume($self, /)\n--\n\nIts time goes on. False when it is not open."},
    {"times", times, METH_NOARGS,
     "times($self, /)\n--\n\n"
     "Times(elapsed, remaining, paused, expired) in seconds; None when it is not open."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* heartbeat(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return open_heartbeat(nullptr, args, count, names);
}

PyObject* heartbeat_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                              PyObject* names) {
  return open_heartbeat(self, args, count, names);
}

bool add_heartbeat_type(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("An open timer that each beat() renews; see heartbeat(). "
                                    "Released when the object goes.")},
      {Py_tp_dealloc, as_slot(dealloc_heartbeat)},
      {Py_tp_methods, g_methods},
      {0, nullptr}};
  PyType_Spec spec = {"filetimer.Heartbeat", sizeof(HeartbeatObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  g_heartbeat_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return g_heartbeat_type != nullptr && PyModule_AddType(module, g_heartbeat_type) == 0;
}

}  // namespace filetimer::python
