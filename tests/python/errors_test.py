# SPDX-License-Identifier: MIT
"""Wrong use raises a clear Python exception, and the worker continues."""
import datetime
import json
import math
import os
import pathlib
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

import filetimer
import suite
from filetimer import _native, admin, errors
from harness import BOUND_S, FAR_S, ConfiguredCase, ServerCase, in_thread, run_python

# Each call, and the exception that it raises.
REFUSED = r"""
expires(0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
expires(math.nan) -> InvalidArgument: the timeout is nan: expected more than 0 (s)
expires(1000000001) -> InvalidArgument: the timeout is 1000000001: expected more than 0 (s)
expires(10**400) -> InvalidArgument: the timeout is too large: expected at most 1e9 seconds, or math.inf for none
expires(None) -> TypeError: the timeout is a NoneType: expected seconds as a number, or a timedelta
expires("30") -> TypeError: the timeout is a str: expected seconds as a number, or a timedelta
expires(True) -> TypeError: the timeout is a bool: expected seconds as a number, or a timedelta
expires(datetime.timedelta) -> TypeError: the timeout is a type: expected seconds as a number, or a timedelta
expires() -> TypeError: expires() needs a timeout, in seconds
expires(1, "x", 9) -> TypeError: expires() takes a timeout and a name, and the rest by keyword: 3 were given
expires(-math.inf) -> InvalidArgument: the timeout is -inf: expected more than 0 (s)
expires(1, bogus=3) -> TypeError: expires() got an unexpected keyword argument 'bogus'
expires(1, client=3) -> TypeError: expires() got an unexpected keyword argument 'client'
expires(1, **json.loads('{"timeout": 3}')) -> TypeError: expires() got 'timeout' twice
expires(1, timeout=3) -> TypeError: expires() got 'timeout' twice
expires(1, "x", name="y") -> TypeError: expires() got 'name' twice
expires(1, "") -> InvalidArgument: the scope's name is empty: expected at least one character, or None for the \
caller's file and line
expires(1, 3) -> TypeError: the scope's name is a int: expected a str
expires(1, "a\0b") -> InvalidArgument: the scope's name 'a\x00b' has a NUL in it: expected text without
expires(1, "\ud800x") -> InvalidArgument: the scope's name '\ud800x' has a lone surrogate: expected text
expires(1, signal=65) -> InvalidArgument: the signal is 65: expected 0 to 64
expires(1, signal=-1) -> InvalidArgument: the signal is -1: expected 0 to 64
expires(1, signal=10**30) -> InvalidArgument: the signal is out of bounds: expected 0 to 64
expires(1, signal="9") -> TypeError: the signal is a str: expected an int
expires(1, signal=True) -> TypeError: the signal is a bool: expected an int
expires(1, grace=-1) -> InvalidArgument: the grace is -1: expected at least 0 (s)
expires(1, grace="") -> TypeError: the grace is a str: expected seconds as a number, or a timedelta
expires(1, grace=0, on_expiry="raise") -> InvalidArgument: the grace is 0: with on_expiry='raise' expected more than \
0, and no infinity
expires(1, grace=math.inf, on_expiry="raise") -> InvalidArgument: the grace is inf: with on_expiry='raise' expected \
more than 0, and no infinity
expires(1, warn_after=0) -> InvalidArgument: warn_after is 0: expected more than 0 (s)
expires(30, warn_after=30) -> InvalidArgument: the warning is after 30s: expected more than 0 and less than the \
timeout, 30s
expires(1e8, warn_after=1e7) -> InvalidArgument: the warning is after 10000000s: expected more than 0 and at most \
4294967295ms
expires(1, first_timeout=0) -> InvalidArgument: the first_timeout is 0: expected more than 0 (s)
expires(1, on_expiry=3) -> InvalidArgument: on_expiry is 3: expected 'kill' or 'raise'
expires(1, on_expiry="raise", signal=15) -> InvalidArgument: on_expiry='raise' has a signal of its own: expected no \
other
filetimer.Heartbeat(1, "x", on_expiry="raise") -> TypeError: on_expiry='raise' has a class of its own: expected \
filetimer.Scope or expires(), and no subclass of Scope
filetimer.Scope(1, client=3) -> TypeError: the client is a int: expected a filetimer.Client
filetimer.heartbeat(0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
filetimer.each([], 0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
filetimer.paused(3).__enter__() -> TypeError: the scope's name is a int: expected a str
filetimer.paused("x", client=3) -> TypeError: the client is a int: expected a filetimer.Client
filetimer.paused("") -> InvalidArgument: the scope's name is empty: expected at least one character, or None for \
the caller's file and line
filetimer.paused("x")(print) -> TypeError: a pause is no decorator: expected filetimer.Scope or expires()
scope.renew(0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
scope.renew(1, 2) -> TypeError: renew() takes at most one argument
scope(3) -> TypeError: a scope as a decorator got a int: expected a function
scope(print, name="x") -> TypeError: a scope as a decorator takes one function
client.start(0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
client.start(1, 2) -> TypeError: start() takes at most one argument
filetimer.configure("a\0b") -> InvalidArgument: dir has a NUL in it: expected a path
filetimer.configure("") -> InvalidArgument: dir is empty: expected a path, or None
filetimer.configure(timeouts="") -> InvalidArgument: timeouts is empty: expected a path, or None
filetimer.Server(dir="") -> InvalidArgument: dir is empty: expected a path, or None
filetimer.configure("\ud800x") -> InvalidArgument: dir is no path: '\ud800x'
filetimer.configure(3.5) -> TypeError: expected str, bytes or os.PathLike object, not float
filetimer.configure(missing="maybe") -> InvalidArgument: missing is 'maybe': expected 'ignore', 'wait' or 'raise'
filetimer.configure(timeout=-1) -> InvalidArgument: the timeout of configure() is -1: expected at least 0 (s)
filetimer.configure(idle_timeout=-1) -> InvalidArgument: the idle_timeout is -1: expected at least 0 (s)
filetimer.configure(idle_timeout=0.05) -> InvalidArgument: the idle timeout is 50ms: expected 0 for none, or \
100ms to 1000000000s
filetimer.configure(rpc_timeout=math.nan) -> InvalidArgument: the rpc_timeout is nan: expected more than 0 (s)
filetimer.configure(timeouts="a\0b") -> InvalidArgument: timeouts has a NUL in it: expected a path
filetimer.configure(timeouts="/nonexistent") -> InvalidArgument: cannot read the timeouts in '/nonexistent': No such \
file or directory
admin.ping(client=3) -> TypeError: the client is a int: expected a filetimer.Client
admin.rpc_timeout(0) -> InvalidArgument: the timeout is 0: expected more than 0 (s)
admin.shutdown("force") -> InvalidArgument: mode is 'force': expected one of 'graceful', 'graceful_or_now', \
'workers', 'workers_or_now', 'if_idle', 'now'
admin.shutdown(timeout=-1) -> InvalidArgument: the timeout of shutdown() is -1: expected more than 0 (s)
admin.rendezvous(0, 1, 0) -> InvalidArgument: the timeout of rendezvous() is 0: expected more than 0 (s)
admin.rendezvous(0, 1, 1, 3) -> TypeError: the rendezvous's name is a int: expected a str
filetimer.Server("--") -> InvalidArgument: '--' is no option of timer_server: expected a str, and no COMMAND
filetimer.Server("--dir", "/x") -> InvalidArgument: '--dir' is an option of Server's own: expected dir=
filetimer.Server("--dir=/x") -> InvalidArgument: '--dir=/x' is an option of Server's own: expected dir=
filetimer.Server(3) -> InvalidArgument: 3 is no option of timer_server: expected a str, and no COMMAND
filetimer.Server("a\0b") -> InvalidArgument: 'a\x00b' is no option of timer_server: expected a str, and no COMMAND
"""
MANY_ALLOCATIONS = 60  # more than most calls make


