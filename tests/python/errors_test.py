# SPDX-License-Identifier: MIT
"""Wrong use raises a clear Python exception, and the worker continues."""
import datetime
import math
import pickle
import threading
import unittest

import filetimer
import suite
from filetimer import _native, admin, errors
from harness import FAR_S, ServerCase

MANY_ALLOCATIONS = 60  # more than most calls make


class WithoutServer(unittest.TestCase):
    def test_without_configure_scopes_raise(self):
        for call in (lambda: filetimer.expires(1, "x").__enter__(), admin.status,
                     lambda: filetimer.heartbeat(1), lambda: filetimer.paused().__enter__()):
            with self.assertRaisesRegex(filetimer.TimerError, "configure.. has not been called"):
                call()
        filetimer.close()

    def test_errors_have_the_expected_base_classes(self):
        time_errors = (errors.RpcTimeoutError, errors.RendezvousTimeoutError,
                       filetimer.ScopeExpired)
        for error in time_errors:
            self.assertTrue(issubclass(error, TimeoutError) and
                            issubclass(error, filetimer.TimerError))
        self.assertTrue(issubclass(errors.InvalidArgument, ValueError))
        for error in (filetimer.ServerUnavailable, errors.ServerBusy):
            self.assertTrue(issubclass(error, filetimer.TimerError))

    def test_errors_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(filetimer.ScopeExpired("forward", 30.0, 30.1)))
        self.assertEqual((error.scope, error.timeout, error.elapsed), ("forward", 30.0, 30.1))
        error = errors.RendezvousTimeoutError("late")
        error.missing = [3]
        self.assertEqual(pickle.loads(pickle.dumps(error)).missing, [3])

    def test_invalid_timeouts_are_refused_when_a_scope_is_made(self):
        for wrong in (0, -1, -0.5, math.nan, -math.inf, 1e10, 10**400, datetime.timedelta(0),
                      datetime.timedelta(days=-1)):
            for make in (filetimer.expires, filetimer.Scope, filetimer.heartbeat,
                         admin.rpc_timeout):
                with self.assertRaises(errors.InvalidArgument):
                    make(wrong)
        for wrong in (None, "30", b"3", [], {}, object(), True, 1j, datetime.timedelta):
            for make in (filetimer.expires, filetimer.Scope, filetimer.heartbeat,
                         admin.rpc_timeout):
                with self.assertRaises(TypeError):
                    make(wrong)

    def test_the_message_quotes_what_was_wrong(self):
        for wrong in (0, math.nan, -2.5):
            with self.assertRaisesRegex(errors.InvalidArgument, f"the timeout is {wrong}"):
                filetimer.expires(wrong)
        with self.assertRaisesRegex(TypeError, "the timeout is a str: expected seconds"):
            filetimer.expires("30")

    def test_invalid_options_are_refused(self):
        for option, wrong, error in (
                ("signal", 65, ValueError), ("signal", -1, ValueError), ("signal", "9", TypeError),
                ("signal", 10**30, ValueError), ("signal", True, TypeError),
                ("grace", -1, ValueError), ("grace", math.nan, ValueError),
                ("grace", "", TypeError),
                ("warn_after", 0, ValueError), ("warn_after", 30, ValueError),
                ("warn_after", 31, ValueError), ("first_timeout", 0, ValueError),
                ("on_expiry", "nothing", ValueError), ("on_expiry", 3, ValueError),
                ("bogus", 3, TypeError), ("timeout", 3, TypeError)):
            with self.assertRaises(error, msg=(option, wrong)):
                filetimer.expires(30, "x", **{option: wrong})
        with self.assertRaises(TypeError):
            filetimer.expires()
        with self.assertRaises(TypeError):
            filetimer.expires(1, "x", 9)
        with self.assertRaises(TypeError):
            filetimer.Scope(1, "x", client=3)
        with self.assertRaisesRegex(ValueError, "a signal of its own"):
            filetimer.expires(1, "x", on_expiry="raise", signal=15)
        for kind in (filetimer.Heartbeat, type(filetimer.paused())):
            with self.assertRaises(TypeError):
                kind()

    def test_configure_quotes_what_is_wrong(self):
        for wrong, error in (({"dir": "a\0b"}, ValueError), ({"dir": "\ud800x"}, ValueError),
                             ({"dir": 3.5}, TypeError), ({"missing": "maybe"}, ValueError),
                             ({"timeout": -1}, ValueError), ({"timeout": "1"}, TypeError),
                             ({"idle_timeout": 0}, ValueError),
                             ({"idle_timeout": math.inf}, ValueError),
                             ({"rpc_timeout": math.nan}, ValueError), ({"bogus": 1}, TypeError),
                             ({"timeouts": "a\0b"}, ValueError), ({"timeouts": 3}, TypeError),
                             ({"timeouts": "/nonexistent"}, ValueError)):
            with self.assertRaises(error, msg=wrong):
                filetimer.configure(**wrong)


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
                     lambda: enter(soft), lambda: enter(filetimer.paused("z")), lambda: scope(print)(),
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
                scope.release()
                client.stop()
            call()
        self.assertGreater(failed, 10)
        self.assertEqual(self.open_scopes(), [])


