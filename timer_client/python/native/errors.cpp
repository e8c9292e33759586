// SPDX-License-Identifier: MIT
#include "timer_client/python/native/errors.hpp"

#include <filetimer/errors.hpp>
#include <new>

#include "timer_client/python/native/values.hpp"

namespace filetimer::python {

ErrorClasses g_errors;

namespace {

void raise(PyObject* type, const char* message) {
  const Ref text = text_of(message);
  if (text) {
    PyErr_SetObject(type, text.get());
  }
}

}  // namespace

bool import_errors() {
  const Ref module(PyImport_ImportModule("filetimer.errors"));
  if (!module) {
    return false;
  }
  const std::pair<const char*, PyObject**> classes[] = {
      {"TimerError", &g_errors.timer_error},
      {"ServerUnavailable", &g_errors.server_unavailable},
      {"InvalidArgument", &g_errors.invalid_argument}};
  for (const auto& [name, place] : classes) {
    *place = PyObject_GetAttrString(module.get(), name);
    if (*place == nullptr) {
      return false;
    }
  }
  return true;
}

void set_error_of_exception() {
  try {
    throw;
  } catch (const PythonError&) {
    // The error is set already.
  } catch (const ServerUnavailable& error) {
    raise(g_errors.server_unavailable, error.what());
  } catch (const InvalidArgument& error) {
    raise(g_errors.invalid_argument, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    raise(g_errors.timer_error, error.what());
  }
}

}  // namespace filetimer::python