class WithoutServer(unittest.TestCase):
    def test_errors_have_the_expected_base_classes(self):
        for error in (errors.RpcTimeoutError, errors.RendezvousTimeoutError, filetimer.ScopeExpired):
            self.assertTrue(issubclass(error, TimeoutError))
        self.assertTrue(issubclass(errors.InvalidArgument, ValueError))

    def test_a_path_has_the_encoding_of_the_file_system(self):
        folder = os.path.join(suite.folder_of(self, "python"), "ö")
        os.mkdir(folder)
        pathlib.Path(folder, "t.toml").write_text("x = 3")
        run_python("import sys, filetimer; filetimer.configure(sys.argv[1], timeouts=sys.argv[1] + '/t.toml')", folder,
                   env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                   stderr=subprocess.DEVNULL, check=True)
        self.assertIn("server", os.listdir(folder))

    def test_a_status_page_that_cannot_be_made_is_named_with_the_reason(self):
        page = suite.folder_of(self, "python") + "/server"
        for make, why in ((lambda: os.symlink("/nowhere", page), "cannot make '{}': Too many levels of symbolic links"),
                          (lambda: os.mkfifo(page), "'{}' is no regular file: expected one, or nothing")):
            make()
            done = run_python("import sys, filetimer; filetimer.configure(sys.argv[1])", os.path.dirname(page),
                              stderr=subprocess.PIPE, text=True)
            self.assertIn(f"scopes are not watched: {why.format(page)}\n", done.stderr)
            self.assertTrue(done.stderr.endswith("/requests': there is no such pipe\n"), done.stderr)
            os.unlink(page)

    def test_no_folder_is_made_of_a_path_that_is_too_long(self):
        folder = suite.folder_of(self, "python")
        run_python("import sys, filetimer; filetimer.configure(sys.argv[1])", os.path.join(folder, *["x" * 200] * 21),
                   stderr=subprocess.DEVNULL, check=True)
        self.assertEqual(os.listdir(folder), [])

    def test_errors_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(filetimer.ScopeExpired("forward", 30.0, 30.1)))
        self.assertEqual((error.scope, error.timeout, error.elapsed), ("forward", 30.0, 30.1))
        self.assertEqual((error.args, error.errno, error.strerror), (("forward",), None, None))
        error = errors.RendezvousTimeoutError("late")
        error.missing = [3]
        self.assertEqual(pickle.loads(pickle.dumps(error)).missing, [3])

    def test_calls_that_lack_an_argument_or_have_another_one_are_refused(self):
        for call in (filetimer.Scope, filetimer.Heartbeat, type(filetimer.paused()),
                     lambda: filetimer.Scope(1, "x", 9), lambda: filetimer.configure(bogus=1)):
            with self.assertRaises(TypeError):
                call()


