// Arguments as Python gives them, checked and in the C++ client's units, and results the other way.
// Each function that can fail says so with an error set: TypeError for what is of the wrong type,
// filetimer.InvalidArgument for what is out of bounds.
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

// A timeout: seconds as int or float, or a timedelta; over zero, at most a thousand million, or
// infinity for none. `what` for the message: "the timeout".
bool to_timeout(PyObject* value, const char* what, nanoseconds& timeout);
// Likewise, where None (or null) means that nothing was said, and, with `may_be_zero`, zero counts.
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

// A name as the library wants it: UTF-8 that lives as long as `owner` does. No NUL, no lone
// surrogate, not empty.
struct Name {
  Ref owner;
  const char* text = nullptr;
  std::size_t size = 0;
  int line = 0;  // not 0: `text` is a file, NUL at its end, and the name is "FILE:LINE"
};
bool to_name(PyObject* value, Name& name);
// Where the Python code is that called.
bool name_of_caller(Name& name);

// Text of ours, or of other processes: what is no UTF-8 is escaped.
Ref text_of(const std::string& text);
// Float seconds; infinity for kNoDeadline.
Ref seconds_of(nanoseconds duration);

}  // namespace filetimer::python
