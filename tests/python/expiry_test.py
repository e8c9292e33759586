# SPDX-License-Identifier: MIT
"""Scopes with on_expiry="raise": ScopeExpired at the deadline, then SIGKILL if the worker stays."""
import os
import signal

import filetimer
import suite
from harness import ServerCase, worker_test

SOFT = """
filetimer.configure()
def soft(timeout, name="x", **more):
    return filetimer.expires(timeout, name, on_expiry="raise", **more)
def hang():
    time.sleep(60)
def raised_in(scope, work=hang):
    try:
        with scope:
            work()
    except filetimer.ScopeExpired as error:
        return error
"""

# Lets the worker choose when it receives the signal.
LATE_SIGNAL = """
from filetimer import _expiry
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
def wait_for_signal():
    while _expiry._number not in signal.sigpending():
        time.sleep(0.01)
def unblock(frame, event, _):
    "For sys.setprofile(): receives the signal while the scope is left."
    if event == "call" and frame.f_code.co_name == "_after_exit":
        sys.setprofile(None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
"""
UNBLOCKED_AT_THE_END = LATE_SIGNAL + """
class Late:
    def __del__(self, mask=signal.pthread_sigmask, how=signal.SIG_UNBLOCK, them=signal.valid_signals()):
        mask(how, them)  # after Python has removed its handlers
late = Late()
"""


def soft_test(script, **options):
    return worker_test(SOFT + script, **options)


