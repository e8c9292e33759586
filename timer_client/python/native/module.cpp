// filetimer._native: the C++ client for the package filetimer, and the code whose cost matters:
// Scope and expires(). Everything else is Python. The module uses CPython's API directly, so that
// `with scope:` costs little more than an empty context manager (tests/bench/python_scopes.py).
// SPDX-License-Identifier: MIT
#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/main_thread.hpp"
#include "timer_client/python/native/python.hpp"
#include "timer_client/python/native/scope.hpp"
#include "timer_client/python/native/values.hpp"

namespace {

using namespace filetimer::python;

// Returns the value in seconds, checked as a timeout; `what` names it in the error.
PyObject* checked_seconds(PyObject*, PyObject* const* args, Py_ssize_t count) {
  filetimer::Timeout timeout{nanoseconds{}};
  const char* const what = count == 2 ? PyUnicode_AsUTF8AndSize(args[1], nullptr) : "the timeout";
  if (what == nullptr || !to_timeout(count == 0 ? Py_None : args[0], what, timeout)) {
    return nullptr;
  }
  return seconds_of(timeout.value()).release();
}

// Returns null, with an error set, in another interpreter than the main one.
PyObject* check_interpreter(PyObject*, PyObject*) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "filetimer works in the main interpreter only");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"expires", as_method(expires), METH_FASTCALL | METH_KEYWORDS, kExpiresHelp},
    {"_default_client", default_client, METH_NOARGS, nullptr},
    {"_set_default_client", set_default_client, METH_O, nullptr},
    {"_has_default_client", has_default_client, METH_NOARGS, nullptr},
    {"_check_interpreter", check_interpreter, METH_NOARGS, nullptr},
    {"_seconds", as_method(checked_seconds), METH_FASTCALL, nullptr},
    {"_child_offers_stacks", child_offers_stacks, METH_NOARGS, nullptr},
    {"_is_stacks_file_kept", is_stacks_file_kept, METH_O, nullptr},
    {"_rpc_timeout_of_environment", rpc_timeout_of_environment, METH_NOARGS, nullptr},
    {"_is_free", is_free_signal, METH_O, nullptr},
    {"_send_to_main_thread", send_to_main_thread, METH_O, nullptr},
    {"_stop_sending", stop_signalling_main_thread, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef g_definition = {PyModuleDef_HEAD_INIT,
                            "filetimer._native",
                            "The compiled part of the package filetimer.",
                            -1,
                            g_functions,
                            nullptr,
                            nullptr,
                            nullptr,
                            nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  const Ref checked(check_interpreter(nullptr, nullptr));
  Ref module(checked ? PyModule_Create(&g_definition) : nullptr);
  if (!module || !import_errors() || !add_client_type(module.get()) ||
      !add_scope_type(module.get())) {
    return nullptr;
  }
  return module.release();
}
