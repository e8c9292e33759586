// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "common/clock.hpp"
#include "timer_client/python/native/native.hpp"

namespace filetimer::python {

ErrorClasses g_errors;

namespace {

constexpr double kLongestSeconds = 1e9;  // kMaxTimeout

bool is_number(PyObject* value) {
  return (PyType_GetSlot(Py_TYPE(value), Py_nb_float) != nullptr || PyIndex_Check(value) != 0) &&
         !PyBool_Check(value);
}

// Returns whether the value is a bool, a complex number, a timedelta64 or a datetime64 of numpy.
// The latter two, in nanoseconds, would count as so many seconds.
bool is_no_number_of_numpy(PyObject* value) {
  const Ref dtype(PyObject_GetAttrString(value, "dtype"));
  const Ref kind(dtype ? PyObject_GetAttrString(dtype.get(), "kind") : nullptr);
  const char* const text = kind ? PyUnicode_AsUTF8AndSize(kind.get(), nullptr) : nullptr;
  PyErr_Clear();
  return text != nullptr && *text != '\0' && std::strchr("bcmM", *text) != nullptr;
}

// Does not import datetime: a timedelta is recognized by its total_seconds().
bool to_seconds(PyObject* value, const char* what, double& seconds) {
  if (PyFloat_CheckExact(value)) {
    seconds = PyFloat_AsDouble(value);
    return true;
  }
  Ref number;
  if (is_number(value) && (PyLong_CheckExact(value) != 0 || !is_no_number_of_numpy(value))) {
    number = Ref(PyNumber_Float(value));
  } else if (!PyType_Check(value) && PyObject_HasAttrString(value, "total_seconds") != 0) {
    number = Ref(PyObject_CallMethod(value, "total_seconds", nullptr));
  } else {
    set_type_error(what, value, "expected seconds as a number, or a timedelta");
    return false;
  }
  if (!number) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {  // an int that no double holds
      PyErr_Clear();
      return refuse("%s is too large: expected at most 1e9 seconds, or math.inf for none", what);
    }
    return false;
  }
  seconds = PyFloat_AsDouble(number.get());
  return seconds != -1.0 || PyErr_Occurred() == nullptr;
}

}  // namespace

bool import_errors() {
  const Ref module(PyImport_ImportModule("filetimer.errors"));
  const std::pair<const char*, PyObject**> classes[] = {
      {"TimerError", &g_errors.timer_error},
      {"ServerUnavailable", &g_errors.server_unavailable},
      {"InvalidArgument", &g_errors.invalid_argument}};
  return module && std::ranges::all_of(classes, [&](const auto& each) {
           *each.second = PyObject_GetAttrString(module.get(), each.first);
           return *each.second != nullptr;
         });
}

void set_error(PyObject* type, const std::string& message) {
  const Ref text = text_of(message);
  if (text) {
    PyErr_SetObject(type, text.get());
  }
}

PyObject* set_type_error(const char* what, PyObject* value, const char* expected) {
  const Ref name(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(value)), "__name__"));
  if (name) {
    PyErr_Format(PyExc_TypeError, "%s is a %.200S: %s", what, name.get(), expected);
  }
  return nullptr;
}

void set_error_of_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    // The error is set already.
  } catch (const ServerUnavailable& error) {
    set_error(g_errors.server_unavailable, error.what());
  } catch (const InvalidArgument& error) {
    set_error(g_errors.invalid_argument, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    set_error(g_errors.timer_error, error.what());
  }
}