class Answers(unittest.TestCase):
    """What is made of an answer, and what is asked for it."""

    def given(self, kind, answer, call=admin.status, *args, **named):
        self.asked = []

        def ask(pipe, fields, patience):
            self.patience = patience
            self.asked.append(fields)
            return {"answer": kind, "reason": "why", **answer}, json.dumps(answer)

        class Client(filetimer.Client):
            target = "requests"
            _own_rpc_timeout = 60.0

            def __init__(self):
                pass
        with unittest.mock.patch.object(admin._asking, "ask", ask):
            return call(*args, **named, client=Client())

    def raised(self, *args, **named):
        with self.assertRaises(filetimer.TimerError) as caught:
            self.given(*args, **named)
        return caught.exception

    def test_each_field_is_returned_and_may_be_missing(self):
        empty = vars(self.given("done", {}))
        self.assertEqual({name: value for name, value in empty.items() if value}, {"json": "{}"})
        names = set(empty) - {"json", "uptime", "descriptor_limit", "worker_limit"}
        answer = dict(zip(names, range(1, 99)), uptime_s=1.5, limits={"descriptors": 98, "workers": 99})
        status = vars(self.given("done", answer))
        self.assertEqual({name: status[name] for name in names}, {name: answer[name] for name in names})
        self.assertEqual((status["uptime"], status["descriptor_limit"], status["worker_limit"]), (1.5, 98, 99))
        met = self.given("done", {"joined": [{"rank": 2, "pid": 9}, {}]}, admin.rendezvous, 0, 1, 1)
        self.assertEqual((met.round, met.joined), (0, {-1: 0, 2: 9}))
        self.assertEqual(self.given("done", {}, admin.drain), 0)

    def test_errors_name_eight_and_count_the_others(self):
        scope = {"pid": 7, "rank": 0, "scope": "a\n", "elapsed_s": 1, "remaining_s": 2}
        named = r"'a\n' of pid 7 (rank 0)"
        for listed, count, shown, more in ((8, 8, 8, ""), (9, 9, 8, " and 1 more"), (2, 0, 2, ""),
                                           (1, 70, 1, " and 69 more")):
            error = self.raised("timed_out", {"open_scopes": [scope] * listed, "open_scope_count": count})
            self.assertEqual(str(error), "why; open: " + ", ".join([named] * shown) + more)
            self.assertTrue(error.timed_out and error.open_scope_count == count)
            self.assertEqual(error.open_scopes[0], {"pid": 7, "rank": 0, "scope": "a\n", "elapsed": 1,
                                                    "remaining": 2})
        error = self.raised("refused", {"open_scopes": [{}]})
        self.assertEqual(error.open_scopes, [{"pid": 0, "rank": None, "scope": "", "elapsed": 0.0,
                                              "remaining": None}])
        self.assertEqual((error.timed_out, error.reason), (False, "why"))
        self.assertEqual(str(self.raised("refused", {})), "why")
        error = self.raised("timed_out", {"missing": list(range(9)), "left": [9],
                                          "joined": [{"rank": 3}, {"rank": 1}]}, admin.rendezvous, 0, 9, 1, "a\n")
        self.assertEqual(str(error), "rendezvous 'a\\n': why; missing: 0, 1, 2, 3, 4, 5, 6, 7 and 1 more; "
                                     "had joined and left: 9")
        self.assertEqual((error.joined, error.left, len(error.missing)), ([1, 3], [9], 9))
        self.assertEqual(str(self.raised("invalid", {})), "why")
        self.assertEqual(str(self.raised("refused", {"reason": ""})), "the server answered 'refused' and gave no reason")

    def test_what_is_asked(self):
        for mode, wait in (("graceful", ("scopes", False)), ("graceful_or_now", ("scopes", True)),
                           ("workers", ("workers", False)), ("workers_or_now", ("workers", True)),
                           ("if_idle", ("", False)), ("now", ("", True))):
            self.given("done", {}, admin.shutdown, mode, timeout=7)
            self.assertEqual(self.asked, [{"request": "shutdown", "wait_s": 7, "graceful": wait[0], "force": wait[1]}])
        self.given("done", {}, admin.shutdown)
        self.assertEqual((self.asked[0]["graceful"], self.asked[0]["wait_s"]), ("scopes", 30))
        for name, world in (("x", 1), ("\xe4" * 127 + "x", 2**31 - 1)):
            self.given("done", {}, admin.rendezvous, world - 1, world, 1, name)
            self.assertEqual([self.asked[0][field] for field in ("name", "rank", "world")], [name, world - 1, world])
        self.given("done", {}, admin.drain, False)
        self.assertEqual(self.asked, [{"request": "drain", "wait_s": 60, "off": True}])
        with admin.rpc_timeout(7):
            for patience in (datetime.timedelta(minutes=1), math.inf):
                with admin.rpc_timeout(patience):
                    self.given("done", {})
                    self.assertIn(self.patience, (60, math.inf))
                    self.assertEqual(self.asked[0].get("wait_s", math.inf), self.patience)
            self.given("done", {})
            self.assertEqual(self.patience, 7)
        self.given("done", {})
        self.assertEqual(self.patience, 60)
        self.raised("timed_out", {}, admin.rendezvous, 1, 2, 3)
        self.assertEqual(self.asked, [{"request": "rendezvous", "wait_s": 3, "name": "default", "rank": 1, "world": 2}])