class Misuse(ServerCase):
    def setUp(self):
        super().setUp()
        self.configured = self.configure()

    def test_wrong_arguments_are_refused_and_change_nothing(self):
        scope = filetimer.expires(FAR_S, "x")
        for call in (lambda: _native._set_default_client(3), lambda: _native._seconds("1", "it"),
                     lambda: _native._seconds(), lambda: _native._is_free("1"),
                     lambda: _native._send_to_main_thread(None), lambda: self.configured._pause_thread(3),
                     lambda: self.configured._offer_stacks("1", 2), lambda: self.configured._ask(),
                     lambda: self.configured.start("1"), lambda: self.configured.start(1, 2, 3, 4),
                     lambda: scope.renew("1"), lambda: scope.renew(1, 2), lambda: scope(3),
                     lambda: scope(), lambda: scope(print, name="x"), lambda: scope.times(1),
                     lambda: filetimer.expires(1, "x", name="y"), lambda: filetimer.expires(1, timeout=1)):
            with self.assertRaises(TypeError):
                call()
        with scope:
            scope.renew()
            self.assertEqual(self.open_scopes(), ["x"])
            self.assertEqual(scope.timeout, FAR_S)
            self.assertIs(_native._default_client(), self.configured)

    def test_a_scope_that_was_not_entered_is_not_left(self):
        scope = filetimer.Scope(FAR_S, "x")
        with self.assertRaisesRegex(filetimer.TimerError, "'x' was not entered"):
            scope.__exit__(None, None, None)
        scope.acquire()
        with self.assertRaisesRegex(filetimer.TimerError, "'x' was not entered"):
            scope.__exit__(None, None, None)
        pause = filetimer.paused()
        with self.assertRaisesRegex(filetimer.TimerError, "not entered"):
            pause.__exit__(None, None, None)
        with pause, self.assertRaisesRegex(filetimer.TimerError, "open already"):
            pause.__enter__()

    def in_thread(self, call):
        raised = []

        def run():
            try:
                call()
            except Exception as error:
                raised.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return raised

    def test_leaving_a_scope_in_another_thread_releases_it_and_raises(self):
        scope = filetimer.Scope(FAR_S, "x")
        scope.__enter__()
        [error] = self.in_thread(lambda: scope.__exit__(None, None, None))
        self.assertIsInstance(error, filetimer.TimerError)
        self.assertIn("another thread", str(error))
        self.assertEqual(self.open_scopes(), [])
        pause = filetimer.paused("p")
        pause.__enter__()
        [error] = self.in_thread(lambda: pause.__exit__(None, None, None))
        self.assertIn("another thread", str(error))
        self.assertEqual(self.open_scopes(), [])

    def test_a_closed_client_raises_and_its_open_scopes_can_be_left(self):
        client = filetimer.Client(self.dir)
        scope = client.expires(FAR_S, "x")
        with scope:
            client.close()
            client.close()
            self.assertEqual(self.open_scopes(), ["x"])
        self.assertEqual(self.open_scopes(), [])
        for call in (scope.__enter__, scope.acquire, lambda: admin.status(client=client),
                     client.stop, client.start, lambda: client.heartbeat(1),
                     lambda: client.paused().__enter__(), lambda: client.target,
                     lambda: client.is_watched):
            with self.assertRaisesRegex(filetimer.TimerError, "the client is closed"):
                call()
        self.assertEqual(repr(client), "<filetimer.Client closed>")

    def test_a_client_whose_init_was_not_called_counts_as_closed(self):
        client = filetimer.Client.__new__(filetimer.Client)
        with self.assertRaisesRegex(filetimer.TimerError, "the client is closed"):
            admin.status(client=client)
        client.close()

    def test_more_than_1024_scopes_raise_an_error(self):
        scopes = [filetimer.Scope(FAR_S, f"s{i}") for i in range(1024)]
        for scope in scopes:
            scope.acquire()
        with self.assertRaisesRegex(filetimer.TimerError, "1024 scopes are open"):
            with filetimer.expires(FAR_S, "one more"):
                pass
        scopes.pop().release()
        with filetimer.expires(FAR_S, "one more"):
            pass

    def test_names_of_any_length_work(self):
        for name in ("x" * 255, "x" * 256, "x" * 10_000, "ä" * 10_000, "\U0001f600" * 5000):
            with filetimer.expires(FAR_S, name) as scope:
                self.assertEqual(scope.name, name)
                self.assertEqual(len(self.open_scopes()), 1)

    def test_control_requests_quote_what_is_wrong(self):
        for wrong in ({"rank": -1, "world": 2}, {"rank": 2, "world": 2}, {"rank": 0, "world": 0},
                      {"rank": 0, "world": 1, "timeout": 0}, {"rank": 0, "world": 1, "name": ""},
                      {"rank": 0, "world": 1, "name": "x" * 256},
                      {"rank": 0, "world": 1, "name": "a\0b"},
                      {"rank": 0, "world": 1, "name": "\ud800"},
                      {"rank": 0, "world": 1, "retries": -1}, {"rank": 0, "world": 10**30}):
            with self.assertRaises(errors.InvalidArgument, msg=wrong):
                admin.rendezvous(**{"timeout": 1, **wrong})
        with self.assertRaises(TypeError):
            admin.rendezvous("0", 1, 1)
        with self.assertRaises(errors.InvalidArgument):
            admin.shutdown(timeout=-1)


if __name__ == "__main__":
    suite.main()
