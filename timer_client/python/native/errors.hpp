// Converts the C++ client's errors to Python's, whose classes are in filetimer/errors.py.
// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <type_traits>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

// Thrown if Python's error is set already.
class PythonError : public std::exception {};

struct ErrorClasses {
  PyObject* timer_error = nullptr;
  PyObject* server_unavailable = nullptr;
  PyObject* invalid_argument = nullptr;
};
extern ErrorClasses g_errors;

// Imports the classes. Returns false if an error is set.
bool import_errors();

// Sets the Python error for the exception that is being handled.
void set_error_of_exception();

// Returns what `call` returns. If it throws, sets the error and returns `failed`.
template <class Call, class Value>
Value guarded(Value failed, Call&& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    block_until_exit();
  } catch (...) {
    set_error_of_exception();
    return failed;
  }
}

}  // namespace filetimer::python
