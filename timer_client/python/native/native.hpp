// What the files of filetimer._native share.
//
// Guards for the interpreter's lock (the GIL): a thread that holds a lock of the library never
// acquires the GIL. A thread that waits for an answer or for another thread releases the GIL first.
// So neither two threads nor fork(), which takes the library's lock, can deadlock.
//
// Values: arguments of Python become checked values in the C++ client's units, and results and
// errors go back. A function that fails sets an error: TypeError for a wrong type,
// filetimer.InvalidArgument for a value out of bounds. The classes of errors are in
// filetimer/errors.py.
// SPDX-License-Identifier: MIT
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filetimer/timer_client.hpp>
#include <optional>
#include <string>
#include <utility>

namespace filetimer::python {

using std::chrono::nanoseconds;

// Owns one reference. Null: an error is set, or it has no object. A copy owns one more, which
// needs the GIL, so it is explicit: none is made unseen, as of what with_gil() returns.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  explicit Ref(const Ref& other) : Ref(to(other.object_)) {}
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
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      block_until_exit();
    }
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
// Sets an InvalidArgument with a message as PyErr_Format() takes it. Returns false.
template <class... Values>
bool refuse(const char* format, Values... values) {
  PyErr_Format(g_errors.invalid_argument, format, values...);
  return false;
}
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

// --- filetimer._native.Client: a TimerClient as a Python object ---

// Members with a leading underscore take and return plain values; filetimer/_client.py and
// filetimer/admin.py are their public interface.
extern PyTypeObject* g_client_type;

bool add_client_type(PyObject* module);

// Returns the TimerClient of `client`, or of the default client if that is null; calls configure()
// if there is none. Null: the client is closed, or an error is set, which only the default client's
// first use can do.
TimerClient* open_client(PyObject* client);

// Functions of the module that return the default client, which they make, and set it.
PyObject* default_client(PyObject*, PyObject*);
PyObject* set_default_client(PyObject*, PyObject* client);
PyObject* has_default_client(PyObject*, PyObject*);

// Returns $FILETIMER_RPC_TIMEOUT, else its default, in seconds.
PyObject* rpc_timeout_of_environment(PyObject*, PyObject*);

// Returns whether the descriptor to which the stacks of a signal are written is still that file's:
// the file is another one once the page has been made anew.
PyObject* is_stacks_file_kept(PyObject*, PyObject* number);

// Offers the stacks of a forked child, which has closed its parent's stacks file, if that is
// possible, and if the client is to do so and has not done it in this process. Returns false if a
// signal handler has set an error.
bool offer_stacks_in_child(PyObject* client);

// --- filetimer.Scope, and expires(), which makes one ---

// This is the hot path: it uses CPython's tables directly, and reads only the object, the clock and
// the page. A scope without a client opens in the default one, even if it was made before
// configure().
bool add_scope_type(PyObject* module);

// A function of the package and a method of a client: `self` is the module or the client.
PyObject* expires(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names);

#define FILETIMER_SCOPE_SIGNATURE                                                       \
  "timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n" \
  "        on_expiry='kill')\n--\n\n"
#define FILETIMER_SCOPE_ARGUMENTS                                                                 \
  "timeout: seconds as a number, or a timedelta; over 0, at most 1e9 s. math.inf: no deadline.\n" \
  "name: any length; a name over 255 bytes is shown cut. None: the caller's file\n"               \
  "  and line, as 'train.py:123'.\n"                                                              \
  "signal: the first signal of a kill, 1 to 64; 0: the server records the expiry only.\n"         \
  "grace: seconds from the signal to SIGKILL; None: the server's --grace; math.inf: never.\n"     \
  "warn_after: seconds after which the server records a warning; below timeout, at most 49\n"     \
  "  days. None: the server's --warn-at.\n"                                                       \
  "first_timeout: in place of timeout for the first scope of this name that is opened.\n"         \
  "on_expiry: 'kill', or 'raise': at the deadline ScopeExpired is raised in the main thread,\n"   \
  "  and the server kills only if the scope is not left within the grace. Python raises\n"        \
  "  between two bytecodes: native code that blocks runs until SIGKILL ends it. For scopes\n"     \
  "  of the main thread; the grace is more than 0 and not math.inf.\n\n"                          \
  "Raises TypeError and InvalidArgument for wrong arguments. Entering it calls configure() if\n"  \
  "the program has not. After close(), and without a free slot, it is not watched.\n"

inline constexpr const char* kExpiresHelp =
    "expires($module, " FILETIMER_SCOPE_SIGNATURE
    "Returns a Scope: the server kills this process if it is still open after `timeout`.\n\n"
    "    with filetimer.expires(30, 'forward'):\n"
    "        loss = model(batch)\n\n"
    "Also a decorator: each call of the function opens another "
    "scope.\n\n" FILETIMER_SCOPE_ARGUMENTS;
inline constexpr const char* kExpiresHelpOfClient =
    "expires($self, " FILETIMER_SCOPE_SIGNATURE "As filetimer.expires(), of this client.";

}  // namespace filetimer::python
