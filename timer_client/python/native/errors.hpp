// The C++ client's errors as Python's; the classes themselves are in filetimer/errors.py.
// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <type_traits>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

// Thrown where Python's error is set already.
class PythonError : public std::exception {};

struct ErrorClasses {
  PyObject* timer_error = nullptr;
  PyObject* server_unavailable = nullptr;
  PyObject* invalid_argument = nullptr;
};
extern ErrorClasses g_errors;

// False: an error is set.
bool import_errors();

// In a handler: sets the Python error of what is being handled.
void set_error_of_exception();

// What `call` returns; `failed` where it throws, with the error set.
template <class Call, class Value>
Value guarded(Value failed, Call&& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    stand_still();
  } catch (...) {
    set_error_of_exception();
    return failed;
  }
}

}  // namespace filetimer::python
