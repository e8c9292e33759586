// A Python module with one object, `context`, which does nothing on entry and exit: the cost of
// `with` alone.
// SPDX-License-Identifier: MIT
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace {

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}

PyObject* leave(PyObject*, PyObject* const*, Py_ssize_t) {
  Py_RETURN_NONE;
}

PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_methods[] = {{"__enter__", enter, METH_NOARGS, nullptr},
                           {"__exit__", as_method(leave), METH_FASTCALL, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "noop_context",
                        nullptr,
                        -1,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_noop_context() {
  PyType_Slot slots[] = {{Py_tp_methods, g_methods}, {0, nullptr}};
  PyType_Spec spec = {"noop_context.Context", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* const module = PyModule_Create(&g_module);
  PyObject* const type = PyType_FromSpec(&spec);
  PyObject* const context = type == nullptr ? nullptr : PyObject_CallNoArgs(type);
  if (module == nullptr || context == nullptr ||
      PyModule_AddObject(module, "context", context) != 0) {
    return nullptr;
  }
  return module;
}
