// SPDX-License-Identifier: MIT
#include "timer_client/python/native/scope.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/main_thread.hpp"
#include "timer_client/python/native/values.hpp"
#include "timer_client/src/fork_watch.hpp"
#include "timer_client/src/warn_after.hpp"

namespace filetimer::python {
namespace {

enum class Use : char {
  kFree,
  kEntered,    // by `with`: to be left by it, in the same thread
  kLeftEarly,  // `with` has still to leave what release() has ended
  kAcquired,   // by acquire()
};

struct ScopeObject {
  PyObject_HEAD PyObject* client;  // null: the default one
  PyObject* owner;                 // of `text`
  const char* text;
  std::size_t size;
  int line;  // see Name
  Use use;
  bool raises;        // on_expiry="raise"
  bool is_told;       // that it has expired
  bool is_inherited;  // a `with` that a parent has entered has still to end in its child
  std::int64_t timeout;
  ScopeOptions* options;  // null: kDefaultScopeOptions
  unsigned long thread;
  unsigned fork_count;
  alignas(TimerScope) std::byte timer[sizeof(TimerScope)];  // made unless kFree
};

enum Argument {
  kTimeout,
  kName,
  kSignal,
  kGrace,
  kWarnAfter,
  kFirstTimeout,
  kOnExpiry,
  kClient,  // of Scope() alone
  kArguments,
};
constexpr std::array<const char*, kArguments + 1> kWords{"timeout",   "name",       "signal",
                                                         "grace",     "warn_after", "first_timeout",
                                                         "on_expiry", "client",     nullptr};
using Arguments = std::array<PyObject*, kArguments>;
std::array<PyObject*, kArguments> g_words{};  // interned

PyTypeObject* g_scope_type = nullptr;
PyTypeObject* g_times_type = nullptr;
PyObject* g_never_raises = nullptr;  // "kill"
PyObject* g_raises = nullptr;        // "raise"
bool g_is_child_without_stacks = false;

// Open scopes with on_expiry="raise", the outermost first. With the GIL.
std::vector<ScopeObject*>& raising_scopes() {
  static auto& all = *new std::vector<ScopeObject*>;
  return all;
}

ScopeObject& as_scope(PyObject* self) {
  return *reinterpret_cast<ScopeObject*>(self);
}

TimerScope& timer_of(ScopeObject& scope) {
  return *std::launder(reinterpret_cast<TimerScope*>(&scope.timer));
}

std::string name_of(const ScopeObject& scope) {
  if (scope.line == 0) {
    return {scope.text, scope.size};
  }
  const std::string file = scope.text;
  return file.substr(file.rfind('/') + 1) + ':' + std::to_string(scope.line);  // npos + 1 is 0
}

// --- making one ---

// Which signal, and a handler for it where this thread may set one. 0: an error is set.
int signal_that_raises() {
  const Ref module(PyImport_ImportModule("filetimer._expiry"));
  const Ref number(module ? PyObject_CallMethod(module.get(), "prepare", nullptr) : nullptr);
  return number ? static_cast<int>(PyLong_AsLong(number.get())) : 0;
}

bool is_given(PyObject* value) {
  return value != nullptr && value != Py_None;
}

bool read_options(const Arguments& arguments, nanoseconds timeout, bool& raises,
                  std::unique_ptr<ScopeOptions>& options) {
  PyObject* const on_expiry = arguments[kOnExpiry];
  raises = on_expiry == g_raises;
  if (on_expiry != nullptr && on_expiry != g_raises && on_expiry != g_never_raises) {
    const int is_kill = PyObject_RichCompareBool(on_expiry, g_never_raises, Py_EQ);
    const int is_raise = is_kill == 0 ? PyObject_RichCompareBool(on_expiry, g_raises, Py_EQ) : 0;
    if (is_kill < 0 || is_raise < 0) {
      return false;
    }
    raises = is_raise == 1;
    if (is_kill == 0 && is_raise == 0) {
      PyErr_Format(g_errors.invalid_argument, "on_expiry is %R: expected 'kill' or 'raise'",
                   on_expiry);
      return false;
    }
  }
  ScopeOptions read;
  if ((is_given(arguments[kSignal]) &&
       !to_int(arguments[kSignal], "the signal", 0, 64, read.signal)) ||
      !to_optional_timeout(arguments[kGrace], "the grace", read.grace, true) ||
      !to_optional_timeout(arguments[kWarnAfter], "warn_after", read.warn_after) ||
      !to_optional_timeout(arguments[kFirstTimeout], "the first_timeout", read.first_timeout)) {
    return false;
  }
  if (!is_warn_after(read.warn_after, timeout)) {
    const Ref why = text_of(why_no_warn_after(*read.warn_after, timeout));
    if (why) {
      PyErr_SetObject(g_errors.invalid_argument, why.get());
    }
    return false;
  }
  if (raises) {
    if (read.signal != SIGKILL) {
      PyErr_SetString(g_errors.invalid_argument,
                      "on_expiry='raise' has a signal of its own: expected no other");
      return false;
    }
    read.signal = signal_that_raises();
    read.spare_if_left = true;
    if (read.signal == 0) {
      return false;
    }
  }
  options = std::make_unique<ScopeOptions>(read);
  return true;
}

// `arguments` are borrowed; null: not given.
PyObject* make_scope(PyObject* client, const Arguments& arguments) {
  nanoseconds timeout{};
  Name name;
  if (!to_timeout(arguments[kTimeout], "the timeout", timeout) ||
      !(is_given(arguments[kName]) ? to_name(arguments[kName], name) : name_of_caller(name))) {
    return nullptr;
  }
  bool raises = false;
  std::unique_ptr<ScopeOptions> options;
  if (is_given(arguments[kSignal]) || is_given(arguments[kGrace]) ||
      is_given(arguments[kWarnAfter]) || is_given(arguments[kFirstTimeout]) ||
      arguments[kOnExpiry] != nullptr) {
    const bool is_fine =
        guarded(false, [&] { return read_options(arguments, timeout, raises, options); });
    if (!is_fine) {
      return nullptr;
    }
  }
  PyObject* const self = g_scope_type->tp_alloc(g_scope_type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  ScopeObject& scope = as_scope(self);
  Py_XINCREF(client);
  scope.client = client;
  scope.owner = name.owner.release();
  scope.text = name.text;
  scope.size = name.size;
  scope.line = name.line;
  scope.raises = raises;
  scope.timeout = timeout.count();
  scope.options = options.release();
  return self;
}

PyObject* new_scope(PyTypeObject*, PyObject* args, PyObject* names) {
  Arguments given{};
  if (PyArg_ParseTupleAndKeywords(
          args, names, "O|O$OOOOOO:Scope", const_cast<char**>(kWords.data()), &given[kTimeout],
          &given[kName], &given[kSignal], &given[kGrace], &given[kWarnAfter], &given[kFirstTimeout],
          &given[kOnExpiry], &given[kClient]) == 0) {
    return nullptr;
  }
  PyObject* const client = is_given(given[kClient]) ? given[kClient] : nullptr;
  if (client != nullptr && PyObject_TypeCheck(client, g_client_type) == 0) {
    PyErr_Format(PyExc_TypeError, "the client is a %.200s: expected a filetimer.Client",
                 Py_TYPE(client)->tp_name);
    return nullptr;
  }
  return make_scope(client, given);
}

int argument_called(PyObject* word) {
  for (int i = 0; i < kClient; ++i) {
    if (g_words[static_cast<std::size_t>(i)] == word) {
      return i;
    }
  }
  for (int i = 0; i < kClient; ++i) {
    if (PyUnicode_Compare(g_words[static_cast<std::size_t>(i)], word) == 0) {
      return i;
    }
  }
  PyErr_Format(PyExc_TypeError, "expires() got an unexpected keyword argument %R", word);
  return -1;
}

PyObject* expires_in(PyObject* client, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Arguments given{};
  if (count > 2) {
    PyErr_Format(PyExc_TypeError,
                 "expires() takes a timeout and a name, and the rest by keyword: %zd were given",
                 count);
    return nullptr;
  }
  std::copy_n(args, count, given.begin());
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int place = argument_called(PyTuple_GET_ITEM(names, i));
    if (place < 0) {
      return nullptr;
    }
    PyObject*& argument = given[static_cast<std::size_t>(place)];
    if (argument != nullptr) {
      PyErr_Format(PyExc_TypeError, "expires() got %R twice", PyTuple_GET_ITEM(names, i));
      return nullptr;
    }
    argument = args[count + i];
  }
  if (given[kTimeout] == nullptr) {
    PyErr_SetString(PyExc_TypeError, "expires() wants a timeout, in seconds");
    return nullptr;
  }
  return make_scope(client, given);
}

void end_timer(ScopeObject& scope) {
  timer_of(scope).~TimerScope();
  scope.use = Use::kFree;
  if (scope.raises) {
    std::erase(raising_scopes(), &scope);
  }
}

void dealloc_scope(PyObject* self) {
  ScopeObject& scope = as_scope(self);
  if (scope.use != Use::kFree) {
    end_timer(scope);  // releases it
  }
  delete scope.options;
  Py_XDECREF(scope.client);
  Py_XDECREF(scope.owner);
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// --- entering and leaving ---

[[gnu::cold]] bool refuse_to_open(ScopeObject& scope) {
  if (scope.use != Use::kFree && scope.fork_count != fork_watch::count()) {
    // What a parent has entered is nothing of its child's.
    scope.is_inherited = scope.use == Use::kEntered || scope.use == Use::kLeftEarly;
    end_timer(scope);
    return true;
  }
  if (scope.use != Use::kFree) {
    PyErr_Format(g_errors.timer_error,
                 "scope '%.200s' is open already: it can't be entered twice, make another one",
                 name_of(scope).c_str());
    return false;
  }
  return true;
}

[[gnu::cold]] bool prepare_to_raise(ScopeObject& scope) {
  if (::gettid() != ::getpid()) {
    PyErr_Format(g_errors.timer_error,
                 "scope '%.200s' has on_expiry='raise': only the main thread can enter it",
                 name_of(scope).c_str());
    return false;
  }
  scope.is_told = false;
  if (signal_that_raises() == 0) {
    return false;
  }
  raising_scopes().push_back(&scope);
  return true;
}

bool open_timer(PyObject* self, Use use) {
  ScopeObject& scope = as_scope(self);
  if (scope.use != Use::kFree && !refuse_to_open(scope)) [[unlikely]] {
    return false;
  }
  TimerClient* const client = open_client(scope.client);
  if (client == nullptr) [[unlikely]] {
    return false;
  }
  if (scope.raises && !guarded(false, [&] { return prepare_to_raise(scope); })) [[unlikely]] {
    return false;
  }
  try {
    const ScopeOptions& options = scope.options == nullptr ? kDefaultScopeOptions : *scope.options;
    new (&scope.timer) TimerScope(client->expires(nanoseconds{scope.timeout},
                                                  {scope.text, scope.line == 0 ? scope.size : 0},
                                                  options, scope.text, scope.line));
  } catch (...) {
    if (scope.raises) {
      std::erase(raising_scopes(), &scope);
    }
    set_error_of_exception();
    return false;
  }
  scope.use = use;
  scope.thread = PyThread_get_thread_ident();
  scope.fork_count = fork_watch::count();
  if (g_is_child_without_stacks) [[unlikely]] {
    if (!offer_stacks_if_wanted(scope.client)) {
      end_timer(scope);
      return false;
    }
  }
  return true;
}

PyObject* enter(PyObject* self, PyObject*) {
  return open_timer(self, Use::kEntered) ? Py_NewRef(self) : nullptr;
}

PyObject* acquire(PyObject* self, PyObject*) {
  if (!open_timer(self, Use::kAcquired)) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Sets ScopeExpired for `scope`.
void set_scope_expired(ScopeObject& scope, nanoseconds elapsed) {
  scope.is_told = true;
  const std::string name = name_of(scope);
  const Ref shown = text_of(name);
  const Ref timeout = seconds_of(nanoseconds{scope.timeout});
  const Ref open_for = seconds_of(elapsed);
  if (shown && timeout && open_for) {
    const Ref error(PyObject_CallFunctionObjArgs(g_errors.scope_expired, shown.get(), timeout.get(),
                                                 open_for.get(), nullptr));
    if (error) {
      PyErr_SetObject(g_errors.scope_expired, error.get());
    }
  }
}

// Of one with on_expiry="raise". False: it has expired, and the error is set.
[[gnu::cold]] bool leave_raising(ScopeObject& scope, bool has_error) {
  const auto times = timer_of(scope).times();  // none in a forked child, and where nobody watches
  const bool in_time = timer_of(scope).release();
  const bool is_news = times && !in_time && !scope.is_told && !has_error;
  end_timer(scope);
  if (is_news) {
    set_scope_expired(scope, times->elapsed);
  }
  return !is_news;
}

// The `with` of it ends, where that is no matter of two stores. False: an error is set.
[[gnu::cold]] bool refuse_to_leave(ScopeObject& scope) {
  if (scope.use == Use::kLeftEarly) {
    end_timer(scope);
    return true;
  }
  if (scope.use == Use::kFree && scope.is_inherited) {
    scope.is_inherited = false;
    return true;
  }
  if (scope.use != Use::kEntered) {
    PyErr_Format(g_errors.timer_error, "scope '%.200s' was not entered by 'with'",
                 name_of(scope).c_str());
    return false;
  }
  if (scope.fork_count != fork_watch::count()) {
    end_timer(scope);
    return true;
  }
  end_timer(scope);  // nobody else will
  PyErr_Format(g_errors.timer_error,
               "scope '%.200s' is left in another thread than it was entered in: it was released",
               name_of(scope).c_str());
  return false;
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  ScopeObject& scope = as_scope(self);
  if (scope.use != Use::kEntered || scope.thread != PyThread_get_thread_ident() ||
      scope.fork_count != fork_watch::count()) [[unlikely]] {
    if (!refuse_to_leave(scope)) {
      return nullptr;
    }
  } else if (scope.raises) [[unlikely]] {
    const bool has_error = count > 0 && args[0] != Py_None;
    const bool is_fine = guarded(false, [&] { return leave_raising(scope, has_error); });
    if (!is_fine) {
      return nullptr;
    }
  } else {
    timer_of(scope).release();
    timer_of(scope).~TimerScope();
    scope.use = Use::kFree;
  }
  Py_RETURN_NONE;
}

PyObject* release(PyObject* self, PyObject*) {
  ScopeObject& scope = as_scope(self);
  if (scope.use == Use::kFree || scope.use == Use::kLeftEarly) {
    Py_RETURN_FALSE;
  }
  const bool in_time = timer_of(scope).release();
  if (scope.use == Use::kEntered) {
    scope.use = Use::kLeftEarly;
  } else {
    end_timer(scope);
  }
  return PyBool_FromLong(in_time ? 1 : 0);
}

PyObject* renew(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  ScopeObject& scope = as_scope(self);
  std::optional<nanoseconds> timeout;
  if (count > 1) {
    PyErr_SetString(PyExc_TypeError, "renew() takes at most one argument");
    return nullptr;
  }
  if (!to_optional_timeout(count > 0 ? args[0] : nullptr, "the timeout", timeout)) {
    return nullptr;
  }
  if (scope.use == Use::kFree) {
    Py_RETURN_FALSE;
  }
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    return PyBool_FromLong(timer_of(scope).renew(timeout.value_or(nanoseconds{scope.timeout})) ? 1
                                                                                               : 0);
  });
}

PyObject* pause(PyObject* self, PyObject*) {
  ScopeObject& scope = as_scope(self);
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    return PyBool_FromLong(scope.use != Use::kFree && timer_of(scope).pause() ? 1 : 0);
  });
}

