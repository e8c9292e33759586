// filetimer._native.Client: a TimerClient that Python holds. What takes no time is a method as
// users see it; questions and set-up have a leading underscore, take and give plain values, and get
// their Python face in filetimer/_client.py.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>
#include <memory>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

struct ClientObject {
  PyObject_HEAD
      // Null: closed. With the GIL; who lets go of it copies this first, so that close() in another
      // thread takes nothing away.
      std::shared_ptr<TimerClient>
          client;
};

extern PyTypeObject* g_client_type;
// Made by configure(); null: nobody has called it.
extern PyObject* g_default_client;

bool add_client_type(PyObject* module);

// `client`: a ClientObject, or null for the default one. Null: an error is set.
TimerClient* open_client(PyObject* client);

// Python's own signal handlers run; throws PythonError where one of them raised.
void let_handlers_run();

// No callback of on_shutdown() runs any more, nor begins to. At the interpreter's end: a thread of
// the library's must not ask for a GIL that is no more.
PyObject* end_callbacks(PyObject*, PyObject*);

}  // namespace filetimer::python