class Raises(ServerCase):
    def run_soft(self, script, *args, **options):
        return self.run_worker(SOFT + script, *args, **options)

    def test_it_is_raised_at_the_deadline_and_the_worker_continues(self):
        out = self.run_soft("""
begin = time.monotonic()
try:
    with soft(0.3, "forward", grace=5):
        time.sleep(60)
except TimeoutError as error:
    took = time.monotonic() - begin
    assert isinstance(error, filetimer.ScopeExpired)
    say(error.scope, error.timeout, 0.3 <= error.elapsed <= took < 10)
    say(error)
with filetimer.expires(60, "next") as scope:
    assert scope.is_open and filetimer.admin.status().open_scopes == 1
""")
        self.assertRegex(out, r"^forward 0.3 True\n'forward' was open for \d+\.\d+ s of 0.3 s:")
        warned = self.record("warned")
        self.assertEqual((warned["scope"], warned["reason"]), ("forward", "its timeout has passed"))
        self.assertEqual(warned["signal"], signal.SIGRTMIN + 4)
        self.server.close()  # the log is written to its end
        self.assertEqual(self.records("expired"), [])

    test_a_scope_that_another_thread_has_made_raises_in_the_main_thread = soft_test("""
made = []
in_thread(lambda: made.append(soft(0.2, grace=20)))
say(raised_in(made[0]).scope)
""", says="x\n")

    test_it_is_raised_where_another_thread_was_the_first_to_import_threading = worker_test("""
script = '''
import _thread, sys, time
lock = _thread.allocate_lock()
lock.acquire()
def work():
    import threading
    lock.release()
_thread.start_new_thread(work, ())
lock.acquire()
sys.path.insert(0, sys.argv[1])
import filetimer
try:
    with filetimer.expires(0.3, on_expiry="raise", grace=20):
        time.sleep(60)
except filetimer.ScopeExpired:
    print("raised")
'''
package = os.path.dirname(os.path.dirname(filetimer.__file__))
os.execv(sys.executable, [sys.executable, "-S", "-c", script, package])
""", says="raised\n")

    def test_a_scope_is_used_again_after_it_raised(self):
        self.run_soft(LATE_SIGNAL + """
server = filetimer.admin.status().server_pid
scope = filetimer.Scope(0.1, "again", on_expiry="raise", grace=20)
for is_late in False, True, False, True, True, False:
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() if is_late else [])
    error = raised_in(scope, wait_for_signal if is_late else hang)
    say(error.scope, scope.is_open, scope.times())
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.kill(server, signal.SIGSTOP)  # so that it is renewed in time
    with scope:
        scope.renew(60)
    scope.acquire()
    scope.renew(60)
    assert scope.release()
    os.kill(server, signal.SIGCONT)
""", says="again False None\n" * 6)
        self.server.close()  # the log is written to its end
        self.assertEqual(len([each for each in self.records("warned") if each["scope"] == "again"]), 6)
        self.assertEqual(self.records("expired"), [])

    test_a_scope_that_has_raised_raises_again_if_it_is_entered_while_it_is_open = soft_test("""
scope = filetimer.Scope(0.2, "nested", on_expiry="raise", grace=20)
with scope:
    for _ in range(2):
        try:
            time.sleep(60)
        except filetimer.ScopeExpired:
            say("outer")
            break
    for _ in range(2):
        begin = time.monotonic()
        say("inner", raised_in(scope).elapsed <= time.monotonic() - begin)
""", says="outer\ninner True\ninner True\n")

    test_a_scope_that_has_raised_and_is_paused_raises_again_if_it_is_entered = soft_test("""
scope = filetimer.Scope(0.2, "nested", on_expiry="raise", grace=20)
for is_left_paused in False, True:
    with scope:
        try:
            time.sleep(60)
        except filetimer.ScopeExpired:
            say("outer", scope.pause())
        say(raised_in(scope).timeout)
        is_left_paused or scope.resume()
""", says="outer True\n0.2\nouter True\n0.2\n")

    test_an_entry_that_is_left_while_its_signal_is_pending_raises_inside_one_that_has = soft_test(
        LATE_SIGNAL + """
signal.pthread_sigmask(signal.SIG_SETMASK, [])
scope = soft(0.2, grace=60)
with scope:
    try:
        time.sleep(60)
    except filetimer.ScopeExpired:
        say("outer")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with scope:
            while scope.remaining > 0:
                time.sleep(0.01)
            wait_for_signal()
    except filetimer.ScopeExpired:
        say("inner")
""", says="outer\ninner\n")

    test_the_release_of_an_inner_entry_lets_the_outer_one_raise = soft_test("""
scope = soft(0.3, "nested", grace=20)
try:
    with scope:
        with scope:
            scope.release()
        time.sleep(60)
except filetimer.ScopeExpired as error:
    say(error.scope)
""", says="nested\n")

    test_an_entry_that_raised_and_was_renewed_takes_no_exception_from_another = soft_test("""
scope = filetimer.Scope(0.2, "nested", on_expiry="raise", grace=20)
with scope:
    try:
        time.sleep(60)
    except filetimer.ScopeExpired:
        say("outer", scope.renew(60))
    say(raised_in(scope).scope)
""", says="outer True\nnested\n")

    test_a_finaliser_may_release_an_entry_while_all_are_read = soft_test("""
import gc

class Holder:
    def __init__(self):
        scope.acquire()
        self.me = self
    def __del__(self):
        scope.release()

gc.disable()
scope = filetimer.Scope(60, "held", on_expiry="raise")
for collected_after in range(1, 15):
    for _ in range(20):
        Holder()
    gc.set_threshold(gc.get_count()[0] + collected_after)
    gc.enable()
    scope._all_times()
    gc.disable()
    gc.collect()
say(scope.is_open)
""", says="False\n")

    def test_the_error_has_the_timeout_of_a_file_that_replaced_the_one_in_the_code(self):
        path = os.path.join(self.folder, "timeouts.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write('forward = "300ms"\n')
        self.run_soft("""
filetimer.configure(timeouts=sys.argv[1])
scope = soft(3600, "forward", grace=5)
error = raised_in(scope, lambda: (say(scope.times().timeout), hang()))
say(error.timeout, "of 0.3 s" in str(error))
""", path, says="0.3\n0.3 True\n")

    def test_the_limit_of_a_server_that_starts_later_raises_too(self):
        for what in "running", "paused":
            self.server.close()
            worker = self.start_worker(SOFT + """
scope = soft(100, grace=20)
error = raised_in(scope, lambda: (sys.argv[1] == "running" or scope.pause(), say("inside"), hang()))
say(error.scope)
""", what)
            self.assertEqual(worker.stdout.readline(), "inside\n")
            self.server = filetimer.Server("--max-timeout", "300ms", dir=self.dir)
            self.addCleanup(self.server.close)
            self.assertEqual(worker.communicate(timeout=suite.BOUND_S)[0], "x\n")

    def test_evidence_has_the_python_stack(self):
        for _ in range(5):  # a slow machine may read the stack too early, or not within a second
            pid = int(self.run_soft("""
raised_in(soft(0.2, grace=5))
time.sleep(0.8)
say(os.getpid())
"""))
            warned = self.record("warned", pid)
            if " in hang" in str(warned.get("python_threads")):
                break
        self.assertIn(" in hang", str(warned["python_threads"][0]))

    def test_a_worker_that_catches_it_and_stays_is_killed_after_the_grace(self):
        for grace in "0.3", "4":  # the second time if the machine took longer than the first
            worker = self.start_worker(SOFT + """
with soft(0.2, grace=float(sys.argv[1])):
    try:
        time.sleep(60)
    except filetimer.ScopeExpired:
        say("caught")
        time.sleep(60)
""", grace)
            if out := worker.communicate(timeout=30)[0]:
                break
        self.assertEqual((out, worker.returncode), ("caught\n", -signal.SIGKILL))
        killed = self.record("killed", worker.pid)
        self.assertEqual([sent["signal"] for sent in killed["signals"]], [signal.SIGKILL])
        self.assertEqual(len(self.records("warned", worker.pid)), 1)

    test_a_wait_for_a_lock_ends_as_well = soft_test("""
lock = threading.Lock()
lock.acquire()
raised_in(soft(0.2), lock.acquire)
""")

    test_a_wait_for_an_answer_ends_as_well = soft_test("""
def handle(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, handle)
for meet in soft(0.2, grace=10), filetimer.expires(60):
    signal.alarm(int(meet.timeout) // 60)
    try:
        with meet:
            filetimer.admin.rendezvous(0, 2, 60)
    except TimeoutError as error:
        assert isinstance(error, filetimer.ScopeExpired) == (meet.timeout < 1), error
""")

    test_native_code_that_ends_within_the_grace_raises_when_it_returns = soft_test("""
import ctypes
class Spec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
def nap(seconds):
    left = Spec(0, int(seconds * 1e9))
    while ctypes.PyDLL(None).nanosleep(ctypes.byref(left), ctypes.byref(left)) != 0:
        pass
say(raised_in(soft(0.2), lambda: (nap(20), say("not reached"))).scope)
""", says="x\n")

    test_the_signal_is_sent_no_more_once_it_has_raised = soft_test("""
from filetimer import _expiry
raised_in(soft(0.2, grace=20))
sent = []
signal.signal(_expiry._number, lambda *_: sent.append(1))
time.sleep(0.3)
say(sent)
""", says="[]\n")

    def test_a_scope_that_is_left_in_time_raises_nothing(self):
        self.run_soft("""
from filetimer import _expiry
scope = filetimer.Scope(4, "x", on_expiry="raise")
for _ in range(1000):
    with scope:
        pass
    scope.acquire()
    scope.release()
with scope, soft(4):
    say(len(_expiry._entered), "are kept")
scope.acquire()
scope.release()
say(len(_expiry._entered), "are kept")
time.sleep(4.5)
""", says="2 are kept\n0 are kept\n")
        self.assertEqual(self.records("expired"), [])

    test_of_nested_scopes_the_one_that_has_expired_is_left = soft_test("""
with soft(60, "outer"):
    for i in range(3):
        say(raised_in(soft(0.15, f"inner {i}")).scope)
try:
    with soft(0.2, "outer"):
        with soft(60, "inner"):
            time.sleep(60)
except filetimer.ScopeExpired as error:
    say(error.scope)
""", says="inner 0\ninner 1\ninner 2\nouter\n")

    test_a_scope_that_is_left_while_its_signal_is_pending_raises = soft_test(LATE_SIGNAL + """
try:
    with soft(0.2, grace=60), soft(60, "inner"):
        wait_for_signal()
    say("not reached")
except filetimer.ScopeExpired as error:
    say("raised", error.timeout, 0.2 < error.elapsed)
""", says="raised 0.2 True\n")

    test_it_replaces_no_exception_that_leaves_the_scope = soft_test(LATE_SIGNAL + """
try:
    with soft(0.2, grace=60):
        wait_for_signal()
        raise KeyError("mine")
except KeyError:
    say("mine")
""", says="mine\n")

    test_an_exception_of_its_handler_is_not_replaced = soft_test("""
try:
    with soft(0.2):
        try:
            time.sleep(60)
        except filetimer.ScopeExpired:
            raise KeyError("mine")
except KeyError:
    pass
""")

    test_one_that_was_caught_inside_is_not_raised_again = soft_test("""
with soft(0.2, grace=60):
    try:
        time.sleep(60)
    except filetimer.ScopeExpired:
        say("caught")
scope = soft(0.2, grace=60)
scope.acquire()
try:
    time.sleep(60)
except filetimer.ScopeExpired:
    say(scope.release())
""", says="caught\nFalse\n")

    test_one_that_is_entered_again_while_another_thread_releases_it_raises = soft_test("""
scope = soft(0.3, grace=3)
is_released, is_entered = threading.Event(), threading.Event()
def wait_before_it_is_forgotten(frame, event, function):
    if (frame.f_code.co_name, event) == ("_forget", "c_return"):
        sys.setprofile(None)
        is_released.set()
        is_entered.wait()
def release():
    sys.setprofile(wait_before_it_is_forgotten)
    scope.release()
    sys.setprofile(None)
    is_released.set()
scope.acquire()
thread = threading.Thread(target=release)
thread.start()
is_released.wait()
scope.acquire()
is_entered.set()
thread.join()
try:
    hang()
except filetimer.ScopeExpired as error:
    say(error.scope)
""", says="x\n")

    test_those_that_another_thread_leaves_are_let_go = soft_test("""
from filetimer import _expiry
for _ in range(10):
    scope = soft(60)
    scope.acquire()
    in_thread(scope.release)
    del scope
say(len(_expiry._entered))
""", says="1\n")

    test_the_deadline_of_the_outer_entry_raises_inside_a_recursion = soft_test("""
def work(scope):
    with scope:
        time.sleep(0.15)
        work(scope)
scope = soft(0.4, grace=60)
try:
    work(scope)
except filetimer.ScopeExpired as error:
    say(0.4 <= error.elapsed < 10, scope.is_open)
with scope:
    say("again")
""", says="True False\nagain\n")

    test_it_is_raised_while_the_interpreter_ends = worker_test("""
import atexit
@atexit.register
def finish():
    try:
        with filetimer.expires(0.2, on_expiry="raise", grace=60):
            time.sleep(60)
    except filetimer.ScopeExpired:
        say("raised")
filetimer.configure()
with filetimer.expires(60, on_expiry="raise"):
    pass
""", says="raised\n")

    test_scopes_that_are_entered_while_the_interpreter_ends_are_as_any_other = soft_test(
        UNBLOCKED_AT_THE_END + """
import atexit
def work():
    wait_for_signal()
    with soft(60, "inner"):
        sys.setprofile(unblock)
    hang()
@atexit.register
def finish():
    say(raised_in(soft(0.2, "outer", grace=20), work).elapsed < 20)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    raised_in(soft(0.2, grace=60), wait_for_signal)
with soft(60):
    pass
""", says="True\n")

    def test_only_the_main_thread_may_enter_one(self):
        out = self.run_soft("""
made = []
def run():
    made.append(filetimer.Scope(1, "x", on_expiry="raise"))
    for enter in (made[0].__enter__, made[0].acquire):
        try:
            enter()
        except filetimer.TimerError as error:
            say(error)
in_thread(run)
with made[0]:
    pass
""")
        self.assertEqual(out.count("only the main thread"), 2)

    test_a_task_may_not_enter_one_and_a_function_that_it_calls_may = soft_test("""
import asyncio
async def work():
    try:
        with soft(0.2, "task", grace=10):
            await asyncio.sleep(60)
    except filetimer.TimerError as error:
        return "caught" if "the event loop" in str(error) else error
async def main():
    other = asyncio.create_task(asyncio.sleep(0.4, "ended"))
    return await work(), raised_in(soft(0.2, "function", grace=10)).scope, await other
say(*asyncio.run(main()))
""", says="caught function ended\n")

    test_a_task_may_call_a_function_that_a_context_manager_decorates = soft_test("""
import asyncio, contextlib
@contextlib.contextmanager
def limit():
    with soft(60):
        yield
async def main():
    limit()(say)("called")
asyncio.run(main())
""", says="called\n")

    test_a_context_manager_of_the_program_may_not_enter_one_for_a_task = soft_test("""
import asyncio
class Limit:
    def __enter__(self):
        self.scope = soft(0.2, "task", grace=10)
        self.scope.__enter__()
    def __exit__(self, *how):
        self.scope.__exit__(*how)
async def work():
    with Limit():
        await asyncio.sleep(60)
for call in (lambda: asyncio.run(work())), (lambda: Limit().__enter__()):
    try:
        call()
        say("entered")
    except filetimer.TimerError as error:
        say("the event loop" in str(error))
""", says="True\nentered\n")

    test_a_generator_may_not_enter_one_and_a_context_manager_may = soft_test("""
import contextlib
@contextlib.contextmanager
def step():
    with soft(0.2, "step", grace=10):
        yield
try:
    with step(), contextlib.ExitStack() as stack:
        stack.enter_context(soft(60, "stack"))
        time.sleep(60)
    sys.exit("it was not raised")
except filetimer.ScopeExpired:
    pass
def numbers():
    with soft(0.2, "generator", grace=3):
        yield 1
steps = numbers()
try:
    next(steps)
    time.sleep(10)
except filetimer.TimerError as error:
    if "this generator" not in str(error):
        raise
    time.sleep(5)  # longer than the grace period and the time that a busy server gives back
""")

    test_it_interrupts_the_main_thread_while_others_work = soft_test("""
is_running = True
def work():
    while is_running:
        with filetimer.expires(60):
            pass
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
raised_in(soft(0.3))
is_running = False
for thread in threads:
    thread.join()
""")

    test_a_child_has_its_own = soft_test("""
with soft(60, "parent"):
    pid = os.fork()
    if pid == 0:
        say(raised_in(soft(0.2, "child")).scope)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""", says="child\n")

    test_a_child_has_its_own_of_a_scope_that_was_raised_in_its_parent = soft_test("""
scope = soft(0.3, grace=60)
scope.acquire()
try:
    time.sleep(60)
except filetimer.ScopeExpired:
    pid = os.fork()
    if pid == 0:
        scope.release()
        try:
            with scope:
                time.sleep(5)
        except filetimer.ScopeExpired as error:
            os._exit(7 if error.elapsed < 5 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
scope.release()
""")

    test_each_of_two_scopes_raises_for_which_one_signal_is_handled = soft_test("""
from filetimer import _expiry
alone = filetimer.Client(os.environ["FILETIMER_DIR"] + "-alone")  # no server sends a second signal
def late(name):
    return alone.expires(0.1, name, on_expiry="raise")
with late("outer"), late("inner"):
    time.sleep(0.2)
    for wait in (lambda: signal.raise_signal(_expiry._number), lambda: time.sleep(1)):
        try:
            wait()
        except filetimer.ScopeExpired as error:
            say(error.scope)
""", says="outer\ninner\n", FILETIMER_LOG_LEVEL="error")

    test_a_signal_that_comes_while_the_handler_runs_takes_no_exception_away = soft_test("""
from filetimer import _expiry
alone = filetimer.Client(os.environ["FILETIMER_DIR"] + "-alone")  # no server sends a signal
looks, is_due = [], _expiry._is_due
def look(times):
    looks.append(times)
    if len(looks) == 2:
        signal.raise_signal(_expiry._number)
    return is_due(times)
with alone.expires(0.1, "outer", on_expiry="raise"), alone.expires(0.1, "inner", on_expiry="raise"):
    time.sleep(0.2)
    _expiry._is_due = look
    for wait in (lambda: signal.raise_signal(_expiry._number), lambda: time.sleep(1)):
        try:
            wait()
        except filetimer.ScopeExpired as error:
            say(error.scope)
""", says="outer\ninner\n", FILETIMER_LOG_LEVEL="error")

    test_a_signal_of_another_sender_has_no_effect = soft_test("""
with soft(60):
    pass
number = max(n for n in signal.valid_signals()
             if signal.getsignal(n) not in (signal.SIG_DFL, signal.SIG_IGN, None))
with soft(60) as scope:
    os.kill(os.getpid(), number)
    assert scope.is_open
os.kill(os.getpid(), number)
""")

    test_a_signal_that_the_program_uses_is_left_to_it = soft_test("""
mine = []
first = signal.SIGRTMIN + 4
signal.signal(first, lambda *_: mine.append(1))
raised_in(soft(0.2))
os.kill(os.getpid(), first)
assert mine == [1]
""")

    test_a_signal_while_the_scope_is_left_leaves_it_released = soft_test(LATE_SIGNAL + """
scope = soft(0.2, grace=60)
error = raised_in(scope, lambda: (wait_for_signal(), sys.setprofile(unblock)))
say(error.scope, scope.is_open)
""", says="x False\n")

    test_a_signal_while_the_interpreter_ends_is_ignored = soft_test(LATE_SIGNAL + """
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # after Python has removed its handlers, and before the process exits
late = Late()
raised_in(soft(0.2, grace=60), lambda: (wait_for_signal(), sys.setprofile(unblock)))
""")

    test_a_signal_that_is_pending_when_the_interpreter_ends_is_discarded = soft_test(
        UNBLOCKED_AT_THE_END + """
raised_in(soft(0.2, grace=60), wait_for_signal)
""")

    test_a_handler_that_raises_while_the_scope_is_entered_or_left_leaves_none_open = soft_test("""
def interrupt(frame, event, _):
    if (frame.f_code.co_name, event) in (("_before_enter", "return"), ("_after_exit", "call")):
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
scope = soft(60)
for is_entered in False, True:
    try:
        is_entered or sys.setprofile(interrupt)
        with scope:
            sys.setprofile(interrupt)
    except KeyboardInterrupt:
        say(filetimer.admin.status().open_scopes)
""", says="0\n0\n")


class DryRun(ServerCase):
    options = ("--dry-run",)

    test_it_raises_nothing = worker_test(SOFT + """
with soft(0.2, grace=0.2) as scope:
    while not scope.times().expired:
        time.sleep(0.01)
say("not raised")
""", says="not raised\n")


if __name__ == "__main__":
    suite.main()