PyObject* resume(PyObject* self, PyObject*) {
  ScopeObject& scope = as_scope(self);
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    return PyBool_FromLong(scope.use != Use::kFree && timer_of(scope).resume() ? 1 : 0);
  });
}

PyObject* times(PyObject* self, PyObject*) {
  ScopeObject& scope = as_scope(self);
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    return times_or_none(scope.use == Use::kFree ? std::nullopt : timer_of(scope).times());
  });
}

PyObject* again(PyObject* self, PyObject*) {
  const ScopeObject& scope = as_scope(self);
  PyObject* const made = g_scope_type->tp_alloc(g_scope_type, 0);
  if (made == nullptr) {
    return nullptr;
  }
  ScopeObject& copy = as_scope(made);
  Py_XINCREF(scope.client);
  copy.client = scope.client;
  copy.owner = Py_NewRef(scope.owner);
  copy.text = scope.text;
  copy.size = scope.size;
  copy.line = scope.line;
  copy.raises = scope.raises;
  copy.timeout = scope.timeout;
  copy.options =
      scope.options == nullptr ? nullptr : new (std::nothrow) ScopeOptions(*scope.options);
  return made;
}

PyObject* decorate(PyObject* self, PyObject* args, PyObject* names) {
  PyObject* function = nullptr;
  if (names != nullptr && PyDict_Size(names) != 0) {
    PyErr_SetString(PyExc_TypeError, "a scope as a decorator takes one function");
    return nullptr;
  }
  if (PyArg_ParseTuple(args, "O:Scope.__call__", &function) == 0) {
    return nullptr;
  }
  const Ref module(PyImport_ImportModule("filetimer._decorator"));
  return module ? PyObject_CallMethod(module.get(), "decorate", "OO", self, function) : nullptr;
}

