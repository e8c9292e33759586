// filetimer.Scope, and expires(), which makes one. This is the hot path: it uses CPython's tables
// directly, and reads only the object, the clock and the page. A scope without a client opens in
// the default one, even if it was made before configure().
// SPDX-License-Identifier: MIT
#pragma once

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

bool add_scope_type(PyObject* module);

// Functions of the package and methods of a client.
PyObject* expires(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* expires_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                            PyObject* names);

#define FILETIMER_SCOPE_SIGNATURE                                                       \
  "timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n" \
  "        on_expiry='kill')\n--\n\n"
#define FILETIMER_SCOPE_ARGUMENTS                                                                 \
  "timeout: seconds as a number, or a timedelta; over 0, at most 1e9 s. math.inf: no deadline.\n" \
  "name: any length; a name over 255 bytes is shown cut. None: the caller's file\n"               \
  "  and line, as 'train.py:123'.\n"                                                              \
  "signal: the first signal of a kill, 1 to 64; 0: the server records the expiry only.\n"         \
  "grace: seconds from the signal to SIGKILL; None: the server's --grace; math.inf: never.\n"     \
  "warn_after: seconds after which the server records a warning; below timeout, at most 49\n"     \
  "  days. None: the server's --warn-at.\n"                                                       \
  "first_timeout: in place of timeout for the first scope of this name that is opened.\n"         \
  "on_expiry: 'kill', or 'raise': at the deadline ScopeExpired is raised in the main thread,\n"   \
  "  and the server kills only if the scope is not left within the grace. Python raises\n"        \
  "  between two bytecodes: native code that blocks runs until SIGKILL ends it. For scopes\n"     \
  "  of the main thread; the grace is more than 0 and not math.inf.\n\n"                          \
  "Raises TypeError and InvalidArgument for wrong arguments. Entering it calls configure() if\n"  \
  "the program has not. After close(), and while 1,024 scopes are open, it is not watched.\n"

inline constexpr const char* kExpiresHelp =
    "expires($module, " FILETIMER_SCOPE_SIGNATURE
    "Returns a Scope: the server kills this process if it is still open after `timeout`.\n\n"
    "    with filetimer.expires(30, 'forward'):\n"
    "        loss = model(batch)\n\n"
    "Also a decorator: each call of the function opens another "
    "scope.\n\n" FILETIMER_SCOPE_ARGUMENTS;
inline constexpr const char* kExpiresHelpOfClient =
    "expires($self, " FILETIMER_SCOPE_SIGNATURE "As filetimer.expires(), of this client.";

}  // namespace filetimer::python
