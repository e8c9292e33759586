// filetimer._native: the C++ client for the package filetimer, which gives it its Python face.
// Against CPython's API alone: `with scope:` may cost little more than an empty context manager,
// and pybind11's dispatch alone costs more than that (see tests/bench/python_scopes.py).
// SPDX-License-Identifier: MIT
#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/heartbeat.hpp"
#include "timer_client/python/native/main_thread.hpp"
#include "timer_client/python/native/paused.hpp"
#include "timer_client/python/native/python.hpp"
#include "timer_client/python/native/scope.hpp"
#include "timer_client/python/native/values.hpp"

namespace {

using namespace filetimer::python;

PyObject* set_default_client(PyObject*, PyObject* client) {
  PyObject* const next = client == Py_None ? nullptr : client;
  if (next != nullptr && PyObject_TypeCheck(next, g_client_type) == 0) {
    PyErr_SetString(PyExc_TypeError, "expected a Client or None");
    return nullptr;
  }
  Py_XINCREF(next);
  PyObject* const last = std::exchange(g_default_client, next);
  Py_XDECREF(last);
  Py_RETURN_NONE;
}

PyObject* default_client(PyObject*, PyObject*) {
  return open_client(nullptr) == nullptr ? nullptr : Py_NewRef(g_default_client);
}

PyObject* check_timeout(PyObject*, PyObject* value) {
  nanoseconds timeout{};
  if (!to_timeout(value, "the timeout", timeout)) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"expires", as_method(expires), METH_FASTCALL | METH_KEYWORDS, kExpiresHelp},
    {"heartbeat", as_method(heartbeat), METH_FASTCALL | METH_KEYWORDS, kHeartbeatHelp},
    {"paused", as_method(paused), METH_FASTCALL, kPausedHelp},
    {"unlimited", as_method(paused), METH_FASTCALL,
     "unlimited($module, name=None, /)\n--\n\nAnother name of paused()."},
    {"_set_default_client", set_default_client, METH_O, nullptr},
    {"_default_client", default_client, METH_NOARGS, nullptr},
    {"_check_timeout", check_timeout, METH_O, nullptr},
    {"_end_callbacks", end_callbacks, METH_NOARGS, nullptr},
    {"_child_offers_stacks", child_offers_stacks, METH_NOARGS, nullptr},
    {"_send_to_main_thread", send_to_main_thread, METH_O, nullptr},
    {"_scope_signal", as_method(scope_signal), METH_FASTCALL, nullptr},
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
  Ref module(PyModule_Create(&g_definition));
  if (!module || !import_errors() || !add_client_type(module.get()) ||
      !add_scope_type(module.get()) || !add_heartbeat_type(module.get()) ||
      !add_paused_type(module.get())) {
    return nullptr;
  }
  return module.release();
}