// --- what it tells ---

PyObject* get_name(PyObject* self, void*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return text_of(name_of(as_scope(self))).release(); });
}

PyObject* get_timeout(PyObject* self, void*) {
  return seconds_of(nanoseconds{as_scope(self).timeout}).release();
}

std::optional<TimerTimes> times_now(PyObject* self) {
  ScopeObject& scope = as_scope(self);
  return scope.use == Use::kFree ? std::nullopt : timer_of(scope).times();
}

PyObject* get_elapsed(PyObject* self, void*) {
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    const auto found = times_now(self);
    return found ? seconds_of(found->elapsed).release() : Py_NewRef(Py_None);
  });
}

PyObject* get_remaining(PyObject* self, void*) {
  return guarded(static_cast<PyObject*>(nullptr), [&] {
    const auto found = times_now(self);
    return found ? seconds_of(found->remaining).release() : Py_NewRef(Py_None);
  });
}

PyObject* get_is_open(PyObject* self, void*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return PyBool_FromLong(times_now(self) ? 1 : 0); });
}

PyObject* represent(PyObject* self) {
  const Ref name(get_name(self, nullptr));
  const Ref timeout(get_timeout(self, nullptr));
  return name && timeout ? PyUnicode_FromFormat("<filetimer.Scope %R of %S s%s>", name.get(),
                                                timeout.get(), times_now(self) ? ", open" : "")
                         : nullptr;
}

