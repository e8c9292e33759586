// A signal that the main thread is sure to notice. The kernel may give a process's signal to any of
// its threads, but only in the main one it ends the system call that Python waits in; and one that
// comes after Python has looked for signals, and before that call has begun, would be noticed when
// the call ends: Python's own race, and wide where threads compete for the GIL. So the signal goes
// to the main thread, and again, every 50 ms, until Python's handler runs.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

// Whether nobody in this process, Python or not, handles or ignores a signal.
PyObject* is_free_signal(PyObject*, PyObject* number);

// From now on, in this process; once more in a forked child. Its handler is Python's already.
PyObject* send_to_main_thread(PyObject*, PyObject* number);

// Python's handler runs, and has seen what it was called for.
PyObject* stop_signalling_main_thread(PyObject*, PyObject*);

}  // namespace filetimer::python
