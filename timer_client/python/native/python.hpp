// Python.h as this extension uses it: first in every file, with the ways in and out of the
// interpreter's lock (the GIL). Who holds a lock of the library's never asks for the GIL, and
// whoever waits, for an answer or for a thread, lets go of the GIL first: so neither fork(), which
// takes the library's lock, nor two threads can lock each other out.
// SPDX-License-Identifier: MIT
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace filetimer::python {

// One reference, given back at the end. Null: an error is set, or there is none.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  [[nodiscard]] PyObject* get() const { return object_; }
  [[nodiscard]] PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// When the interpreter has ended, CPython before 3.14 ends a daemon thread that asks for the GIL,
// by unwinding its stack: through destructors, which must not, and with objects that must not be
// touched any more. Such a thread stands still instead, as later ones do, until the process ends.
[[noreturn]] inline void stand_still() {
  for (;;) {
    ::pause();
  }
}
template <class Call>
auto unless_python_has_ended(Call&& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    stand_still();
  }
}

// For as long as it lives other threads run Python. Not to be touched then: any object of Python's.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    unless_python_has_ended([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

// For a thread that may not be Python's.
class WithGil {
 public:
  WithGil() : state_(unless_python_has_ended([] { return PyGILState_Ensure(); })) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// A function of C's as CPython's tables want it.
template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}
template <class Function>
void* as_slot(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace filetimer::python