PyMethodDef g_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Open the scope."},
    {"__exit__", as_method(leave), METH_FASTCALL,
     "Leave the scope, in the thread that entered it."},
    {"acquire", acquire, METH_NOARGS,
     "acquire($self, /)\n--\n\n"
     "Open the scope without `with`; release() ends it, from any thread, and so does the end of\n"
     "the object. Raises TimerError, also when it is open."},
    {"release", release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "End the scope now. False when it was not open, or when the server's verdict came first."},
    {"renew", as_method(renew), METH_FASTCALL,
     "renew($self, timeout=None, /)\n--\n\n"
     "Push the deadline to `timeout` from now, in seconds or a timedelta; None: the scope's own.\n"
     "False when it is not open, or when the server's verdict came first."},
    {"pause", pause, METH_NOARGS,
     "pause($self, /)\n--\n\n"
     "The scope's time stands still until resume(), for a checkpoint or a debugger. The server's\n"
     "--max-timeout holds on. False when it is not open."},
    {"resume", resume, METH_NOARGS,
     "resume($self, /)\n--\n\n"
     "The scope's time goes on with what was left. False when it is not open."},
    {"times", times, METH_NOARGS,
     "times($self, /)\n--\n\n"
     "Times(elapsed, remaining, paused, expired) of the open scope, in seconds; None when it is\n"
     "not open."},
    {"_again", again, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_properties[] = {
    {"name", get_name, nullptr, "What people see it called (str).", nullptr},
    {"timeout", get_timeout, nullptr, "In seconds (float); math.inf: none.", nullptr},
    {"elapsed", get_elapsed, nullptr, "Seconds since it was opened (float); None: not open.",
     nullptr},
    {"remaining", get_remaining, nullptr,
     "Seconds until the deadline (float), negative when it has passed; None: not open.", nullptr},
    {"is_open", get_is_open, nullptr, "Whether it is open, and watched (bool).", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr const char* kScopeHelp =
    "Scope(timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n"
    "      on_expiry='kill', client=None)\n--\n\n"
    "A piece of work with a deadline, made once and entered many times:\n\n"
    "    forward = filetimer.Scope(30, 'forward')\n"
    "    for batch in batches:\n"
    "        with forward:\n"
    "            loss = model(batch)\n\n"
    "The server kills this process when the scope is still open after `timeout`. It can't be\n"
    "entered again while it is open, and is left in the thread that entered it: threads have\n"
    "scopes of their own, which may have one name. Also a decorator; each call of the function\n"
    "opens another scope. It may be made before configure().\n\n" FILETIMER_SCOPE_ARGUMENTS
    "client: a Client; None: the one of configure().\n";

PyStructSequence_Field g_times_fields[] = {
    {"elapsed", "seconds since it was opened"},
    {"remaining",
     "seconds until the deadline, negative when it has passed, math.inf without one; of a paused "
     "one, what it will have when it goes on"},
    {"paused", "whether its time stands still"},
    {"expired", "whether the server's verdict has come (on a bare pipe: the deadline passed)"},
    {nullptr, nullptr}};
PyStructSequence_Desc g_times_description = {
    "filetimer.Times", "How long a timer has been open, and what is left of it.", g_times_fields,
    4};

}  // namespace

PyObject* expires(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return expires_in(nullptr, args, count, names);
}

PyObject* expires_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                            PyObject* names) {
  return expires_in(self, args, count, names);
}

PyObject* times_or_none(const std::optional<TimerTimes>& times) {
  if (!times) {
    Py_RETURN_NONE;
  }
  Ref made(PyStructSequence_New(g_times_type));
  if (!made) {
    return nullptr;
  }
  std::array<Ref, 4> fields{seconds_of(times->elapsed), seconds_of(times->remaining),
                            Ref(PyBool_FromLong(times->is_paused ? 1 : 0)),
                            Ref(PyBool_FromLong(times->is_expired ? 1 : 0))};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!fields[i]) {
      return nullptr;
    }
    PyStructSequence_SetItem(made.get(), static_cast<Py_ssize_t>(i), fields[i].release());
  }
  return made.release();
}

