// SPDX-License-Identifier: MIT
#include "timer_client/python/native/paused.hpp"

#include <filetimer/timer_client.hpp>
#include <new>

#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/scope.hpp"
#include "timer_client/python/native/values.hpp"

namespace filetimer::python {
namespace {

struct PausedObject {
  PyObject_HEAD PyObject* client;  // null: the default one
  Name* name;
  UnlimitedRegion* region;  // null: not entered
  unsigned long thread;
};

PyTypeObject* g_paused_type = nullptr;

PausedObject& as_paused(PyObject* self) {
  return *reinterpret_cast<PausedObject*>(self);
}

PyObject* make_paused(PyObject* client, PyObject* const* args, Py_ssize_t count) {
  if (count > 1) {
    PyErr_SetString(PyExc_TypeError, "paused() takes at most one argument, a name");
    return nullptr;
  }
  Name name;
  const bool is_named = count == 1 && args[0] != Py_None;
  if (!(is_named ? to_name(args[0], name) : name_of_caller(name))) {
    return nullptr;
  }
  PyObject* const self = g_paused_type->tp_alloc(g_paused_type, 0);
  if (self != nullptr) {
    Py_XINCREF(client);
    as_paused(self).client = client;
    as_paused(self).name = new (std::nothrow) Name(std::move(name));
    if (as_paused(self).name == nullptr) {
      Py_DECREF(self);
      return PyErr_NoMemory();
    }
  }
  return self;
}

void dealloc_paused(PyObject* self) {
  delete as_paused(self).region;
  delete as_paused(self).name;
  Py_XDECREF(as_paused(self).client);
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* enter(PyObject* self, PyObject*) {
  PausedObject& paused = as_paused(self);
  if (paused.region != nullptr) {
    PyErr_SetString(g_errors.timer_error,
                    "this paused() context is open already: it can't be entered twice");
    return nullptr;
  }
  TimerClient* const client = open_client(paused.client);
  if (client == nullptr) {
    return nullptr;
  }
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    const Name& name = *paused.name;
    paused.region = new UnlimitedRegion(
        client->unlimited({name.text, name.line == 0 ? name.size : 0}, name.text, name.line));
    paused.thread = PyThread_get_thread_ident();
    return offer_stacks_if_wanted(paused.client) ? Py_NewRef(self) : nullptr;
  });
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  PausedObject& paused = as_paused(self);
  if (paused.region == nullptr) {
    PyErr_SetString(g_errors.timer_error, "this paused() context was not entered");
    return nullptr;
  }
  const bool is_here = paused.thread == PyThread_get_thread_ident();
  delete std::exchange(paused.region, nullptr);
  if (!is_here) {
    PyErr_SetString(g_errors.timer_error,
                    "a paused() context is left in another thread than it was entered in: it was "
                    "ended");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {{"__enter__", enter, METH_NOARGS, "Time stands still from here on."},
                           {"__exit__", as_method(leave), METH_FASTCALL, "Time goes on."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* paused(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return make_paused(nullptr, args, count);
}

PyObject* paused_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return make_paused(self, args, count);
}

bool add_paused_type(PyObject* module) {
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("What paused() makes: a context.")},
                         {Py_tp_dealloc, as_slot(dealloc_paused)},
                         {Py_tp_methods, g_methods},
                         {0, nullptr}};
  PyType_Spec spec = {"filetimer.Paused", sizeof(PausedObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  g_paused_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return g_paused_type != nullptr && PyModule_AddType(module, g_paused_type) == 0;
}

}  // namespace filetimer::python
