// Converts Python's arguments to checked values in the C++ client's units, and results and errors
// back. A function that fails sets an error: TypeError for a wrong type, filetimer.InvalidArgument
// for a value out of bounds. The classes of errors are in filetimer/errors.py.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filetimer/timeout.hpp>
#include <optional>
#include <string>
#include <utility>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

using std::chrono::nanoseconds;

// --- errors ---

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

void set_error(PyObject* type, const std::string& message);
// Sets a TypeError: "WHAT is a TYPE: EXPECTED". Returns null.
PyObject* set_type_error(const char* what, PyObject* value, const char* expected);
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
template <class Call>
PyObject* guarded(Call&& call) {
  return guarded(static_cast<PyObject*>(nullptr), std::forward<Call>(call));
}

// --- values ---

// Converts a timeout: seconds as int or float, or a timedelta; over zero, at most 1e9 s, or
// infinity for none. `what` names it in the message: "the timeout". With `may_be_zero`, zero is
// allowed.
bool to_timeout(PyObject* value, const char* what, Timeout& timeout, bool may_be_zero = false);
// As to_timeout(), but None (or null) gives no value.
bool to_optional_timeout(PyObject* value, const char* what, std::optional<Timeout>& timeout,
                         bool may_be_zero = false);
// Converts the arguments of a `method` that takes a timeout or nothing.
bool to_only_timeout(const char* method, PyObject* const* args, Py_ssize_t count,
                     std::optional<Timeout>& timeout);
bool to_int(PyObject* value, const char* what, int lowest, int highest, int& number);

// A name as the library expects it: UTF-8 that lives as long as `owner` does, without NUL and lone
// surrogates, and not empty.
struct Name {
  Ref owner;
  const char* text = nullptr;
  std::size_t size = 0;
  int line = 0;  // not 0: `text` is a file, NUL at its end, and the name is "FILE:LINE"
};
bool to_name(PyObject* value, Name& name);
// Sets `name` to the file and line of the calling Python code.
bool name_of_caller(Name& name);

// Returns text of this or of other processes; bytes that are not UTF-8 are escaped.
Ref text_of(const std::string& text);
// Returns the seconds as a float; infinity for kNoDeadline.
Ref seconds_of(nanoseconds duration);

}  // namespace filetimer::python
