// filetimer.paused(): a region of a thread in which the time of its scopes stands still.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

bool add_paused_type(PyObject* module);

PyObject* paused(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* paused_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count);

inline constexpr const char* kPausedHelp =
    "paused($module, name=None, /)\n--\n\n"
    "A context in which the time of all scopes stands still that this thread has open or opens:\n\n"
    "    with filetimer.paused('checkpoint'):\n"
    "        save(model)\n\n"
    "name: of a scope without a deadline that tells where the thread is; None: the caller's file\n"
    "  and line. The server's --max-timeout holds on.\n\n"
    "Contexts may be nested, and are left in the thread that entered them. Raises as expires().";
inline constexpr const char* kPausedHelpOfClient =
    "paused($self, name=None, /)\n--\n\nAs filetimer.paused(), of this client.";

}  // namespace filetimer::python
