// Sends a signal so that the main thread notices it. The kernel may deliver a process's signal to
// any thread, but only in the main thread does it interrupt the system call in which Python waits.
// Python also has a race: it notices a signal that arrives between its check for signals and the
// system call only when the call ends. The race is wide if threads compete for the GIL. So the
// signal is sent to the main thread, and again every 50 ms until Python's handler runs.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

// Returns whether the signal has its default action: neither Python nor other code handles or
// ignores it.
PyObject* is_free_signal(PyObject*, PyObject* number);

// Sends the signal to the main thread from now on, in this process; a forked child must call it
// again. Python's handler must be installed already.
PyObject* send_to_main_thread(PyObject*, PyObject* number);

// Stops sending the signal. Python's handler calls this when it runs.
PyObject* stop_signalling_main_thread(PyObject*, PyObject*);

}  // namespace filetimer::python