class OutOfMemory(ServerCase):
    def test_each_allocation_may_fail_and_leaves_no_scope_behind(self):
        try:
            from _testcapi import remove_mem_hooks, set_nomemory
        except ImportError:
            self.skipTest("this Python has no _testcapi")
        client = self.configure()
        scope = filetimer.expires(FAR_S, "x")
        soft = filetimer.Scope(FAR_S, "soft", on_expiry="raise")
        failed = 0

        def enter(context):
            with context:
                pass

        def use():
            with scope:
                scope.renew(FAR_S)
                return scope.times(), scope.remaining, scope.elapsed, repr(scope), scope.timeout

        for call in (lambda: enter(filetimer.expires(FAR_S, "y", grace=2, warn_after=3)), use,
                     lambda: enter(filetimer.paused("z")),
                     # CPython 3.12 crashes where a function inside a function finds no memory.
                     *((lambda: enter(soft), lambda: scope(print)()) if sys.version_info < (3, 12) else ()),
                     lambda: filetimer.Scope(FAR_S, client=client, first_timeout=FAR_S),
                     lambda: (client.start(FAR_S), client.stop()),
                     lambda: filetimer.heartbeat(FAR_S, "heart").release(), _native.Client):
            call()
            for number in range(MANY_ALLOCATIONS):
                try:
                    set_nomemory(number, number + 1)
                    try:
                        call()
                    finally:
                        remove_mem_hooks()
                except MemoryError:
                    failed += 1
                except SystemError as error:
                    # Without room for the frame of a Python function CPython does not call it, and sets no
                    # exception.
                    if not re.match("<function |error return without exception set", str(error)):
                        raise
                    if soft.is_open:
                        soft.__exit__(None, None, None)
                scope.release()
                client.stop()
            call()
        self.assertGreater(failed, 10)
        self.assertEqual(self.open_scopes(), [])

    def test_a_server_kills_a_worker_that_hung_in_the_meantime(self):
        worker = subprocess.Popen(["sleep", "600"])
        self.addCleanup(suite.end, worker)
        deadline = time.time() + 2
        with open(self.server.fifo, "wb", buffering=0) as pipe:
            for number in range(1000):
                pipe.write(b'{"version": 1, "pid": %d, "scope_id": "%0200d", "expiration_time": %f, "signal": 9}\n'
                           % (worker.pid, number, deadline))
        self.client("ping")  # it has read them
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        used = int(re.search(r"VmSize:\s*(\d+)", status)[1]) << 10
        resource.prlimit(self.server.pid, resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
        time.sleep(max(deadline - time.time(), 0) + 0.5)
        self.assertIsNone(worker.poll(), "it had memory for the kill")
        resource.prlimit(self.server.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual(worker.wait(BOUND_S), -signal.SIGKILL)


class Misuse(ConfiguredCase):
    def test_wrong_arguments_are_refused_and_change_nothing(self):
        scope = filetimer.expires(FAR_S, "x")
        for call in (lambda: _native._set_default_client(3), lambda: _native._seconds("1", "it"),
                     lambda: _native._seconds(), lambda: _native._is_free("1"),
                     lambda: _native._send_to_main_thread(None), lambda: self.configured.paused(3),
                     lambda: self.configured._offer_stacks("1", 2),
                     lambda: self.configured.start("1"),
                     lambda: scope.renew("1"), lambda: scope(), lambda: scope.times(1)):
            with self.assertRaises(TypeError):
                call()
        with scope:
            scope.renew()
            self.assertEqual(self.open_scopes(), ["x"])
            self.assertEqual(scope.timeout, FAR_S)
            self.assertIs(_native._default_client(), self.configured)

    def test_each_wrong_argument_is_refused_with_one_line_that_quotes_it(self):
        client, scope, expires = self.configured, filetimer.Scope(FAR_S, "x"), filetimer.expires
        names = {**globals(), **locals()}
        for call, error in (line.split(" -> ") for line in REFUSED.replace("\\\n", "").strip().splitlines()):
            with self.subTest(call):
                with self.assertRaises((TypeError, ValueError)) as caught:
                    eval(call, names)
                self.assertEqual(f"{type(caught.exception).__name__}: {caught.exception}",
                                 error.replace("(s)", "and at most 1e9 seconds, or math.inf for none"))
        self.assertEqual(self.open_scopes(), [])

    def test_what_the_errors_of_an_idle_timeout_expect_is_taken(self):
        for none in (None, 0, math.inf):
            filetimer.Client(self.dir, idle_timeout=none).close()

    def test_a_scope_may_be_left_in_another_thread(self):
        filetimer.paused().__exit__(None, None, None)  # one that was not entered is not left
        for context in (filetimer.Scope(FAR_S, "x"), filetimer.paused("p")):
            context.__enter__()
            in_thread(context.__exit__, None, None, None)
            self.assertEqual(self.open_scopes(), [])

    def test_after_close_scopes_do_nothing_and_those_that_are_open_can_be_left(self):
        client = filetimer.Client(self.dir)
        scope = client.expires(FAR_S, "x")
        with scope:
            client.close()
            client.close()
            self.assertEqual(self.open_scopes(), ["x"])
        self.assertEqual(self.open_scopes(), [])
        with scope, client.paused(), client.heartbeat(0.01) as heart:
            self.assertFalse(heart.beat() or scope.is_open or scope.release() or client.is_watched)
            client.start(0.01)
            self.assertFalse(client.stop())
            self.assertEqual(self.open_scopes(), [])
        for call in (lambda: admin.status(client=client), lambda: client.target):
            with self.assertRaisesRegex(filetimer.TimerError, "the client is closed"):
                call()
        self.assertEqual(repr(client), "<filetimer.Client closed>")

    def test_a_client_whose_init_was_not_called_counts_as_closed(self):
        client = filetimer.Client.__new__(filetimer.Client)
        with self.assertRaisesRegex(filetimer.TimerError, "the client is closed"):
            admin.status(client=client)
        client.close()

    def test_of_more_than_1024_scopes_the_last_are_not_watched_and_one_line_says_so(self):
        worker = self.start_worker("""
            scope = filetimer.Scope(3600, "x")
            for _ in range(1024):
                scope.acquire()
            for _ in range(2):
                with filetimer.expires(3600, "one more") as unwatched:
                    assert not unwatched.is_open
            scope.release()
            with filetimer.expires(3600, "one more") as watched:
                assert watched.is_open
            """)
        self.assertEqual(worker.communicate(timeout=BOUND_S)[1],
                         f"filetimer[{worker.pid}] warning: the threads of this process hold 1024 slots for scopes, "
                         "which is the limit: 'one more' is not watched, and neither are others beyond it\n")
        self.assertEqual(worker.returncode, 0)

    def test_names_of_any_length_work(self):
        for name in ("x" * 255, "x" * 256, "x" * 10_000, "ä" * 10_000, "\U0001f600" * 5000):
            with filetimer.expires(FAR_S, name) as scope:
                self.assertEqual(scope.name, name)
                self.assertEqual(len(self.open_scopes()), 1)


if __name__ == "__main__":
    suite.main()
