// filetimer.Heartbeat: a timer that each beat() renews.
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

bool add_heartbeat_type(PyObject* module);

PyObject* heartbeat(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* heartbeat_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                              PyObject* names);

#define FILETIMER_HEARTBEAT_SIGNATURE \
  "timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None)\n--\n\n"

inline constexpr const char* kHeartbeatHelp =
    "heartbeat($module, " FILETIMER_HEARTBEAT_SIGNATURE
    "A timer that is open at once and expires when its beat() does not come for `timeout`: for a\n"
    "loop that has no natural end to wrap a scope around.\n\n"
    "    with filetimer.heartbeat(60, 'queue', first_timeout=600) as heart:\n"
    "        for item in queue:\n"
    "            heart.beat()\n\n"
    "first_timeout: seconds in place of `timeout` until the first beat. The other arguments and\n"
    "the errors are those of expires().";
inline constexpr const char* kHeartbeatHelpOfClient =
    "heartbeat($self, " FILETIMER_HEARTBEAT_SIGNATURE "As filetimer.heartbeat(), of this client.";

}  // namespace filetimer::python
