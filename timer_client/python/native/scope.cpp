// SPDX-License-Identifier: MIT
#include "timer_client/python/native/scope.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "timer_client/client/fork_watch.hpp"
#include "timer_client/client/warn_after.hpp"
#include "timer_client/python/native/client.hpp"
#include "timer_client/python/native/errors.hpp"
#include "timer_client/python/native/values.hpp"

namespace filetimer::python {
namespace {

enum class Use : char {
  kFree,
  kEntered,    // by `with`, which must leave it in the same thread
  kLeftEarly,  // ended by release(); `with` has not left it yet
  kAcquired,   // by acquire()
};

struct ScopeObject {
  PyObject_HEAD PyObject* client;  // null: the default one
  PyObject* owner;                 // of `text`
  const char* text;
  std::size_t size;
  int line;  // see Name
  Use use;
  bool is_inherited;         // entered by `with` in the parent, and not left yet in this child
  bool is_paused_with_task;  // resumed with the other scopes of its task
  std::int64_t timeout;
  std::shared_ptr<const ScopeOptions> options;  // null: kDefaultScopeOptions
  unsigned long thread;
  unsigned fork_count;
  // The context in which the scope was opened, which in asyncio is that of the task, and the
  // scope's neighbours in the list of such scopes. Set while the scope is open and contextvars are
  // in use.
  PyObject* context;
  ScopeObject* next;
  ScopeObject* previous;
  alignas(TimerScope) std::byte timer[sizeof(TimerScope)];  // made unless kFree
};

// A region of a task in which the time of the task's scopes is stopped.
struct TaskPause {
  Ref context;
  unsigned long thread;
  unsigned fork_count;
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

constexpr const char* kTaskPauseName = "filetimer._native.task_pause";

PyTypeObject* g_scope_type = nullptr;
PyTypeObject* g_times_type = nullptr;
PyObject* g_never_raises = nullptr;  // "kill"
PyObject* g_raises = nullptr;        // "raise"

// Guarded by the GIL, as everything below.
ScopeObject* g_open_in_contexts = nullptr;
std::vector<const TaskPause*>& task_pauses() {
  static auto& all = *new std::vector<const TaskPause*>;
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

// --- construction ---

// Finds the class of scopes that raise, and the number of their signal. Returns false if an error
// is set.
bool find_raising(Ref& type, int& signal) {
  const Ref module(PyImport_ImportModule("filetimer._expiry"));
  const Ref found(module ? PyObject_CallMethod(module.get(), "prepare", nullptr) : nullptr);
  PyObject* kind = nullptr;
  if (!found || PyArg_ParseTuple(found.get(), "Oi", &kind, &signal) == 0) {
    return false;
  }
  type = Ref::to(kind);
  return true;
}

bool is_given(PyObject* value) {
  return value != nullptr && value != Py_None;
}

// Reads the options. Sets `type` to that of scopes that raise if they choose that.
bool read_options(const Arguments& arguments, nanoseconds timeout, Ref& type,
                  std::shared_ptr<const ScopeOptions>& options) {
  PyObject* const on_expiry = arguments[kOnExpiry];
  bool raises = on_expiry == g_raises;
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
  if (read.warn_after && !is_warn_after(read.warn_after->value(), timeout)) {
    const Ref why = text_of(why_no_warn_after(read.warn_after->value(), timeout));
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
    read.signal_first = true;
    if (!find_raising(type, read.signal)) {
      return false;
    }
  }
  options = std::make_shared<const ScopeOptions>(read);
  return true;
}

// Returns a scope in which make_scope() has still to set the members of the arguments. Null: an
// error is set.
ScopeObject* allocate(PyTypeObject* type) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  new (&as_scope(self).options) std::shared_ptr<const ScopeOptions>();
  return &as_scope(self);
}

// `arguments` are borrowed; null: not given.
PyObject* make_scope(PyTypeObject* type, PyObject* client, const Arguments& arguments) {
  nanoseconds timeout{};
  Name name;
  if (!to_timeout(arguments[kTimeout], "the timeout", timeout) ||
      !(is_given(arguments[kName]) ? to_name(arguments[kName], name) : name_of_caller(name))) {
    return nullptr;
  }
  Ref raising;
  std::shared_ptr<const ScopeOptions> options;
  if (is_given(arguments[kSignal]) || is_given(arguments[kGrace]) ||
      is_given(arguments[kWarnAfter]) || is_given(arguments[kFirstTimeout]) ||
      arguments[kOnExpiry] != nullptr) {
    const bool is_fine =
        guarded(false, [&] { return read_options(arguments, timeout, raising, options); });
    if (!is_fine) {
      return nullptr;
    }
  }
  ScopeObject* const scope =
      allocate(raising ? reinterpret_cast<PyTypeObject*>(raising.get()) : type);
  if (scope == nullptr) {
    return nullptr;
  }
  Py_XINCREF(client);
  scope->client = client;
  scope->owner = name.owner.release();
  scope->text = name.text;
  scope->size = name.size;
  scope->line = name.line;
  scope->timeout = timeout.count();
  scope->options = std::move(options);
  return reinterpret_cast<PyObject*>(scope);
}

PyObject* new_scope(PyTypeObject* type, PyObject* args, PyObject* names) {
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
  return make_scope(type, client, given);
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
    PyErr_SetString(PyExc_TypeError, "expires() needs a timeout, in seconds");
    return nullptr;
  }
  return make_scope(g_scope_type, client, given);
}

// --- contexts: one for each asyncio task ---

void note_context(ScopeObject& scope, PyObject* context) {
  scope.context = Py_NewRef(context);
  scope.previous = nullptr;
  scope.next = std::exchange(g_open_in_contexts, &scope);
  if (scope.next != nullptr) {
    scope.next->previous = &scope;
  }
}

// Removes the scope from the list. Returns its reference to the context, since dropping it may run
// any code.
[[nodiscard]] Ref forget_context(ScopeObject& scope) {
  (scope.previous == nullptr ? g_open_in_contexts : scope.previous->next) = scope.next;
  if (scope.next != nullptr) {
    scope.next->previous = scope.previous;
  }
  scope.is_paused_with_task = false;
  return Ref(std::exchange(scope.context, nullptr));
}

// Returns whether the pause stops the scope, in this process: a child inherits no pause.
bool concerns(const TaskPause& pause, const ScopeObject& scope) {
  return scope.context == pause.context.get() && scope.thread == pause.thread &&
         scope.fork_count == pause.fork_count && scope.fork_count == fork_watch::count();
}

// Pauses the scope, unless its caller has paused it, who then also resumes it.
void pause_with_task(ScopeObject& scope) {
  const auto times = timer_of(scope).times();
  if (times && !times->is_paused) {
    scope.is_paused_with_task = timer_of(scope).pause();
  }
}

bool pause_if_task_is_paused(ScopeObject& scope) {
  if (std::ranges::any_of(task_pauses(),
                          [&](const TaskPause* each) { return concerns(*each, scope); })) {
    pause_with_task(scope);
  }
  return true;
}

void end_task_pause(PyObject* capsule) {
  const std::unique_ptr<TaskPause> ended(
      static_cast<TaskPause*>(PyCapsule_GetPointer(capsule, kTaskPauseName)));
  auto& all = task_pauses();
  std::erase(all, ended.get());
  for (const TaskPause* const other : all) {
    if (other->context.get() == ended->context.get() && other->fork_count == ended->fork_count) {
      return;  // this pause is inside another one
    }
  }
  for (ScopeObject* scope = g_open_in_contexts; scope != nullptr; scope = scope->next) {
    if (concerns(*ended, *scope) && std::exchange(scope->is_paused_with_task, false)) {
      timer_of(*scope).resume();
    }
  }
}

// --- entering and leaving ---

void end_timer(ScopeObject& scope) {
  timer_of(scope).~TimerScope();
  scope.use = Use::kFree;
  if (scope.context != nullptr) {
    const Ref let_go = forget_context(scope);
  }
}

// `client` needs no Py_tp_clear: other objects of a cycle can be cleared.
int traverse_scope(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_scope(self).client);
  Py_VISIT(as_scope(self).context);
  return 0;
}

void dealloc_scope(PyObject* self) {
  PyObject_GC_UnTrack(self);
  ScopeObject& scope = as_scope(self);
  if (scope.use != Use::kFree) {
    end_timer(scope);  // releases it
  }
  scope.options.~shared_ptr();
  Py_XDECREF(scope.client);
  Py_XDECREF(scope.owner);
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

[[gnu::cold]] bool refuse_to_open(ScopeObject& scope) {
  if (scope.use != Use::kFree && scope.fork_count != fork_watch::count()) {
    // A scope that the parent has entered is not open in its child.
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

// Opens the timer of a scope, or that of a heartbeat, whose first timeout is its own.
TimerScope timer_for(TimerClient& client, const ScopeObject& scope, bool is_heartbeat) {
  const ScopeOptions& options = scope.options ? *scope.options : kDefaultScopeOptions;
  const nanoseconds timeout{scope.timeout};
  const std::string_view name{scope.text, scope.line == 0 ? scope.size : 0};
  return is_heartbeat ? client.heartbeat(timeout, name, options, scope.text, scope.line).scope()
                      : client.expires(timeout, name, options, scope.text, scope.line);
}

bool open_timer(PyObject* self, Use use, bool is_heartbeat = false) {
  ScopeObject& scope = as_scope(self);
  if (scope.use != Use::kFree && !refuse_to_open(scope)) [[unlikely]] {
    return false;
  }
  TimerClient* const client = open_client(scope.client);
  if (client == nullptr) [[unlikely]] {
    return false;
  }
  try {
    new (&scope.timer) TimerScope(timer_for(*client, scope, is_heartbeat));
  } catch (...) {
    set_error_of_exception();
    return false;
  }
  const PyThreadState* const thread = PyThreadState_Get();
  scope.use = use;
  scope.thread = thread->thread_id;
  scope.fork_count = fork_watch::count();
  if (thread->context != nullptr) {
    note_context(scope, thread->context);
    if (!task_pauses().empty() && !guarded(false, [&] { return pause_if_task_is_paused(scope); }))
        [[unlikely]] {
      end_timer(scope);
      return false;
    }
  }
  if (g_is_child_without_stacks && !offer_stacks_in_child(scope.client)) [[unlikely]] {
    end_timer(scope);
    return false;
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

PyObject* acquire_heartbeat(PyObject* self, PyObject*) {
  if (!open_timer(self, Use::kAcquired, true)) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Ends the `with` of the scope in the cases that leave_scope() does not handle. Returns false if an
// error is set.
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
  end_timer(scope);  // no other code ends it
  PyErr_Format(g_errors.timer_error,
               "scope '%.200s' is left in another thread than it was entered in: it was released",
               name_of(scope).c_str());
  return false;
}

// Ends the `with` of a scope. Sets `in_time` to false if the server's verdict came first. Returns
// false if an error is set.
bool leave_scope(ScopeObject& scope, bool& in_time) {
  if (scope.use != Use::kEntered || scope.thread != PyThreadState_Get()->thread_id ||
      scope.fork_count != fork_watch::count()) [[unlikely]] {
    return refuse_to_leave(scope);
  }
  in_time = static_cast<bool>(timer_of(scope).release());
  end_timer(scope);
  return true;
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  bool in_time = true;
  if (!leave_scope(as_scope(self), in_time)) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// As leave(), but returns False if the server's verdict came first, else True.
PyObject* leave_in_time(PyObject* self, PyObject*) {
  bool in_time = true;
  return leave_scope(as_scope(self), in_time) ? PyBool_FromLong(in_time ? 1 : 0) : nullptr;
}

PyObject* release(PyObject* self, PyObject*) {
  ScopeObject& scope = as_scope(self);
  if (scope.use == Use::kFree || scope.use == Use::kLeftEarly) {
    Py_RETURN_FALSE;
  }
  const bool in_time{timer_of(scope).release()};
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

std::optional<TimerTimes> times_now(PyObject* self) {
  ScopeObject& scope = as_scope(self);
  return scope.use == Use::kFree ? std::nullopt : timer_of(scope).times();
}

PyObject* times_or_none(const std::optional<TimerTimes>& times) {
  if (!times) {
    Py_RETURN_NONE;
  }
  Ref made(PyStructSequence_New(g_times_type));
  if (!made) {
    return nullptr;
  }
  std::array<Ref, 5> fields{seconds_of(times->elapsed), seconds_of(times->remaining),
                            Ref(PyBool_FromLong(times->is_paused ? 1 : 0)),
                            Ref(PyBool_FromLong(times->is_expired ? 1 : 0)),
                            seconds_of(times->timeout)};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!fields[i]) {
      return nullptr;
    }
    PyStructSequence_SetItem(made.get(), static_cast<Py_ssize_t>(i), fields[i].release());
  }
  return made.release();
}

PyObject* times(PyObject* self, PyObject*) {
  return guarded(static_cast<PyObject*>(nullptr), [&] { return times_or_none(times_now(self)); });
}

PyObject* again(PyObject* self, PyObject*) {
  const ScopeObject& scope = as_scope(self);
  ScopeObject* const copy = allocate(Py_TYPE(self));
  if (copy == nullptr) {
    return nullptr;
  }
  Py_XINCREF(scope.client);
  copy->client = scope.client;
  copy->owner = Py_NewRef(scope.owner);
  copy->text = scope.text;
  copy->size = scope.size;
  copy->line = scope.line;
  copy->timeout = scope.timeout;
  copy->options = scope.options;
  return reinterpret_cast<PyObject*>(copy);
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

// --- properties ---

PyObject* get_name(PyObject* self, void*) {
  return guarded(static_cast<PyObject*>(nullptr),
                 [&] { return text_of(name_of(as_scope(self))).release(); });
}

PyObject* get_timeout(PyObject* self, void*) {
  return seconds_of(nanoseconds{as_scope(self).timeout}).release();
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
    {"__enter__", enter, METH_NOARGS, "Opens the scope."},
    {"__exit__", as_method(leave), METH_FASTCALL,
     "Leaves the scope, in the thread that entered it."},
    {"acquire", acquire, METH_NOARGS,
     "acquire($self, /)\n--\n\n"
     "Opens the scope without `with`. release() ends it, from any thread, and so does the end of\n"
     "the object. Raises TimerError, also if the scope is open."},
    {"release", release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "Ends the scope now. Returns False if it was not open, or if the server's verdict came "
     "first."},
    {"renew", as_method(renew), METH_FASTCALL,
     "renew($self, timeout=None, /)\n--\n\n"
     "Moves the deadline to `timeout` from now, in seconds or a timedelta; None: the scope's own.\n"
     "Returns False if the scope is not open, or if the server's verdict came first."},
    {"pause", pause, METH_NOARGS,
     "pause($self, /)\n--\n\n"
     "Stops the scope's time until resume(), for a checkpoint or a debugger. The server's\n"
     "--max-timeout applies to the pause, too. Returns False if the scope is not open."},
    {"resume", resume, METH_NOARGS,
     "resume($self, /)\n--\n\n"
     "Gives the scope the time that was left. Returns False if the scope is not open."},
    {"times", times, METH_NOARGS,
     "times($self, /)\n--\n\n"
     "Returns Times(elapsed, remaining, paused, expired, timeout) of the scope; None: it is not\n"
     "open."},
    {"_acquire_heartbeat", acquire_heartbeat, METH_NOARGS, nullptr},
    {"_again", again, METH_NOARGS, nullptr},
    {"_leave", leave_in_time, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_properties[] = {
    {"name", get_name, nullptr, "The name that is shown (str).", nullptr},
    {"timeout", get_timeout, nullptr, "The timeout in seconds (float); math.inf: none.", nullptr},
    {"elapsed", get_elapsed, nullptr, "Seconds since the scope was opened (float); None: not open.",
     nullptr},
    {"remaining", get_remaining, nullptr,
     "Seconds until the deadline (float), negative after it; None: not open.", nullptr},
    {"is_open", get_is_open, nullptr, "Whether the scope is open and watched (bool).", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr const char* kScopeHelp =
    "Scope(timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n"
    "      on_expiry='kill', client=None)\n--\n\n"
    "A piece of work with a deadline, made once and entered many times:\n\n"
    "    forward = filetimer.Scope(30, 'forward')\n"
    "    for batch in batches:\n"
    "        with forward:\n"
    "            loss = model(batch)\n\n"
    "The server kills this process if the scope is still open after `timeout`. A scope can't be\n"
    "entered again while it is open, and must be left in the thread that entered it: each thread\n"
    "needs its own, and they may have one name. Also a decorator: each call of the function opens\n"
    "another scope. It may be made before configure().\n\n" FILETIMER_SCOPE_ARGUMENTS
    "client: a Client; None: the one of configure().\n";

PyStructSequence_Field g_times_fields[] = {
    {"elapsed", "seconds since the scope was opened"},
    {"remaining",
     "seconds until the deadline, negative after it, math.inf without one; of a paused scope: the "
     "time that it will have when it is resumed"},
    {"paused", "whether its time is stopped"},
    {"expired", "whether the server has given its verdict"},
    {"timeout",
     "seconds, of the last renewal if there was one, from the file of timeouts if it has the name; "
     "math.inf without a deadline"},
    {nullptr, nullptr}};
PyStructSequence_Desc g_times_description = {
    "filetimer._native.Times", "How long a timer has been open, and how much time it has left.",
    g_times_fields, 5};

}  // namespace

PyObject* expires(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return expires_in(nullptr, args, count, names);
}

PyObject* expires_of_client(PyObject* self, PyObject* const* args, Py_ssize_t count,
                            PyObject* names) {
  return expires_in(self, args, count, names);
}

PyObject* pause_task(PyObject*, PyObject*) {
  const PyThreadState* const thread = PyThreadState_Get();
  return guarded(static_cast<PyObject*>(nullptr), [&]() -> PyObject* {
    auto pause = std::make_unique<TaskPause>(
        TaskPause{Ref::to(thread->context), thread->thread_id, fork_watch::count()});
    task_pauses().reserve(task_pauses().size() + 1);
    Ref capsule(PyCapsule_New(pause.get(), kTaskPauseName, end_task_pause));
    if (!capsule) {
      return nullptr;
    }
    task_pauses().push_back(pause.get());
    const TaskPause& made = *pause.release();  // the capsule owns it from here on
    for (ScopeObject* scope = g_open_in_contexts; scope != nullptr; scope = scope->next) {
      if (concerns(made, *scope)) {
        pause_with_task(*scope);
      }
    }
    return capsule.release();
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
                         {Py_tp_traverse, as_slot(traverse_scope)},
                         {Py_tp_call, as_slot(decorate)},
                         {Py_tp_repr, as_slot(represent)},
                         {Py_tp_methods, g_methods},
                         {Py_tp_getset, g_properties},
                         {0, nullptr}};
  PyType_Spec spec = {"filetimer.Scope", sizeof(ScopeObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  g_scope_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  g_times_type = PyStructSequence_NewType(&g_times_description);
  return g_never_raises != nullptr && g_raises != nullptr && g_scope_type != nullptr &&
         g_times_type != nullptr && PyModule_AddType(module, g_scope_type) == 0 &&
         PyModule_AddType(module, g_times_type) == 0;
}

}  // namespace filetimer::python