PyObject* child_offers_stacks(PyObject*, PyObject*) {
  g_is_child_without_stacks = true;
  Py_RETURN_NONE;
}

bool offer_stacks_if_wanted(PyObject* client) {
  if (!g_is_child_without_stacks) {
    return true;
  }
  g_is_child_without_stacks = false;
  const Ref module(PyImport_ImportModule("filetimer._stacks"));
  const Ref result(module ? PyObject_CallMethod(module.get(), "offer_in_child", "O",
                                                client == nullptr ? g_default_client : client)
                          : nullptr);
  return static_cast<bool>(result);
}

PyObject* scope_signal(PyObject*, PyObject* const*, Py_ssize_t) {
  stop_signalling_main_thread();
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    for (ScopeObject* const scope : raising_scopes()) {
      const auto found = scope->use == Use::kFree ? std::nullopt : timer_of(*scope).times();
      if (found && found->is_expired && !scope->is_told) {
        set_scope_expired(*scope, found->elapsed);
        return nullptr;
      }
    }
    Py_RETURN_NONE;  // it was left in the same moment
  });
}

bool add_scope_type(PyObject* module) {
  for (std::size_t i = 0; i < g_words.size(); ++i) {
    g_words[i] = PyUnicode_InternFromString(kWords[i]);
    if (g_words[i] == nullptr) {
      return false;
    }
  }
  g_never_raises = PyUnicode_InternFromString("kill");
  g_raises = PyUnicode_InternFromString("raise");
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(kScopeHelp)},
                         {Py_tp_new, as_slot(new_scope)},
                         {Py_tp_dealloc, as_slot(dealloc_scope)},
                         {Py_tp_call, as_slot(decorate)},
                         {Py_tp_repr, as_slot(represent)},
                         {Py_tp_methods, g_methods},
                         {Py_tp_getset, g_properties},
                         {0, nullptr}};
  PyType_Spec spec = {"filetimer.Scope", sizeof(ScopeObject), 0, Py_TPFLAGS_DEFAULT, slots};
  g_scope_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  g_times_type = PyStructSequence_NewType(&g_times_description);
  return g_never_raises != nullptr && g_raises != nullptr && g_scope_type != nullptr &&
         g_times_type != nullptr && PyModule_AddType(module, g_scope_type) == 0 &&
         PyModule_AddType(module, g_times_type) == 0;
}

}  // namespace filetimer::python
