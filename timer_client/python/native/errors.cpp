// SPDX-License-Identifier: MIT
#include "timer_client/python/native/errors.hpp"

#include <filetimer/errors.hpp>
#include <new>
#include <string>
#include <vector>

#include "timer_client/python/native/values.hpp"

namespace filetimer::python {

ErrorClasses g_errors;

namespace {

// An exception of that class with its message, or null and an error that is set.
Ref make_error(PyObject* type, const std::string& message) {
  const Ref text(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()),
                                      "backslashreplace"));
  return text ? Ref(PyObject_CallFunctionObjArgs(type, text.get(), nullptr)) : Ref();
}

bool set_attribute(const Ref& error, const char* name, Ref value) {
  return error && value && PyObject_SetAttrString(error.get(), name, value.get()) == 0;
}

void raise(const Ref& error) {
  if (error) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  }
}

void raise(PyObject* type, const std::string& message) {
  raise(make_error(type, message));
}

Ref ranks(const std::vector<int>& numbers) {
  Ref list(PyList_New(0));
  for (const int number : numbers) {
    const Ref item(PyLong_FromLong(number));
    if (!list || !item || PyList_Append(list.get(), item.get()) != 0) {
      return Ref();
    }
  }
  return list;
}

Ref open_scopes(const std::vector<OpenScope>& scopes) {
  Ref list(PyList_New(0));
  for (const OpenScope& scope : scopes) {
    const Ref rank = scope.rank ? Ref(PyLong_FromLong(*scope.rank)) : Ref::to(Py_None);
    const Ref remaining = scope.remaining ? seconds_of(*scope.remaining) : Ref::to(Py_None);
    const Ref elapsed = seconds_of(scope.elapsed);
    if (!list || !rank || !remaining || !elapsed) {
      return Ref();
    }
    const Ref item(Py_BuildValue("{s:i,s:O,s:s#,s:O,s:O}", "pid", static_cast<int>(scope.pid),
                                 "rank", rank.get(), "scope", scope.scope.data(),
                                 static_cast<Py_ssize_t>(scope.scope.size()), "elapsed",
                                 elapsed.get(), "remaining", remaining.get()));
    if (!item || PyList_Append(list.get(), item.get()) != 0) {
      return Ref();
    }
  }
  return list;
}

}  // namespace

bool import_errors() {
  const Ref module(PyImport_ImportModule("filetimer._errors"));
  if (!module) {
    return false;
  }
  const std::pair<const char*, PyObject**> classes[] = {
      {"TimerError", &g_errors.timer_error},
      {"ServerUnavailable", &g_errors.server_unavailable},
      {"RpcTimeoutError", &g_errors.rpc_timeout},
      {"RendezvousTimeoutError", &g_errors.rendezvous_timeout},
      {"ServerBusy", &g_errors.server_busy},
      {"InvalidArgument", &g_errors.invalid_argument},
      {"ScopeExpired", &g_errors.scope_expired}};
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
    // It is set.
  } catch (const RendezvousTimeoutError& error) {
    const Ref made = make_error(g_errors.rendezvous_timeout, error.what());
    if (set_attribute(made, "name", text_of(error.name)) &&
        set_attribute(made, "joined", ranks(error.joined)) &&
        set_attribute(made, "missing", ranks(error.missing)) &&
        set_attribute(made, "left", ranks(error.left))) {
      raise(made);
    }
  } catch (const RpcTimeoutError& error) {
    const Ref made = make_error(g_errors.rpc_timeout, error.what());
    if (set_attribute(made, "request", text_of(error.request)) &&
        set_attribute(made, "waited", seconds_of(error.waited))) {
      raise(made);
    }
  } catch (const ServerBusy& error) {
    const Ref made = make_error(g_errors.server_busy, error.what());
    if (set_attribute(made, "reason", text_of(error.reason)) &&
        set_attribute(made, "timed_out", Ref(PyBool_FromLong(error.timed_out ? 1 : 0))) &&
        set_attribute(made, "open_scope_count", Ref(PyLong_FromSize_t(error.open_scope_count))) &&
        set_attribute(made, "open_scopes", open_scopes(error.open_scopes))) {
      raise(made);
    }
  } catch (const ServerUnavailable& error) {
    raise(g_errors.server_unavailable, error.what());
  } catch (const InvalidArgument& error) {
    raise(g_errors.invalid_argument, error.what());
  } catch (const TimerError& error) {
    raise(g_errors.timer_error, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    raise(g_errors.timer_error, error.what());
  }
}

}  // namespace filetimer::python
