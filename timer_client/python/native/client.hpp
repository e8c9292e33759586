// filetimer._native.Client: a TimerClient that Python holds. Members with a leading underscore take
// and give plain values; filetimer/_client.py and filetimer/admin.py are their public face.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

extern PyTypeObject* g_client_type;

bool add_client_type(PyObject* module);

// `client`: a Client, or null for the default one. Null: an error is set.
TimerClient* open_client(PyObject* client);

// Functions of the module: the client of configure(), and the one that takes its place.
PyObject* default_client(PyObject*, PyObject*);
PyObject* set_default_client(PyObject*, PyObject* client_or_none);

// A forked child has closed what its parent had its stacks written to: it offers its own with the
// first scope, when it has a page. With the GIL.
PyObject* child_offers_stacks(PyObject*, PyObject*);
extern bool g_is_child_without_stacks;
// False: an error is set, which is a signal handler's: stacks that cannot be offered are none.
bool offer_stacks_in_child(PyObject* client);

}  // namespace filetimer::python
