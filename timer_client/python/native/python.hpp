// Includes Python.h, first in every file, and has guards for the interpreter's lock (the GIL). A
// thread that holds a lock of the library never acquires the GIL. A thread that waits for an answer
// or for another thread releases the GIL first. So neither two threads nor fork(), which takes the
// library's lock, can deadlock.
// SPDX-License-Identifier: MIT
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace filetimer::python {

// Owns one reference. Null: an error is set, or it has no object.
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

// After the interpreter has ended, CPython before 3.14 ends a daemon thread that acquires the GIL
// by unwinding its stack: through destructors, which must not be unwound, and with objects that
// must not be used any more. Such a thread blocks here until the process ends, as in later
// versions.
[[noreturn]] inline void block_until_exit() {
  for (;;) {
    ::pause();
  }
}
template <class Call>
auto unless_python_has_ended(Call&& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    block_until_exit();
  }
}

// Releases the GIL while the object lives. No Python object may be used meanwhile.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { restore(); }

  // Holds the GIL during `call`. Restores the state of this thread: PyGILState_Ensure() would make
  // a new one in an interpreter that may have ended meanwhile.
  template <class Call>
  auto with_gil(Call&& call) {
    restore();
    const auto result = call();
    state_ = PyEval_SaveThread();
    return result;
  }

 private:
  void restore() {
    unless_python_has_ended([this] { PyEval_RestoreThread(state_); });
  }

  PyThreadState* state_;
};

// Converts a C function to the type that CPython's tables have.
template <class Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}
template <class Function>
void* as_slot(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace filetimer::python
