// Converts Python's arguments to checked values in the C++ client's units, and results back. A
// function that fails sets an error: TypeError for a wrong type, filetimer.InvalidArgument for a
// value out of bounds.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <filetimer/timeout.hpp>
#include <optional>
#include <string>

#include "timer_client/python/native/python.hpp"

namespace filetimer::python {

using std::chrono::nanoseconds;

// Sets a TypeError: "WHAT is a TYPE: EXPECTED". Returns null.
PyObject* set_type_error(const char* what, PyObject* value, const char* expected);

// Converts a timeout: seconds as int or float, or a timedelta; over zero, at most 1e9 s, or
// infinity for none. `what` names it in the message: "the timeout".
bool to_timeout(PyObject* value, const char* what, nanoseconds& timeout);
// As to_timeout(), but None (or null) gives no value. With `may_be_zero`, zero is allowed.
bool to_optional_timeout(PyObject* value, const char* what, std::optional<nanoseconds>& timeout,
                         bool may_be_zero = false);
inline bool to_optional_timeout(PyObject* value, const char* what, std::optional<Timeout>& timeout,
                                bool may_be_zero = false) {
  std::optional<nanoseconds> read;
  if (!to_optional_timeout(value, what, read, may_be_zero)) {
    return false;
  }
  if (read) {
    timeout = *read;
  }
  return true;
}
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
