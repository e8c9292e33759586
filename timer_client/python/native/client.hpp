// filetimer._native.Client: a TimerClient as a Python object. Members with a leading underscore
// take and return plain values; filetimer/_client.py and filetimer/admin.py are their public
// interface.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

extern PyTypeObject* g_client_type;

bool add_client_type(PyObject* module);

// Returns the TimerClient of `client`, or of the default client if that is null; calls configure()
// if there is none. Null: the client is closed, or an error is set, which only the default client's
// first use can do.
TimerClient* open_client(PyObject* client);

// Functions of the module that return the default client, which they make, and set it.
PyObject* default_client(PyObject*, PyObject*);
PyObject* set_default_client(PyObject*, PyObject* client);
PyObject* has_default_client(PyObject*, PyObject*);

// Returns $FILETIMER_RPC_TIMEOUT, else its default, in seconds.
PyObject* rpc_timeout_of_environment(PyObject*, PyObject*);

// Returns whether the descriptor to which the stacks of a signal are written is still that file's:
// the file is another one once the page has been made anew.
PyObject* is_stacks_file_kept(PyObject*, PyObject* number);

// Offers the stacks of a forked child, which has closed its parent's stacks file, if that is
// possible, and if the client is to do so and has not done it in this process. Returns false if a
// signal handler has set an error.
bool offer_stacks_in_child(PyObject* client);

}  // namespace filetimer::python
