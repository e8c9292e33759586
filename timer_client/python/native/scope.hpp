// filetimer.Scope, and expires(), which makes one: the hot path, hence against CPython's own tables
// and without a look at anything but the object, the clock and the page. A scope that belongs to no
// client opens in the default one, also one that was made before configure().
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

bool add_scope_type(PyObject* module);

// Functions of the package and methods of a client.
PyObject* expires(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* expires_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                            PyObject* names);

// The time of all scopes that this asyncio task has open or opens stands still until the capsule
// that is returned goes. Of the task alone: those of other tasks in the thread go on.
PyObject* pause_task(PyObject*, PyObject*);

#define FILETIMER_SCOPE_SIGNATURE                                                       \
  "timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n" \
  "        on_expiry='kill')\n--\n\n"
#define FILETIMER_SCOPE_ARGUMENTS                                                                 \
  "timeout: seconds as a number, or a timedelta; over 0, at most 1e9 s. math.inf: no deadline.\n" \
  "name: what people see; any length, over 255 bytes it is shown cut. None: the caller's file\n"  \
  "  and line, as 'train.py:123'.\n"                                                              \
  "signal: what the server kills with, 1 to 64; 0: it records the expiry and kills no worker.\n"  \
  "grace: seconds from the signal to SIGKILL; None: the server's --grace; math.inf: never.\n"     \
  "warn_after: seconds after which the server records a warning; below timeout, at most 49\n"     \
  "  days. None: the server's --warn-at.\n"                                                       \
  "first_timeout: in place of timeout for the first scope of this name that is opened.\n"         \
  "on_expiry: 'kill', or 'raise': at the deadline ScopeExpired is raised in the main thread,\n"   \
  "  and the server kills only when the scope is not left within the grace. Python raises\n"      \
  "  between two bytecodes: native code that blocks runs until SIGKILL ends it. For scopes\n"     \
  "  of the main thread.\n\n"                                                                     \
  "Raises TypeError and InvalidArgument for wrong arguments; entering it raises TimerError\n"     \
  "when 1,024 scopes are open, or configure() has not been called.\n"

inline constexpr const char* kExpiresHelp =
    "expires($module, " FILETIMER_SCOPE_SIGNATURE
    "A Scope: the server kills this process when it is still open after `timeout`.\n\n"
    "    with filetimer.expires(30, 'forward'):\n"
    "        loss = model(batch)\n\n"
    "Also a decorator; each call of the function opens a scope of its "
    "own.\n\n" FILETIMER_SCOPE_ARGUMENTS;
inline constexpr const char* kExpiresHelpOfClient =
    "expires($self, " FILETIMER_SCOPE_SIGNATURE "As filetimer.expires(), of this client.";

}  // namespace filetimer::python
