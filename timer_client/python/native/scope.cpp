// SPDX-License-Identifier: MIT
#include <signal.h>

#include <algorithm>
#include <array>
#include <forward_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/client/page/thread_slots.hpp"
#include "timer_client/client/process_lock.hpp"
#include "timer_client/client/scope_terms.hpp"
#include "timer_client/python/native/native.hpp"

namespace filetimer::python {
namespace {

enum class Use : char {
  kFree,
  kEntered,    // by `with`, which must leave it
  kLeftEarly,  // ended by release(); `with` has not left it yet
  kAcquired,   // by acquire()
};

// One use of a Scope, from its opening to its end.
struct Opening {
  Use use = Use::kFree;
  unsigned fork_count = 0;
  unsigned long thread = 0;
  // That has entered a further opening, while the Scope was open in a recursion, another thread,
  // task or generator; only compared. The first opening is that of none of them.
  const void* frame = nullptr;
  const void* user = nullptr;              // of the context manager that `frame` is, a generator
  TimerScope timer{};                      // not open if kFree, kLeftEarly, or of Kind::kPause
  std::unique_ptr<PausedRegion> region{};  // of Kind::kPause

  void end() {
    timer.release();
    region.reset();
    use = Use::kFree;
  }
};

enum class Kind : char {
  kPlain,
  kBeginning,  // each opening has the first timeout, not only the first of its name
  kHeartbeat,  // a beginning; if it is open, a `with` only leaves it
  kPause,      // an opening is a paused region, and its timer is not open
};

struct Scope {
  Ref client;  // null: the default one
  Name name;
  nanoseconds timeout;
  std::shared_ptr<const ScopeOptions> options;  // null: kDefaultScopeOptions
  Kind kind = Kind::kPlain;
  Opening first{};
  std::forward_list<Opening> others{};  // the latest first
};

struct ScopeObject {
  PyObject_HEAD Scope scope;
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

Scope& as_scope(PyObject* self) {
  return reinterpret_cast<ScopeObject*>(self)->scope;
}

bool is_word(PyObject* value, const char* word) {
  return PyUnicode_Check(value) != 0 && PyUnicode_CompareWithASCIIString(value, word) == 0;
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
  const bool raises = on_expiry != nullptr && is_word(on_expiry, "raise");
  if (on_expiry != nullptr && !raises && !is_word(on_expiry, "kill")) {
    return refuse("on_expiry is %R: expected 'kill' or 'raise'", on_expiry);
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
    set_error(g_errors.invalid_argument, why_no_warn_after(read.warn_after->value(), timeout));
    return false;
  }
  if (raises) {
    if (read.signal != SIGKILL) {
      return refuse("on_expiry='raise' has a signal of its own: expected no other");
    }
    if (read.grace &&
        (read.grace->value() == nanoseconds{} || read.grace->value() == kNoDeadline)) {
      return refuse("the grace is %R: with on_expiry='raise' expected more than 0, and no infinity",
                    arguments[kGrace]);
    }
    read.signal_first = true;
    if (!find_raising(type, read.signal)) {
      return false;
    }
  }
  options = std::make_shared<const ScopeOptions>(read);
  return true;
}

// `arguments` are borrowed; null: not given.
PyObject* make_scope(PyTypeObject* type, PyObject* client, const Arguments& arguments) {
  Timeout timeout{nanoseconds{}};
  Name name;
  if (!to_timeout(arguments[kTimeout], "the timeout", timeout) ||
      !(is_given(arguments[kName]) ? to_name(arguments[kName], name) : name_of_caller(name))) {
    return nullptr;
  }
  Ref raising;
  std::shared_ptr<const ScopeOptions> options;
  const bool has_options =
      std::any_of(arguments.begin() + kSignal, arguments.begin() + kClient,
                  [](const PyObject* argument) { return argument != nullptr; });
  if (has_options &&
      !guarded(false, [&] { return read_options(arguments, timeout.value(), raising, options); })) {
    return nullptr;
  }
  auto* const raising_type = reinterpret_cast<PyTypeObject*>(raising.get());
  if (raising && type != g_scope_type && type != raising_type) {
    return PyErr_Format(PyExc_TypeError,
                        "on_expiry='raise' has a class of its own: expected filetimer.Scope or "
                        "expires(), and no subclass of Scope");
  }
  PyObject* const self = PyType_GenericAlloc(raising ? raising_type : type, 0);
  if (self != nullptr) {
    new (&as_scope(self))
        Scope{Ref::to(client), std::move(name), timeout.value(), std::move(options)};
  }
  return self;
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
    return set_type_error("the client", client, "expected a filetimer.Client");
  }
  return make_scope(type, client, given);
}

int argument_called(PyObject* word) {
  const auto* found = std::ranges::find(g_words, word);
  if (found == g_words.end()) {
    found = std::ranges::find_if(
        g_words, [&](PyObject* each) { return PyUnicode_Compare(each, word) == 0; });
  }
  const auto place = static_cast<int>(found - g_words.begin());
  if (place < kClient) {
    return place;
  }
  PyErr_Format(PyExc_TypeError, "expires() got an unexpected keyword argument %R", word);
  return -1;
}

// --- openings ---

// Returns an attribute of a frame; empty: None, or there is no memory. Runs no Python code.
Ref frame_attribute(PyObject* frame, const char* name) {
  Ref value(PyObject_GetAttrString(frame, name));
  if (!value) {
    PyErr_Clear();
  }
  return value.get() == Py_None ? Ref() : std::move(value);
}

bool has_any_flag(PyObject* frame, long flags) {
  const Ref code = frame_attribute(frame, "f_code");
  const Ref found = code ? frame_attribute(code.get(), "co_flags") : Ref();
  return found && (PyLong_AsLong(found.get()) & flags) != 0;
}

constexpr long kCoroutine = 0x80;          // CO_COROUTINE
constexpr long kGenerator = 0x20 | 0x200;  // CO_GENERATOR, CO_ASYNC_GENERATOR

// Returns whether the frame is that of a generator, whose caller may differ from step to step.
bool is_generator(PyObject* frame) {
  return has_any_flag(frame, kGenerator);
}

Ref caller_of(PyObject* frame) {
  return frame_attribute(frame, "f_back");
}

// Returns whether the caller only resumes the frame: that of a generator, or the outermost one of a
// task.
bool is_resumed(PyObject* frame) {
  const Ref caller = caller_of(frame);
  return is_generator(frame) ||
         (has_any_flag(frame, kCoroutine) && !(caller && has_any_flag(caller.get(), kCoroutine)));
}

// Returns whether the function enters scopes for its caller, as ExitStack and a context manager do.
bool enters_for_caller(PyObject* frame) {
  const Ref code = frame_attribute(frame, "f_code");
  const Ref function = code ? frame_attribute(code.get(), "co_name") : Ref();
  constexpr std::array kMethods{"__enter__", "__exit__", "__aenter__", "__aexit__"};
  if (function && std::ranges::any_of(kMethods, [&](const char* method) {
        return is_word(function.get(), method);
      })) {
    return true;
  }
  const Ref globals = frame_attribute(frame, "f_globals");
  PyObject* const name = globals ? PyDict_GetItemString(globals.get(), "__name__") : nullptr;
  // contextlib's "inner" wraps a decorated function and enters the context manager for itself.
  const bool is_decorated = function && is_word(function.get(), "inner");
  return name != nullptr &&
         ((is_word(name, "contextlib") && !is_decorated) || is_word(name, "filetimer._expiry"));
}

// Returns the frame, or the nearest of its callers, that enters scopes for itself.
Ref past_entering(Ref frame) {
  while (frame && enters_for_caller(frame.get())) {
    frame = caller_of(frame.get());
  }
  return frame;
}

// Returns the frame that enters a scope. Runs no Python code.
Ref entering_frame() {
  return past_entering(Ref::to(reinterpret_cast<PyObject*>(PyEval_GetFrame())));
}

// Returns whether code with any of these flags runs in this thread, as that of a task.
bool is_in_any(long flags) {
  Ref frame = entering_frame();
  while (frame && !has_any_flag(frame.get(), flags)) {
    frame = caller_of(frame.get());
  }
  return static_cast<bool>(frame);
}

// Returns the frame that uses a generator as its context manager, also through further ones; empty:
// none does.
Ref user_of(PyObject* frame) {
  Ref caller = is_generator(frame) ? caller_of(frame) : Ref();
  if (!caller || !enters_for_caller(caller.get())) {
    return {};
  }
  Ref user = past_entering(std::move(caller));
  Ref further = user ? user_of(user.get()) : Ref();
  return further ? std::move(further) : std::move(user);
}

void end_opening(Scope& scope, Opening& opening) {
  opening.end();
  if (&opening != &scope.first) {
    scope.others.remove_if([&](const Opening& each) { return &each == &opening; });
  }
}

// Returns whether the scope is open. If only the parent process has opened it, ends that.
[[gnu::cold]] bool is_open_already(Scope& scope) {
  const auto is_inherited = [](const Opening& each) {
    return each.fork_count != fork_watch::count();
  };
  if (is_inherited(scope.first)) {
    scope.first.end();
  }
  scope.others.remove_if(is_inherited);
  return scope.first.use != Use::kFree || !scope.others.empty();
}

// Throws std::bad_alloc.
Opening& further_opening(Scope& scope, Use use) {
  const Ref frame = use == Use::kEntered ? entering_frame() : Ref();
  const Ref user = frame ? user_of(frame.get()) : Ref();
  Opening& made = scope.others.emplace_front();
  made.frame = frame.get();
  made.user = user.get();
  return made;
}

bool is_open(const Opening& opening) {
  return opening.use == Use::kEntered || opening.use == Use::kAcquired;
}

// Returns the opening that the nearest function of the caller's stack has entered, which in asyncio
// is one of its task. Null: none of those that have a frame. Runs no Python code.
// `leaves`: for a `with`, which a generator or a task does not leave for the code that resumes it.
template <class IsWanted>
[[gnu::cold]] Opening* opening_in_stack(Scope& scope, bool leaves, IsWanted is_wanted) {
  const unsigned long thread = PyThread_get_thread_ident();
  for (Ref frame = entering_frame(); frame;
       frame = leaves && is_resumed(frame.get()) ? Ref() : caller_of(frame.get())) {
    for (Opening& each : scope.others) {
      // A frame of another thread may have had that address, and a generator may change its thread.
      if ((each.frame == frame.get() || (!leaves && each.user == frame.get())) && is_wanted(each) &&
          (each.thread == thread || is_generator(frame.get()))) {
        return &each;
      }
    }
  }
  return nullptr;
}

template <class IsWanted>
Opening* latest_other(Scope& scope, IsWanted is_wanted) {
  const auto found = std::ranges::find_if(scope.others, is_wanted);
  return found == scope.others.end() ? nullptr : &*found;
}

// Returns the opening that a `with` leaves; null: none. A generator may be left in another thread.
// If no function of the stack has entered one, as in a function that has returned, this thread has.
Opening* opening_to_leave(Scope& scope) {
  const unsigned fork_count = fork_watch::count();
  const auto is_in_with = [&](const Opening& each) {
    return (each.use == Use::kEntered || each.use == Use::kLeftEarly) &&
           each.fork_count == fork_count;
  };
  Opening* const first = is_in_with(scope.first) ? &scope.first : nullptr;
  if (scope.others.empty()) [[likely]] {
    return first;
  }
  if (Opening* const found = opening_in_stack(scope, true, is_in_with)) {
    return found;
  }
  const Ref frame = entering_frame();
  const bool is_of_thread = !frame || !is_generator(frame.get());
  const auto is_likely = [&](const Opening& each) {
    return is_in_with(each) && (!is_of_thread || each.thread == PyThread_get_thread_ident());
  };
  Opening* const likely = is_likely(scope.first) ? first : latest_other(scope, is_likely);
  return likely != nullptr ? likely : first != nullptr ? first : latest_other(scope, is_in_with);
}

// Returns the opening that the other methods concern; null: none. It is the latest one of this
// thread if acquire() made it, else another one of this thread, else one of acquire(), else the
// only one, or in a generator, which another thread may have begun, the first one; none in a `with`
// of this function, or task, that was ended.
Opening* open_one(Scope& scope) {
  const unsigned fork_count = fork_watch::count();
  const auto is_open_here = [&](const Opening& each) {
    return is_open(each) && each.fork_count == fork_count;
  };
  if (scope.others.empty()) [[likely]] {
    return is_open_here(scope.first) ? &scope.first : nullptr;
  }
  const unsigned long thread = PyThread_get_thread_ident();
  const auto is_of_thread = [&](const Opening& each) {
    return each.use != Use::kFree && each.fork_count == fork_count && each.thread == thread;
  };
  const auto is_open_in_thread = [&](const Opening& each) {
    return is_open(each) && is_of_thread(each);
  };
  Opening* const latest = latest_other(scope, is_open_in_thread);
  if (latest != nullptr && latest->use == Use::kAcquired) {
    return latest;
  }
  Opening* const around = opening_in_stack(
      scope, false, [&](const Opening& each) { return each.fork_count == fork_count; });
  if (around != nullptr) {
    return is_open(*around) ? around : nullptr;
  }
  const bool was_first_left = scope.first.use == Use::kLeftEarly && is_of_thread(scope.first);
  if (was_first_left && is_in_any(kCoroutine)) {
    return nullptr;  // this may be its task
  }
  const auto find = [&](const auto& is_wanted) {
    return is_wanted(scope.first) ? &scope.first : latest_other(scope, is_wanted);
  };
  Opening* found = find(is_open_in_thread);
  if (found == nullptr && !was_first_left) {
    found =
        find([&](const Opening& each) { return is_open_here(each) && each.use == Use::kAcquired; });
  }
  if (found == nullptr && find(is_of_thread) == nullptr) {
    const auto others = std::ranges::count_if(scope.others, is_open_here);
    const bool is_any = others + (is_open_here(scope.first) ? 1 : 0) == 1 ||
                        (is_in_any(kGenerator) && is_open_here(scope.first));
    found = is_any ? find(is_open_here) : nullptr;
  }
  return found;
}

// --- entering and leaving ---

// `client` needs no Py_tp_clear: other objects of a cycle can be cleared.
int traverse_scope(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const Scope& scope = as_scope(self);
  Py_VISIT(scope.client.get());
  return 0;
}

void dealloc_scope(PyObject* self) {
  PyObject_GC_UnTrack(self);
  as_scope(self).~Scope();
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// Opens the timer of a scope, or the region of a pause. A heartbeat has a first timeout of its own,
// and so has a beginning.
TimerScope timer_for(TimerClient& client, const Scope& scope, Opening& opening) {
  const ScopeOptions& options = scope.options ? *scope.options : kDefaultScopeOptions;
  const char* const text = scope.name.text;
  const std::string_view name{text, scope.name.size};
  if (scope.kind == Kind::kPause) [[unlikely]] {
    opening.region.reset(new PausedRegion(client.paused(name, text, scope.name.line)));
    return {};
  }
  return scope.kind == Kind::kBeginning || scope.kind == Kind::kHeartbeat
             ? client.heartbeat(scope.timeout, name, options, text, scope.name.line).scope()
             : client.expires(scope.timeout, name, options, text, scope.name.line);
}

// After close() the opening has a timer that is not open.
bool open_timer(PyObject* self, Use use) {
  Scope& scope = as_scope(self);
  TimerClient* client = open_client(scope.client.get());
  if (client == nullptr && PyErr_Occurred() != nullptr) [[unlikely]] {
    return false;
  }
  Opening* opening = &scope.first;
  try {
    // The first opening stays the oldest: it is not used while others are open.
    if ((scope.first.use != Use::kFree || !scope.others.empty()) && is_open_already(scope))
        [[unlikely]] {
      opening = &further_opening(scope, use);
      // The garbage collector may have run, and a finaliser may have closed the client.
      client = open_client(scope.client.get());
    }
    if (client != nullptr) [[likely]] {
      // In place, since that costs less than a move. The timer that was there is not open.
      new (&opening->timer) TimerScope(timer_for(*client, scope, *opening));
    }
  } catch (...) {
    if (opening != &scope.first) {
      scope.others.pop_front();
    }
    set_error_of_exception();
    return false;
  }
  opening->use = use;
  opening->thread = PyThread_get_thread_ident();
  opening->fork_count = fork_watch::count();
  if (client != nullptr && !offer_stacks_in_child(scope.client.get())) [[unlikely]] {
    end_opening(scope, *opening);
    return false;
  }
  return true;
}

bool raises(const Scope& scope) {
  return scope.options && scope.options->signal_first;
}

std::optional<TimerTimes> times_now(PyObject* self) {
  Opening* const opening = open_one(as_scope(self));
  return opening == nullptr ? std::nullopt : opening->timer.times();
}

// Opens a heartbeat that is not open, and ends what its release() has left of the one before.
bool enter_heartbeat(PyObject* self) {
  Scope& scope = as_scope(self);
  if (times_now(self)) {
    return true;
  }
  if (Opening* const last = opening_to_leave(scope)) {
    end_opening(scope, *last);
  }
  return open_timer(self, Use::kEntered);
}

PyObject* enter(PyObject* self, PyObject*) {
  if (as_scope(self).kind == Kind::kHeartbeat) [[unlikely]] {
    return enter_heartbeat(self) ? Py_NewRef(self) : nullptr;
  }
  if (raises(as_scope(self)) && !Ref(PyObject_CallMethod(self, "_before_enter", nullptr))) {
    return nullptr;
  }
  return open_timer(self, Use::kEntered) ? Py_NewRef(self) : nullptr;
}

PyObject* acquire(PyObject* self, PyObject*) {
  return open_timer(self, Use::kAcquired) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* release(PyObject* self, PyObject*) {
  Scope& scope = as_scope(self);
  Opening* const opening = open_one(scope);
  if (opening == nullptr) {
    Py_RETURN_FALSE;
  }
  const bool in_time{opening->timer.release()};
  if (opening->use == Use::kEntered) {
    opening->use = Use::kLeftEarly;
  } else {
    end_opening(scope, *opening);
  }
  return PyBool_FromLong(in_time ? 1 : 0);
}

// Opens a heartbeat anew that has expired, or was not watched: its loop goes on, and may hang
// later.
bool begin_again(const Scope& scope, Timeout timeout, Opening& opening) {
  TimerClient* const client = open_client(scope.client.get());
  if (client == nullptr) {
    return PyErr_Occurred() == nullptr;  // after close() it is not open
  }
  ScopeOptions options = scope.options ? *scope.options : kDefaultScopeOptions;
  options.first_timeout.reset();
  const char* const text = scope.name.text;
  opening.timer =
      client->expires(timeout, {text, scope.name.size}, options, text, scope.name.line);
  return true;
}

PyObject* renew(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Scope& scope = as_scope(self);
  std::optional<Timeout> timeout;
  if (!to_only_timeout("renew", args, count, timeout)) {
    return nullptr;
  }
  Opening* const opening = open_one(scope);
  return guarded([&]() -> PyObject* {
    const Timeout after = timeout.value_or(scope.timeout);
    const bool is_renewed = opening != nullptr && opening->timer.renew(after);
    if (!is_renewed && opening != nullptr && scope.kind == Kind::kHeartbeat) [[unlikely]] {
      return begin_again(scope, after, *opening) ? Py_NewRef(Py_False) : nullptr;
    }
    return PyBool_FromLong(is_renewed ? 1 : 0);
  });
}

// For pause() and resume().
template <auto Change>
PyObject* change(PyObject* self, PyObject*) {
  Opening* const opening = open_one(as_scope(self));
  return guarded(
      [&] { return PyBool_FromLong(opening != nullptr && (opening->timer.*Change)() ? 1 : 0); });
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
                            Ref(PyBool_FromLong(times->paused ? 1 : 0)),
                            Ref(PyBool_FromLong(times->expired ? 1 : 0)),
                            seconds_of(times->timeout)};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!fields[i]) {
      return nullptr;
    }
    PyStructSequence_SetItem(made.get(), static_cast<Py_ssize_t>(i), fields[i].release());
  }
  return made.release();
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Scope& scope = as_scope(self);
  std::optional<TimerTimes> times;
  if (Opening* const opening = opening_to_leave(scope)) {
    times = raises(scope) ? opening->timer.times() : std::nullopt;
    end_opening(scope, *opening);
  }
  if (!raises(scope)) [[likely]] {
    Py_RETURN_NONE;
  }
  const Ref made(times_or_none(times));
  return made ? PyObject_CallMethod(self, "_after_exit", "OO", made.get(),
                                    count > 0 ? args[0] : Py_None)
              : nullptr;
}

PyObject* times(PyObject* self, PyObject*) {
  return guarded([&] { return times_or_none(times_now(self)); });
}

// Returns the times of all openings, in a list.
PyObject* all_times(PyObject* self, PyObject*) {
  Scope& scope = as_scope(self);
  return guarded([&] {
    // First without Python's objects: a new one may start the garbage collector, and a finaliser
    // may release an opening.
    std::vector<std::optional<TimerTimes>> all;
    const auto add = [&](Opening& each) {
      all.push_back(is_open(each) ? each.timer.times() : std::nullopt);
    };
    add(scope.first);
    std::ranges::for_each(scope.others, add);
    Ref list(PyList_New(0));
    for (const auto& times : all) {
      const Ref made(times && list ? times_or_none(times) : nullptr);
      if (times && (!made || PyList_Append(list.get(), made.get()) != 0)) {
        list = Ref();
      }
    }
    return list.release();
  });
}

// Returns a copy that is not open.
template <Kind AsKind>
PyObject* again(PyObject* self, PyObject*) {
  const Scope& scope = as_scope(self);
  PyObject* const copy = PyType_GenericAlloc(Py_TYPE(self), 0);
  if (copy != nullptr) {
    new (&as_scope(copy))
        Scope{Ref(scope.client), scope.name, scope.timeout, scope.options, AsKind};
  }
  return copy;
}

PyObject* decorate(PyObject* self, PyObject* args, PyObject* names) {
  PyObject* function = nullptr;
  if (names != nullptr && PyDict_Size(names) != 0) {
    return PyErr_Format(PyExc_TypeError, "a scope as a decorator takes one function");
  }
  if (PyArg_ParseTuple(args, "O:Scope.__call__", &function) == 0) {
    return nullptr;
  }
  const Ref module(PyImport_ImportModule("filetimer._decorator"));
  return module ? PyObject_CallMethod(module.get(), "decorate", "OO", self, function) : nullptr;
}

// --- properties ---

PyObject* get_name(PyObject* self, void*) {
  return guarded([&] {
    const Name& name = as_scope(self).name;
    const ScopeKey key = name.line == 0 ? ScopeKey::of_name({name.text, name.size})
                                        : ScopeKey::of_line(name.text, name.line);
    return text_of(whole_name(key)).release();
  });
}

PyObject* get_timeout(PyObject* self, void*) {
  return seconds_of(as_scope(self).timeout).release();
}

// For `elapsed` and `remaining`.
template <auto Time>
PyObject* get_time(PyObject* self, void*) {
  return guarded([&] {
    const auto found = times_now(self);
    return found ? seconds_of((*found).*Time).release() : Py_NewRef(Py_None);
  });
}

PyObject* get_is_open(PyObject* self, void*) {
  return guarded([&] { return PyBool_FromLong(times_now(self) ? 1 : 0); });
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
    {"__exit__", as_method(leave), METH_FASTCALL, "Leaves the scope."},
    {"acquire", acquire, METH_NOARGS,
     "acquire($self, /)\n--\n\n"
     "Opens the scope without `with`. release() ends it, from any thread, and so does the end of\n"
     "the object."},
    {"release", release, METH_NOARGS,
     "release($self, /)\n--\n\n"
     "Ends the scope now. Returns False if it was not open, or if the server's verdict came "
     "first."},
    {"renew", as_method(renew), METH_FASTCALL,
     "renew($self, timeout=None, /)\n--\n\n"
     "Moves the deadline to `timeout` from now, in seconds or a timedelta; None: the scope's own.\n"
     "Returns False if the scope is not open, or if the server's verdict came first; a heartbeat\n"
     "that is not released is then opened anew."},
    {"pause", change<&TimerScope::pause>, METH_NOARGS,
     "pause($self, /)\n--\n\n"
     "Stops the scope's time until resume(), for a checkpoint or a debugger. The server's\n"
     "--max-timeout applies to the pause, too. Returns False if the scope is not open."},
    {"resume", change<&TimerScope::resume>, METH_NOARGS,
     "resume($self, /)\n--\n\n"
     "Gives the scope the time that was left. Returns False if the scope is not open."},
    {"times", times, METH_NOARGS,
     "times($self, /)\n--\n\n"
     "Returns Times(elapsed, remaining, paused, expired, timeout) of the scope; None: it is not\n"
     "open."},
    {"_again", again<Kind::kPlain>, METH_NOARGS, nullptr},
    {"_beginning", again<Kind::kBeginning>, METH_NOARGS, nullptr},
    {"_beating", again<Kind::kHeartbeat>, METH_NOARGS, nullptr},
    {"_pausing", again<Kind::kPause>, METH_NOARGS, nullptr},
    {"_all_times", all_times, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_properties[] = {
    {"name", get_name, nullptr, "The name that is shown (str).", nullptr},
    {"timeout", get_timeout, nullptr, "The timeout in seconds (float); math.inf: none.", nullptr},
    {"elapsed", get_time<&TimerTimes::elapsed>, nullptr,
     "Seconds since the scope was opened (float); None: not open.", nullptr},
    {"remaining", get_time<&TimerTimes::remaining>, nullptr,
     "Seconds until the deadline (float), negative after it; None: not open.", nullptr},
    {"is_open", get_is_open, nullptr,
     "Whether the scope is open (bool). Whether a server runs: Client.is_watched.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr const char* kScopeHelp =
    "Scope(timeout, name=None, *, signal=9, grace=None, warn_after=None, first_timeout=None,\n"
    "      on_expiry='kill', client=None)\n--\n\n"
    "A piece of work with a deadline, made once and entered many times:\n\n"
    "    forward = filetimer.Scope(30, 'forward')\n"
    "    for batch in batches:\n"
    "        with forward:\n"
    "            loss = model(batch)\n\n"
    "The server kills this process if the scope is still open after `timeout`. A scope may be\n"
    "entered again while it is open, in a recursion, another thread, task or generator: each "
    "entry\n"
    "has a deadline of its own, and the other methods concern that of the innermost `with` around\n"
    "the call, or of a later acquire() of this thread. Also a decorator: each call of the "
    "function\n"
    "opens another scope. It may be made before configure().\n\n" FILETIMER_SCOPE_ARGUMENTS
    "client: a Client; None: the one of configure().\n";

PyStructSequence_Field g_times_fields[] = {
    {"elapsed", "seconds since the scope was opened"},
    {"remaining",
     "seconds until the deadline, negative after it, math.inf without one; of a paused scope: the "
     "time that it will have when it is resumed, or negative once the pause has lasted for the "
     "server's --max-timeout"},
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

PyObject* expires(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Arguments given{};
  if (count > 2) {
    return PyErr_Format(
        PyExc_TypeError,
        "expires() takes a timeout and a name, and the rest by keyword: %zd were given", count);
  }
  std::copy_n(args, count, given.begin());
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int place = argument_called(PyTuple_GetItem(names, i));
    if (place < 0) {
      return nullptr;
    }
    PyObject*& argument = given[static_cast<std::size_t>(place)];
    if (argument != nullptr) {
      return PyErr_Format(PyExc_TypeError, "expires() got %R twice", PyTuple_GetItem(names, i));
    }
    argument = args[count + i];
  }
  if (given[kTimeout] == nullptr) {
    return PyErr_Format(PyExc_TypeError, "expires() needs a timeout, in seconds");
  }
  return make_scope(g_scope_type, PyModule_Check(self) ? nullptr : self, given);
}

bool add_scope_type(PyObject* module) {
  for (std::size_t i = 0; i < g_words.size(); ++i) {
    g_words[i] = PyUnicode_InternFromString(kWords[i]);
    if (g_words[i] == nullptr) {
      return false;
    }
  }
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
  return g_scope_type != nullptr && g_times_type != nullptr &&
         PyModule_AddType(module, g_scope_type) == 0 && PyModule_AddType(module, g_times_type) == 0;
}

}  // namespace filetimer::python