bool to_timeout(PyObject* value, const char* what, Timeout& timeout, bool may_be_zero) {
  double seconds = 0;
  if (!to_seconds(value, what, seconds)) {
    return false;
  }
  if (seconds > 0 && seconds <= kLongestSeconds) [[likely]] {
    timeout = std::max(nanoseconds{std::llround(seconds * 1e9)}, nanoseconds{1});
    return true;
  }
  if (std::isinf(seconds) && seconds > 0) {
    timeout = kNoDeadline;
    return true;
  }
  if (may_be_zero && seconds == 0) {
    timeout = nanoseconds{0};
    return true;
  }
  return refuse("%s is %R: expected %s 0 and at most 1e9 seconds, or math.inf for none", what,
                value, may_be_zero ? "at least" : "more than");
}

bool to_optional_timeout(PyObject* value, const char* what, std::optional<Timeout>& timeout,
                         bool may_be_zero) {
  timeout.reset();
  return value == nullptr || value == Py_None ||
         to_timeout(value, what, timeout.emplace(nanoseconds{0}), may_be_zero);
}

bool to_only_timeout(const char* method, PyObject* const* args, Py_ssize_t count,
                     std::optional<Timeout>& timeout) {
  if (count > 1) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most one argument", method);
    return false;
  }
  return to_optional_timeout(count > 0 ? args[0] : nullptr, "the timeout", timeout);
}

bool to_int(PyObject* value, const char* what, int lowest, int highest, int& number) {
  if (PyBool_Check(value) || PyIndex_Check(value) == 0) {
    set_type_error(what, value, "expected an int");
    return false;
  }
  const Ref index(PyNumber_Index(value));
  if (!index) {
    return false;
  }
  int overflow = 0;
  const long found = PyLong_AsLongAndOverflow(index.get(), &overflow);
  if (found == -1 && PyErr_Occurred() != nullptr) {
    return false;
  }
  if (overflow != 0) {  // it may have too many digits for a text
    return refuse("%s is out of bounds: expected %d to %d", what, lowest, highest);
  }
  if (found < lowest || found > highest) {
    return refuse("%s is %ld: expected %d to %d", what, found, lowest, highest);
  }
  number = static_cast<int>(found);
  return true;
}

bool to_name(PyObject* value, Name& name) {
  if (!PyUnicode_Check(value)) {
    set_type_error("the scope's name", value, "expected a str");
    return false;
  }
  Py_ssize_t size = 0;
  name.text = PyUnicode_AsUTF8AndSize(value, &size);
  if (name.text == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) != 0) {
      PyErr_Clear();
      return refuse("the scope's name %.100A has a lone surrogate: expected text", value);
    }
    return false;
  }
  if (size == 0) {
    return refuse(
        "the scope's name is empty: expected at least one character, or None for the caller's file "
        "and line");
  }
  name.size = static_cast<std::size_t>(size);
  if (std::memchr(name.text, '\0', name.size) != nullptr) {
    return refuse("the scope's name %.100A has a NUL in it: expected text without", value);
  }
  name.owner = Ref::to(value);
  return true;
}

bool name_of_caller(Name& name) {
  PyFrameObject* const frame = PyEval_GetFrame();
  if (frame == nullptr) {  // a C thread without a Python function
    const Ref unknown(PyUnicode_FromString("(no Python)"));
    return unknown && to_name(unknown.get(), name);
  }
  name.line = std::max(PyFrame_GetLineNumber(frame), 1);
  const Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  name.owner = Ref(PyObject_GetAttrString(code.get(), "co_filename"));
  name.text = name.owner ? PyUnicode_AsUTF8AndSize(name.owner.get(), nullptr) : nullptr;
  if (name.text == nullptr && name.owner) {
    // The path is not UTF-8: the name has its bytes.
    PyErr_Clear();
    name.owner = Ref(PyUnicode_EncodeFSDefault(name.owner.get()));
    name.text = name.owner ? PyBytes_AsString(name.owner.get()) : nullptr;
  }
  return name.text != nullptr;
}

Ref text_of(const std::string& text) {
  return Ref(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

Ref seconds_of(nanoseconds duration) {
  return Ref(PyFloat_FromDouble(seconds_or_infinity(duration)));
}

}  // namespace filetimer::python
