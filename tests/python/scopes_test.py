# SPDX-License-Identifier: MIT
"""Scopes, heartbeats and pauses as a worker uses them, with a real server."""
import asyncio
import collections.abc
import contextlib
import contextvars
import datetime
import functools
import inspect
import json
import math
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import types
import unittest.mock
import weakref

import filetimer
import suite
from harness import CLIENT, FAR_S, ConfiguredCase, ServerCase, in_thread, worker_test


@contextlib.contextmanager
def other_thread_in(context, at_begin=lambda: None, at_end=lambda: None):
    """Another thread enters the context now, and leaves it at the end."""
    entered, left = threading.Event(), threading.Event()

    def other():
        with context:
            at_begin()
            entered.set()
            left.wait()
            at_end()
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        left.set()
        thread.join()


class Scopes(ConfiguredCase):
    def test_a_scope_is_open_inside_with_and_not_outside(self):
        with filetimer.expires(FAR_S, "forward") as scope:
            self.assertEqual(self.open_scopes(), ["forward"])
            self.assertTrue(scope.is_open)
            self.assertEqual(scope.name, "forward")
            self.assertEqual(repr(scope), "<filetimer.Scope 'forward' of 3600.0 s, open>")
            self.assertTrue(0 <= scope.elapsed < scope.remaining)
        self.assertEqual(self.open_scopes(), [])
        self.assertEqual(repr(scope), "<filetimer.Scope 'forward' of 3600.0 s>")
        self.assertFalse(scope.is_open)
        self.assertIsNone(scope.times())
        self.assertIsNone(scope.remaining)

    def test_a_scope_without_a_name_has_its_file_and_line(self):
        with filetimer.expires(FAR_S) as scope:
            line = scope.__enter__.__self__.name.rpartition(":")[2]
            self.assertEqual(self.open_scopes(), [f"scopes_test.py:{line}"])
        here = self.test_a_scope_without_a_name_has_its_file_and_line
        self.assertEqual(int(line), here.__func__.__code__.co_firstlineno + 1)
        self.assertEqual(filetimer.Scope(FAR_S).name.rpartition(":")[0], "scopes_test.py")
        made = {}
        exec(compile("scope = Scope(30)", "/\udcff/a\udcff.py", "exec"), {"Scope": filetimer.Scope}, made)
        self.assertEqual(made["scope"].name, r"a\xff.py:1")
        pause = filetimer.paused()
        self.assertEqual(pause.name.rpartition(":")[0], "scopes_test.py")
        exec(compile("scope = paused()", "a\udcff.py", "exec"), {"paused": filetimer.paused}, made)
        self.assertEqual(made["scope"].name, "a?.py:1")

    def test_seconds_may_be_ints_floats_and_timedeltas(self):
        for timeout in (90, 90.0, datetime.timedelta(minutes=1.5)):
            with filetimer.expires(timeout, "x") as scope:
                self.assertEqual(scope.timeout, 90)
                self.assertAlmostEqual(scope.remaining, 90, delta=5)
        with filetimer.expires(math.inf, "x") as scope:
            self.assertEqual(scope.remaining, math.inf)
        self.assertEqual([filetimer.Scope(each).timeout for each in (1e9, 1e-12)], [1e9, 1e-9])

    def test_numbers_of_numpy_are_seconds_and_its_times_are_refused(self):
        class Scalar:  # numpy may be missing, and takes long to import
            def __init__(self, kind):
                self.dtype = types.SimpleNamespace(kind=kind)

            def __float__(self):
                return 1.5

        for kind in ("f", "i", "u", "V", "", None, 3):
            self.assertEqual(filetimer.Scope(Scalar(kind)).timeout, 1.5)
        for kind in "mMbc":  # timedelta64, datetime64, bool_, complex128
            with self.subTest(kind), self.assertRaisesRegex(TypeError, "a Scalar: expected seconds as a number, or"):
                filetimer.Scope(Scalar(kind))

    def test_paused_stops_the_time_of_all_scopes_of_the_thread(self):
        with filetimer.expires(10, "x") as scope:
            with filetimer.paused("checkpoint") as region:
                self.assertEqual(repr(region), "<filetimer.Paused 'checkpoint'>")
                self.assertTrue(scope.times().paused)
                self.assertEqual(self.open_scopes(), ["checkpoint", "x"])
            self.assertFalse(scope.times().paused)
            other = filetimer.Scope(10)
            contextvars.copy_context().run(other.acquire)
            with filetimer.paused():
                self.assertTrue(other.times().paused)
                self.assertTrue(any(name.startswith("scopes_test.py:")
                                    for name in self.open_scopes()))

    def test_a_heartbeat_is_renewed_by_its_beats(self):
        with filetimer.heartbeat(10, "loop", first_timeout=FAR_S) as heart:
            self.assertGreater(heart.times().remaining, 3000)
            self.assertTrue(heart.beat())
            self.assertLess(heart.times().remaining, 11)
            self.assertEqual(self.open_scopes(), ["loop"])
        self.assertEqual(self.statistics(), {"loop": 2})  # with the beat
        self.assertFalse(heart.beat())
        self.assertIsNone(heart.times())
        heart, line = filetimer.heartbeat(10), sys._getframe().f_lineno
        self.assertEqual(self.open_scopes(), [f"scopes_test.py:{line}"])
        heart.release()
        with filetimer.heartbeat(10, "loop", signal=signal.SIGTERM, grace=2) as heart:
            [listed] = self.listed_scopes()
            self.assertEqual((listed["signal"], listed["grace_s"]), (signal.SIGTERM, 2))
            self.assertTrue(heart.pause() and heart.times().paused)
            self.assertTrue(heart.resume() and not heart.times().paused)
            self.assertTrue(heart.release())

    def test_a_heartbeat_decorates_no_function_and_is_open_in_each_with(self):
        with self.assertRaisesRegex(TypeError, "no decorator"):
            filetimer.heartbeat(FAR_S)(print)
        self.assertEqual(self.open_scopes(), [])
        with filetimer.Heartbeat(FAR_S, "loop"):
            self.assertEqual(self.open_scopes(), ["loop"])
        self.assertEqual(self.open_scopes(), [])

    def test_a_heartbeat_that_was_released_and_entered_again_is_renewed_by_other_tasks(self):
        async def beat(heart):
            return heart.beat()

        async def work():
            heart = filetimer.heartbeat(FAR_S, "loop")
            self.assertTrue(heart.release())
            with heart:
                return await asyncio.create_task(beat(heart))

        self.configure()
        self.assertTrue(asyncio.run(work()))

    def test_a_heartbeat_that_has_expired_is_watched_again_from_its_next_beat_on(self):
        self.run_worker("""
            with filetimer.heartbeat(0.2, "loop", signal=0, first_timeout=0.3) as heart:
                for _ in range(2):
                    time.sleep(0.6)
                    heart.beat()
            """)
        suite.wait_until(lambda: len(self.records("expired")) == 2)
        self.assertEqual([each["timeout_s"] for each in self.records("expired")], [0.3, 0.2])

    def test_a_heartbeat_may_warn_after_its_first_timeout(self):
        with filetimer.heartbeat(60, "loop", warn_after=30, first_timeout=20) as heart:
            self.assertLess(heart.times().remaining, 21)

    test_an_interrupt_right_before_the_end_of_a_heartbeat_leaves_none_open = worker_test("""
        filetimer.configure()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with filetimer.heartbeat(60) as heart:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                0.5 in range(10**7)  # no handler runs meanwhile
        except KeyboardInterrupt:
            say(heart.times())
        """, says="None\n")

    # As a handler of a signal may, at the end of a call.
    test_an_interrupt_when_a_heartbeat_has_begun_leaves_none_open = worker_test("""
        import gc
        filetimer.configure()
        def interrupt(frame, event, what):
            if event == "c_return" and what.__name__ == "__enter__" or (
                    event == "return" and frame.f_code.co_name == "__enter__"):
                raise KeyboardInterrupt
        released = filetimer.heartbeat(60)
        released.release()
        for make in (lambda: released, lambda: filetimer.heartbeat(60)):
            try:
                sys.setprofile(interrupt)
                with make():
                    sys.setprofile(None)
            except KeyboardInterrupt:
                sys.setprofile(None)
                assert not [each for each in gc.get_objects() if isinstance(each, filetimer.Heartbeat) and each.is_open]
        """)

    def test_start_and_stop_watch_the_whole_job(self):
        client = self.configured
        client.start(FAR_S)
        client.start(datetime.timedelta(hours=2))
        self.assertEqual(self.open_scopes(), ["job"])
        self.assertTrue(client.stop())
        self.assertFalse(client.stop())
        with self.assertRaisesRegex(ValueError, "--default-timeout"):
            client.start()

    def test_options_reach_the_server(self):
        with filetimer.expires(FAR_S, signal=0), filetimer.expires(FAR_S, signal=64):
            self.assertEqual(sorted(each["signal"] for each in self.listed_scopes()), [0, 64])
        worker = self.start_worker("""
            filetimer.configure()
            with filetimer.heartbeat(60, "beat", warn_after=0.1):
                while '"warned"' not in open(filetimer.admin.status().log).read():
                    time.sleep(0.01)
                with filetimer.expires(0.3, "x", signal=signal.SIGTERM, grace=60, warn_after=0.1):
                    time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGTERM)
        self.assertEqual(len(self.record("killed", worker.pid)["signals"]), 1)
        self.assertEqual([each["scope"] for each in self.records("warned", worker.pid)], ["beat", "x"])
        self.assertEqual(self.record("expired", worker.pid)["timeout_s"], 0.3)

    def test_the_first_scope_of_a_name_may_have_longer(self):
        scope = filetimer.Scope(10, "x", first_timeout=FAR_S)
        with scope:
            self.assertGreater(scope.remaining, 3000)
        with scope:
            self.assertLess(scope.remaining, 11)


class Decorators(ServerCase):
    def test_each_call_opens_another_scope(self):
        # Made before configure(), as at the import of a module.
        @filetimer.expires(FAR_S, "fib")
        def fib(n):
            """Of Fibonacci."""
            if n < 2:
                self.most = max(self.most, self.open_scopes().count("fib"))
                return n
            return fib(n - 1) + fib(n - 2)

        self.most = 0
        self.configure()
        self.assertEqual(fib(4), 3)
        self.assertEqual(self.most, 4)
        self.assertEqual(self.open_scopes(), [])
        self.assertEqual((fib.__name__, fib.__doc__), ("fib", "Of Fibonacci."))

    def test_a_static_method_stays_one(self):
        class Numbers:
            @filetimer.expires(FAR_S, "x")
            @staticmethod
            def in_scope(number):
                return number, self.open_scopes()

        self.configure()
        self.assertEqual(Numbers.in_scope(7), (7, ["x"]))
        self.assertEqual(Numbers().in_scope(7), (7, ["x"]))

    def test_a_coroutine_is_in_its_scope_while_it_runs(self):
        @filetimer.expires(FAR_S, "work")
        async def work():
            await asyncio.sleep(0)
            return self.open_scopes()

        self.configure()
        self.assertTrue(inspect.iscoroutinefunction(work) and work.__name__ == "work")
        self.assertEqual(asyncio.run(work()), ["work"])
        self.assertEqual(self.open_scopes(), [])

    def test_a_coroutine_of_another_compiler_is_in_its_scope_while_it_runs(self):
        case = self

        @filetimer.expires(FAR_S, "work")
        class Work(collections.abc.Coroutine):  # as Cython makes one
            def __await__(self):
                yield
                return case.open_scopes()
            send = throw = close = __await__

        async def main():
            return await Work()
        self.configure()
        self.assertEqual(asyncio.run(main()), ["work"])

    def test_a_coroutine_that_a_function_returns_has_the_first_timeout(self):
        async def work():
            [scope] = self.listed_scopes()
            return scope["remaining_s"] > 3000

        self.configure()
        call = filetimer.expires(10, "work", first_timeout=FAR_S)(lambda: work())
        self.assertEqual([asyncio.run(call()) for _ in "ab"], [True, False])
        with open(self.folder + "/timeouts.toml", "w") as file:
            file.write('both = {timeout = "20s", first_timeout = "1h"}\nplain = "20s"\n')
        self.configure(timeouts=file.name)
        for name in "both", "plain":
            call = filetimer.expires(10, name, first_timeout=FAR_S)(lambda: work())
            self.assertEqual([asyncio.run(call()) for _ in "ab"], [True, False])

    def test_a_generator_is_refused(self):
        with self.assertRaisesRegex(TypeError, "generator"):
            @filetimer.expires(FAR_S)
            def numbers():
                yield 1

        with self.assertRaisesRegex(TypeError, "expected a function"):
            filetimer.expires(FAR_S)(3)

    def test_what_runs_later_is_refused_however_it_is_wrapped_and_coroutines_are_not(self):
        def numbers():
            yield 1

        async def later():
            yield 1

        async def work():
            return self.open_scopes()

        class Work:
            async def __call__(_):
                return self.open_scopes()
            method = __call__

        class Numbers:
            def __call__(self):
                yield 1
            method = __call__

        def wrapped(function, call=lambda function: function()):
            return functools.wraps(function)(lambda: call(function))
        self.configure()
        scope = filetimer.expires(FAR_S, "x")
        made = (numbers, later, contextlib.contextmanager(numbers), contextlib.asynccontextmanager(later))
        for each in (*made, functools.partial(numbers), staticmethod(numbers), Numbers(), Numbers().method):
            with self.assertRaisesRegex(TypeError, r"(numbers|later|Numbers).*\(\) is a generator, and"):
                scope(each)
        for each in made:
            with self.assertRaisesRegex(TypeError, r"\(\) is a generator, and"):
                scope(functools.reduce(lambda inner, _: wrapped(inner), range(20), each))()
        self.assertEqual(scope(wrapped(numbers, lambda function: list(function())))(), [1])
        self.assertEqual(scope(functools.partial(int, "7"))(), 7)
        with scope(open)(os.devnull):
            self.assertEqual(self.open_scopes(), [])
        for each in (wrapped(work), functools.partial(work), staticmethod(work), Work(), Work().method):
            self.assertEqual(asyncio.run(scope(each)()), ["x"])
        self.assertEqual(self.open_scopes(), [])


class Each(ConfiguredCase):
    def test_every_step_of_an_iterator_is_a_scope_and_the_loop_body_is_in_none(self):
        inside = []

        def batches():
            for i in range(3):
                inside.append(self.open_scopes())
                yield i
        outside = [(batch, self.open_scopes())
                   for batch in filetimer.each(batches(), FAR_S, "data")]
        self.assertEqual(outside, [(0, []), (1, []), (2, [])])
        self.assertEqual(inside, [["data"]] * 3)
        self.assertEqual(self.statistics()["data"], 4)  # including the step that found the end

    def test_the_first_step_may_have_longer_and_covers_the_start_of_the_iterator(self):
        remaining = []

        class Loader:
            def __iter__(_):
                [scope] = self.listed_scopes()
                remaining.append(scope["remaining_s"])
                return iter("ab")
        items = iter(filetimer.each(Loader(), 10, first_timeout=FAR_S))
        self.assertEqual(next(items), "a")
        self.assertGreater(remaining[0], 3000)
        self.assertEqual(list(items), ["b"])
        [name] = self.statistics()
        self.assertTrue(name.startswith("scopes_test.py:"), name)

    def test_the_first_step_of_each_loop_may_have_longer(self):
        has_longer = []

        def batches():
            for i in range(2):
                [scope] = self.listed_scopes()
                has_longer.append(scope["remaining_s"] > 3000)
                yield i

        class Loader:
            def __iter__(_):
                return batches()

            async def __aiter__(_):
                for i in batches():
                    yield i

        async def go_over():
            return [i async for i in items]
        items = filetimer.each(Loader(), 10, "data", first_timeout=FAR_S)
        for _ in range(2):
            self.assertEqual(list(items), [0, 1])
        self.assertEqual(asyncio.run(go_over()), [0, 1])
        raising = filetimer.each(Loader(), 10, "data", first_timeout=FAR_S, on_expiry="raise")
        self.assertEqual(list(zip(items, items, raising)), [(0, 0, 0), (1, 1, 1)])
        self.assertEqual(has_longer, [True, False] * 3 + [True] * 3 + [False] * 3)
        items = raising
        with self.assertRaisesRegex(filetimer.TimerError, "the event loop would get the exception"):
            asyncio.run(go_over())

    def test_its_options_are_those_of_the_scope_of_each_step(self):
        for first in {}, {"first_timeout": FAR_S}:
            signals = ([each["signal"] for each in self.listed_scopes()] for _ in "ab")
            self.assertEqual(list(filetimer.each(signals, 10, "data", signal=15, **first)), [[15], [15]])

    def test_it_has_the_length_of_what_it_goes_over_and_may_be_gone_over_again(self):
        items = filetimer.each("ab", FAR_S, "data")
        self.assertEqual(len(items), 2)
        self.assertEqual([(x, y) for x in items for y in items],
                         [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")])
        self.assertFalse(hasattr(iter("ab"), "__len__"))
        with self.assertRaises(TypeError):
            len(filetimer.each(iter("ab"), FAR_S))

    def test_it_is_as_true_as_what_it_goes_over(self):
        for iterable in [], [1], iter(()), map(str, ()):
            self.assertIs(bool(filetimer.each(iterable, FAR_S)), bool(iterable))

    def test_async_for_goes_over_an_asynchronous_iterator(self):
        inside = []

        async def batches():
            for i in range(2):
                await asyncio.sleep(0)
                inside.append(self.open_scopes())
                yield i

        async def main():
            return [(each, self.open_scopes())
                    async for each in filetimer.each(batches(), FAR_S, "data")]
        self.assertEqual(asyncio.run(main()), [(0, []), (1, [])])
        self.assertEqual(inside, [["data"]] * 2)
        self.assertEqual(self.open_scopes(), [])

    def test_it_keeps_no_item_that_the_loop_has_let_go(self):
        class Batches:
            def __init__(self):
                self.kept = []

            def __next__(self):
                self.kept.append([each() is not None for each in made])
                if len(made) == 3:
                    raise StopIteration
                item = set()
                made.append(weakref.ref(item))
                return item

            async def __anext__(self):
                try:
                    return next(self)
                except StopIteration:
                    raise StopAsyncIteration from None

            def __iter__(self):
                return self
            __aiter__ = __iter__

        async def go_over():
            async for item in filetimer.each(batches, FAR_S):
                del item
        for is_async in False, True:
            made, batches = [], Batches()
            if is_async:
                asyncio.run(go_over())
            else:
                for item in filetimer.each(batches, FAR_S):
                    del item
            self.assertEqual(batches.kept, [[False] * count for count in range(4)])

    def test_an_exception_of_the_iterator_leaves_the_scope(self):
        def batches():
            yield 1
            raise KeyError
        with self.assertRaises(KeyError):
            list(filetimer.each(batches(), FAR_S))
        self.assertEqual(self.open_scopes(), [])


class EnteredAgain(ConfiguredCase):
    """A scope that is entered while it is open."""

    def test_each_entry_of_a_recursion_has_a_deadline_of_its_own(self):
        scope = filetimer.Scope(FAR_S, "x")
        with scope:
            scope.renew(7 * FAR_S)
            with scope as inner:
                self.assertIs(inner, scope)
                self.assertEqual(self.open_scopes(), ["x", "x"])
                self.assertLess(scope.remaining, 2 * FAR_S)
                self.assertTrue(scope.release())  # of the inner one
                self.assertEqual(self.open_scopes(), ["x"])
            self.assertGreater(scope.remaining, 2 * FAR_S)
        self.assertEqual(self.open_scopes(), [])
        self.assertFalse(scope.is_open)

    def test_an_acquire_inside_a_with_of_the_scope_has_a_release_of_its_own(self):
        io = filetimer.Scope(FAR_S, "io")

        def fetch(timeout):
            io.acquire()
            self.assertTrue(io.renew(timeout))
            if timeout < 200:
                fetch(timeout + 100)
            self.assertEqual(io.times().timeout, timeout)
            self.assertTrue(io.release())
        with io:
            fetch(100)
            self.assertEqual((self.open_scopes(), io.times().timeout), (["io"], FAR_S))
        self.assertEqual(self.open_scopes(), [])

    def test_each_task_leaves_the_scope_that_it_has_entered(self):
        scope = filetimer.Scope(FAR_S, "x")

        class Step:
            def __enter__(_):
                scope.__enter__()

            def __exit__(_, *error):
                scope.__exit__(*error)

        @contextlib.contextmanager
        def step():
            with scope:
                yield

        @contextlib.contextmanager
        def outer():
            with step():
                yield

        async def task(context, number, turns):
            with context():
                scope.renew(FAR_S * number)
                with filetimer.expires(FAR_S, "y"):
                    for _ in range(turns):
                        await asyncio.sleep(0)
                self.assertLess(abs(scope.remaining - FAR_S * number), FAR_S / 2)
                return [round(each["remaining_s"] / FAR_S) for each in self.listed_scopes()
                        if each["scope"] == "x"]

        async def main():
            # They are left in the order in which they were entered, and the other way round.
            return await asyncio.gather(*(task(context, *each) for each in (
                (1, 1), (2, 3), (3, 5), (4, 4), (5, 2))))
        for context in (lambda: scope), Step, step, outer:
            left = asyncio.run(main())
            self.assertEqual([set(each) for each in left],
                             [{1, 2, 3, 4, 5}, {2, 3, 4}, {3}, {3, 4}, {2, 3, 4, 5}])
            self.assertEqual(self.open_scopes(), [])

    def test_each_task_leaves_the_scope_that_an_async_context_manager_has_entered(self):
        scope = filetimer.Scope(FAR_S, "x")

        class Step:
            async def __aenter__(_):
                scope.__enter__()

            async def __aexit__(_, *error):
                scope.__exit__(*error)

        async def task(number, turns):
            async with Step():
                scope.renew(FAR_S * number)
                for _ in range(turns):
                    await asyncio.sleep(0)
            return [round(each["remaining_s"] / FAR_S) for each in self.listed_scopes()]

        async def main():
            return await asyncio.gather(task(1, 2), task(2, 1))
        self.assertEqual(asyncio.run(main()), [[], [1]])

    def test_each_task_has_the_scope_of_an_async_context_manager_that_decorates_it(self):
        scope = filetimer.Scope(FAR_S, "x")

        @contextlib.asynccontextmanager
        async def step():
            with scope:
                yield

        class Step(contextlib.AsyncContextDecorator):
            async def __aenter__(_):
                scope.__enter__()

            async def __aexit__(_, *error):
                scope.__exit__(*error)

        async def task(number, turns):
            scope.renew(FAR_S * number)
            for _ in range(turns):
                await asyncio.sleep(0)
            self.assertLess(abs(scope.remaining - FAR_S * number), FAR_S / 2)

        async def main(decorator):
            await asyncio.gather(*(decorator()(task)(*each) for each in (
                (1, 1), (2, 3), (3, 5), (4, 4), (5, 2))))
        for decorator in step, Step:
            asyncio.run(main(decorator))
            self.assertEqual(self.open_scopes(), [])

    def test_each_generator_leaves_the_scope_that_it_has_entered(self):
        scope = filetimer.Scope(FAR_S, "x")

        def generator(number):
            with contextlib.ExitStack() as stack:
                stack.enter_context(scope)
                scope.renew(FAR_S * number)
                yield
        for order in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
            open_ones = {number: generator(number) for number in (1, 2, 3)}
            for each in open_ones.values():
                next(each)
            for number in order:
                open_ones.pop(number).close()
                self.assertEqual({round(each["remaining_s"] / FAR_S) for each in self.listed_scopes()},
                                 set(open_ones))

        async def task(number):
            with scope:
                scope.renew(FAR_S * number)
                await asyncio.sleep(0)
        for consumed in generator(7), task(7):
            consumed.send(None)
            with scope:
                consumed.close()
                self.assertLess(scope.remaining, 2 * FAR_S)
            self.assertEqual(self.open_scopes(), [])

    def test_a_second_release_ends_no_entry_of_another_thread(self):
        scope = filetimer.Scope(FAR_S, "x")
        with other_thread_in(scope):
            with scope:
                self.assertTrue(scope.release())
                self.assertFalse(scope.release() or scope.renew() or scope.is_open)
                self.assertEqual(self.open_scopes(), ["x"])
        self.assertEqual(self.open_scopes(), [])

    def test_a_second_release_ends_no_acquire_of_another_thread(self):
        scope = filetimer.Scope(FAR_S, "x")
        with scope:
            in_thread(scope.acquire)
            self.assertTrue(scope.release())
            self.assertFalse(scope.release() or scope.renew() or scope.is_open)
        self.assertTrue(scope.release())

    def test_a_second_release_ends_no_entry_of_another_task(self):
        scope = filetimer.Scope(FAR_S, "x")

        async def task(ends_early):
            with scope:
                await asyncio.sleep(0)
                if ends_early:
                    self.assertTrue(scope.release())
                    self.assertFalse(scope.release() or scope.renew() or scope.is_open)
                await asyncio.sleep(0)
                self.assertTrue(ends_early or scope.is_open)

        async def main(*which):
            await asyncio.gather(*map(task, which))
        asyncio.run(main(False, True))
        asyncio.run(main(True, False))

    def test_an_entry_of_a_function_that_has_returned_is_released_after_one_that_was_not_left(self):
        scope = filetimer.Scope(FAR_S, "x")

        def start():
            scope.__enter__()
        for _ in range(3):
            start()
            self.assertTrue(scope.release())
            self.assertEqual(self.open_scopes(), [])

    def test_any_thread_can_release_the_only_entry(self):
        scope, released = filetimer.Scope(FAR_S, "x"), []

        def generator():
            with scope:
                yield
        def release():
            in_thread(lambda: released.append(scope.release()))
        first, second = generator(), generator()
        for each in (first, second):
            next(each)
        next(first, None)
        release()
        self.assertEqual((released, self.open_scopes()), ([True], []))
        next(second, None)
        with scope:
            scope.release()
            third = generator()
            next(third)
            release()
            self.assertEqual((released, self.open_scopes()), ([True, True], []))
            next(third, None)

    def test_a_generator_that_another_thread_resumes_renews_its_own_entry(self):
        scope, renewed = filetimer.Scope(FAR_S, "x"), []

        def generator():
            with scope:
                yield
                yield renewed.append(scope.renew(FAR_S + len(renewed)))
        begun = [generator() for _ in range(3)]
        for each in begun:
            next(each)
        for each in begun:
            in_thread(next, each)
        self.assertEqual(renewed, [True] * 3)
        self.assertEqual({each.timeout for each in scope._all_times()}, {FAR_S, FAR_S + 1, FAR_S + 2})

    def test_each_thread_leaves_the_pause_that_it_has_entered(self):
        paused, found = filetimer.paused("p"), []

        def look():
            with filetimer.expires(FAR_S, "x") as scope:
                found.append(scope.times().paused)
        with contextlib.ExitStack() as stack:
            with paused:
                stack.enter_context(other_thread_in(paused, at_end=look))
            with filetimer.expires(FAR_S, "y") as scope:
                self.assertFalse(scope.times().paused)
        self.assertEqual(found, [True])

    test_a_handler_of_a_signal_that_raises_leaves_no_pause_behind = worker_test("""
        def handle(_, frame):
            if frame.f_code.co_name in ("__enter__", "__exit__"):
                raise KeyError
        signal.signal(signal.SIGALRM, handle)
        filetimer.configure()
        pause = filetimer.paused("p")
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        for _ in range(20000):
            try:
                with pause:
                    pass
            except KeyError:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        with filetimer.expires(60) as scope:
            say(scope.times().paused)
        """, says="False\n")

    def test_a_function_does_not_end_the_scope_of_a_thread_whose_frame_was_where_its_own_is(self):
        scope, frames = filetimer.Scope(FAR_S, "x"), []

        def work(keep, call):
            frames.append(keep(sys._getframe()))
            return call()
        with scope:
            in_thread(lambda: (work(id, scope.__enter__), scope.renew(2 * FAR_S)))
            if not any(work(lambda frame: frame, lambda: id(frames[-1]) == frames[0] and scope.release())
                       for _ in range(1000)):
                self.skipTest("no frame is where that of the thread was")
            self.assertEqual([each.timeout for each in scope._all_times()], [2 * FAR_S])

    def test_each_thread_leaves_the_scope_that_it_has_entered(self):
        scope = filetimer.Scope(FAR_S, "x")
        with contextlib.ExitStack() as stack:
            with scope:
                stack.enter_context(other_thread_in(scope, lambda: scope.renew(7 * FAR_S)))
                self.assertLess(scope.remaining, 2 * FAR_S)
            [still_open] = self.listed_scopes()
            self.assertGreater(still_open["remaining_s"], 2 * FAR_S)
        self.assertEqual(self.open_scopes(), [])

    def test_each_thread_leaves_the_scope_that_a_function_has_entered_for_it(self):
        scope, frames = filetimer.Scope(FAR_S, "x"), []

        def entered():
            frames.append(sys._getframe())  # so that no other one has its address
            stack = contextlib.ExitStack()
            stack.enter_context(scope)
            return stack

        def other():
            with entered():
                scope.renew(7 * FAR_S)
        with entered():
            in_thread(other)
            [still_open] = self.listed_scopes()
            self.assertLess(still_open["remaining_s"], 2 * FAR_S)
        self.assertEqual(self.open_scopes(), [])

    test_a_finaliser_may_close_the_client_while_a_scope_is_entered_again = worker_test("""
        import gc
        class Closer:
            def __init__(self):
                self.me = self
            def __del__(self):
                client.close()
        class Step:
            def __enter__(self):
                gc.set_threshold(gc.get_count()[0] + collected_after)
                gc.enable()
                scope.__enter__()
                gc.disable()
        gc.disable()
        for collected_after in range(9):
            client = filetimer.Client()
            with client.expires(60) as scope:
                Closer()
                Step().__enter__()
                # From Python 3.12 on the garbage collector runs after the call.
                assert not client.closed or len(scope._all_times()) == 1 or sys.version_info >= (3, 12)
            gc.collect()
        """)

    def test_a_paused_thread_has_all_scopes_of_its_tasks_paused(self):
        async def other():
            with filetimer.expires(FAR_S, "other") as scope:
                return scope.times().paused

        async def main():
            with filetimer.expires(FAR_S, "mine") as mine:
                with filetimer.paused("checkpoint") as region, region:
                    self.assertIn("checkpoint", self.open_scopes())
                    self.assertTrue(mine.times().paused and await asyncio.create_task(other()))
                self.assertFalse(mine.times().paused or await asyncio.create_task(other()))
        asyncio.run(main())
        self.assertEqual(self.open_scopes(), [])


class LinesOfTwoProcesses(ServerCase):
    def test_one_that_is_older_than_the_process_does_not_hold_up_the_next(self):
        worker = self.start_worker("time.sleep(60)")
        lines = ({"version": 1, "pid": worker.pid, "scope_id": name, "signal": 0, "x_timeout_s": timeout_s,
                  "expiration_time": time.time() + left_s} for name, left_s, timeout_s in
                 (("of the process before", 10, 3600), ("mine", 3600, 3600)))
        with open(self.server.fifo, "w") as pipe:
            pipe.write("".join(json.dumps(each) + "\n" for each in lines))
        suite.wait_until(lambda: self.open_scopes(worker.pid) == ["mine"])
        self.assertRegex(self.record("rejected")["reason"], "started after the request was written$")


class Unconfigured(ServerCase):
    test_the_first_scope_makes_the_client_and_after_close_there_is_none = worker_test("""
        filetimer.close()  # there is no client
        with filetimer.expires(3600, "x") as scope:
            say(scope.is_open)
        filetimer.admin.ping()
        filetimer.close()
        with filetimer.expires(3600, "x") as scope, filetimer.paused(), filetimer.heartbeat(1):
            say(scope.is_open)
        filetimer.configure()
        with filetimer.expires(3600, "x") as scope:
            say(scope.is_open)
        """, says="True\nFalse\nTrue\n")

    test_the_first_scope_does_not_replace_the_client_of_a_configure_meanwhile = worker_test("""
        from filetimer import _client, _native
        made = []
        class Slow(filetimer.Client):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                if not made:  # while the first scope connects
                    made.append(None)
                    made.append(filetimer.configure(idle_timeout=60))
        _client.Client = Slow
        with filetimer.expires(60):
            assert _native._default_client() is made[1]
        """)


class Killed(ServerCase):
    def test_a_worker_that_is_inside_at_the_deadline_is_killed(self):
        worker = self.start_worker("""
            filetimer.configure()
            with filetimer.expires(FAR, "epoch"), filetimer.expires(0.3, "forward"):
                say("in")
                time.sleep(60)
            """.replace("FAR", str(FAR_S)))
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)
        expired = self.record("expired", worker.pid)
        self.assertEqual((expired["scope"], expired["timeout_s"]), ("forward", 0.3))
        written = datetime.datetime.strptime(expired["time"] + "+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z")
        self.assertLess(abs(written.timestamp() - time.time()), suite.BOUND_S)
        command = f"{sys.executable} {self.folder}/worker1.py"
        self.assertEqual(expired.get("cmdline", command), command)  # a busy server may not have read it
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["epoch"])

    def test_the_scope_in_which_a_worker_dies_is_cancelled_and_one_that_it_has_left_is_not(self):
        worker = self.start_worker("""
            filetimer.configure()
            def save(*_):
                scope.release()
                with filetimer.expires(60, "save"):
                    os._exit(3)
            signal.signal(signal.SIGTERM, save)
            scope = filetimer.Scope(60, "epoch")
            scope.acquire()
            with filetimer.expires(0.3, "forward", signal=signal.SIGTERM, grace=60):
                time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=30), 3)
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["save"])

    def test_a_signal_that_a_worker_survives_leaves_the_scope_of_run_open(self):
        self.server.close()
        self.server = filetimer.Server("--kill-wait", "100ms", dir=self.dir)
        self.addCleanup(self.server.close)
        self.start_worker("""
            signal.signal(signal.SIGUSR1, lambda *_: None)
            with filetimer.expires(0.1, signal=signal.SIGUSR1, grace=float("inf")):
                time.sleep(60)
            """, prefix=(CLIENT, "run", "--scope", "job", "--timeout", "1h", "--"))
        killed = self.record("killed")
        self.assertEqual((killed["verdict"], killed.get("cancelled")), ("spared", None))
        self.assertIn("job", self.open_scopes(killed["pid"]))

    def test_a_worker_that_idles_after_its_first_scope_is_killed(self):
        worker = self.start_worker("""
            filetimer.configure(idle_timeout=0.3)
            with filetimer.expires(60, "step"):
                pass
            time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)
        self.assertEqual(self.record("expired", worker.pid)["scope"], "(idle)")

    test_a_worker_that_beats_a_heartbeat_which_has_expired_is_not_idle = worker_test("""
        filetimer.configure(idle_timeout=1)
        with filetimer.heartbeat(0.2, signal=0) as heart:
            time.sleep(0.5)
            for _ in range(40):
                heart.beat()
                time.sleep(0.05)
        """)


class WallClock(ServerCase):
    options = ("--max-interval", "100ms")

    def setUp(self):
        self.step = os.path.join(suite.folder_of(self, "clock"), "step")
        library = suite.library_to_preload(self, "libfiletimer_clock_step.so")
        clocks = {"LD_PRELOAD": library, "ASAN_OPTIONS": "verify_asan_link_order=0",
                  "CLOCK_STEP": self.step}
        with unittest.mock.patch.dict(os.environ, clocks):
            super().setUp()

    def test_lines_that_wait_while_the_clock_is_set_forward_keep_their_time(self):
        worker = self.start_worker("time.sleep(60)")
        own = {"x_timeout_s": 60}  # of timer_client; PyTorch's client has no such key
        with open(self.server.fifo, "w") as pipe:
            os.kill(self.server.pid, signal.SIGSTOP)
            for scope, more in ("torch", {}), ("own", own):
                print(json.dumps({"version": 1, "pid": worker.pid, "scope_id": scope, "signal": 9,
                                  "expiration_time": time.time() + 60, **more}), file=pipe)
        pathlib.Path(self.step).write_text("3600")
        os.kill(self.server.pid, signal.SIGCONT)
        self.client("ping")
        self.assertEqual({each["scope"]: 50 < each["remaining_s"] <= 60 for each in self.listed_scopes(worker.pid)},
                         {"torch": True, "own": True})

    def test_a_line_that_waits_meanwhile_and_is_tried_again_keeps_its_time_too(self):
        worker = self.start_worker("time.sleep(60)")
        os.kill(self.server.pid, signal.SIGSTOP)
        with open(self.server.fifo, "w") as pipe:
            print(json.dumps({"version": 1, "pid": worker.pid, "scope_id": "torch", "signal": 9,
                              "expiration_time": time.time() + 60}), file=pipe)
        pathlib.Path(self.step).write_text("3600")
        soft, hard = resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE)
        used = set(map(int, os.listdir(f"/proc/{self.server.pid}/fd")))
        # The descriptor that is left is enough for the step, and not for a worker.
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, (sorted({*range(4096)} - used)[1], hard))
        os.kill(self.server.pid, signal.SIGCONT)
        suite.wait_until(lambda: self.records("rejected"))
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        suite.wait_until(lambda: [50 < each["remaining_s"] <= 60 for each in self.listed_scopes(worker.pid)] == [True])


class WithoutSweeps(ServerCase):
    options = ("--max-interval", "1h")

    def test_a_worker_that_had_no_descriptor_for_a_message_writes_the_next_one(self):
        worker = self.start_worker("""
            import resource
            filetimer.configure()
            filetimer.admin.ping()  # the server has read the page
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            with filetimer.expires(60):
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                with filetimer.expires(0.3):
                    time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)

    def test_a_page_that_was_cut_short_gets_no_room_for_further_scopes(self):
        self.run_worker("""
            filetimer.configure()
            folder = os.path.join(os.environ["FILETIMER_DIR"], "scopes")
            [name] = [each for each in os.listdir(folder) if each.startswith(f"{os.getpid()}-")]
            file = os.open(os.path.join(folder, name), os.O_RDWR)
            with filetimer.expires(60):
                pass  # it looks for another page a second later
            os.ftruncate(file, 0)
            scopes = [filetimer.Scope(60, str(i)) for i in range(40)]
            for scope in scopes:
                scope.acquire()
            say(os.fstat(file).st_size)
            """, says="0\n", FILETIMER_LOG_LEVEL="error")

    @unittest.skipUnless(os.geteuid() == 0, "no process of another user can be started here")
    def test_a_worker_that_was_another_user_for_a_while_writes_the_next_message(self):
        worker = self.start_worker("""
            filetimer.configure()
            filetimer.admin.ping()  # the server has read the page
            os.seteuid(65534)
            with filetimer.expires(60):
                os.seteuid(0)
                with filetimer.expires(0.3):
                    time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)

    def test_a_soft_deadline_wakes_the_server(self):
        line = {"version": 1, "pid": os.getpid(), "scope_id": "line", "signal": 0,
                "expiration_time": time.time() + 3600, "x_timeout_s": 3600, "x_soft_s": 0.3}
        pathlib.Path(self.server.fifo).write_text(json.dumps(line) + "\n")
        self.assertEqual(self.record("warned")["scope"], "line")
        worker = self.start_worker("with filetimer.expires(3600, 'page', warn_after=0.3): time.sleep(60)")
        self.assertEqual(self.record("warned", worker.pid)["scope"], "page")

    def test_a_line_that_is_no_request_has_the_server_read_all_pages(self):
        # A message of a worker may have been in it.
        worker = subprocess.Popen([os.path.join(os.environ["FILETIMER_BIN_DIR"], "page_worker")],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, worker)
        worker.stdout.readline()
        for words in f"make {self.dir} p-1", "wake 0 known 3600000", "open 1 unknown 300":
            print(words, file=worker.stdin, flush=True)
            worker.stdout.readline()
            self.client("ping")
        pathlib.Path(self.server.fifo).write_text("no request\n")
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)

    def test_a_page_among_thousands_of_files_is_found_behind_a_full_pipe(self):
        os.kill(self.server.pid, signal.SIGSTOP)
        for number in range(3000):  # a look takes 256
            pathlib.Path(f"{self.dir}/scopes/{number}").touch()
        pipe = os.open(self.server.fifo, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(pipe, b"-" * 4095 + b"\n")
        os.close(pipe)
        worker = self.start_worker("with filetimer.expires(0.3): say('in'), time.sleep(60)")
        worker.stdout.readline()
        os.kill(self.server.pid, signal.SIGCONT)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)


class WarningHook(ServerCase):
    options = ("--on-warning", "true", "--evidence", "none")

    def test_it_runs_once_for_warnings_that_come_together(self):
        line = {"version": 1, "pid": os.getpid(), "signal": 0, "expiration_time": time.time() + 3599.98,
                "x_timeout_s": 3600, "x_soft_s": 0.001}  # it has passed
        lines = (json.dumps({**line, "scope_id": scope}) + "\n" for scope in ("one", "two"))
        pathlib.Path(self.server.fifo).write_text("".join(lines))
        self.record("hook")
        self.server.close()
        self.record("server_stopped")  # it ended in order, behind its hooks
        first, _ = self.records("warned")
        self.assertEqual([each["id"] for each in self.records("hook")], [first["id"]])


class MaxTimeout(ServerCase):
    options = ("--max-timeout", "100s")

    def test_list_shows_of_a_paused_scope_what_the_server_grants(self):
        scope = filetimer.Scope(3600, "s", client=self.configure())
        scope.acquire()
        time.sleep(0.05)
        scope.pause()
        self.assertEqual([each["granted_s"] for each in self.listed_scopes()], [100])
        scope.release()

    def test_so_does_the_record_of_one_that_is_left_open(self):
        worker = self.start_worker("""
            scope = filetimer.Scope(3600, "s")
            scope.acquire()
            time.sleep(0.05)
            scope.pause()
            os._exit(0)
            """)
        self.assertEqual(self.record("left_open", worker.pid)["timeout_s"], 100)


class EndlessMaxTimeout(ServerCase):
    options = (*MaxTimeout.options, "--max-timeout", "inf")

    def test_it_is_none(self):
        self.assertNotIn("max_timeout_s", self.record("server_started")["settings"])


class DryRun(ServerCase):
    options = ("--dry-run",)

    def test_the_kill_file_of_an_idle_worker_is_kept_until_it_is_idle_again_or_ends(self):
        worker = self.start_worker("""
            filetimer.configure(idle_timeout=0.2)
            for _ in sys.stdin:
                with filetimer.expires(60):
                    pass
            """)
        for count in 1, 2:
            worker.stdin.write("\n")
            worker.stdin.flush()
            suite.wait_until(lambda: len(self.records("killed")) == count)
            suite.wait_until(lambda: len(os.listdir(self.dir + "/kills")) == 1)
        worker.communicate(timeout=suite.BOUND_S)
        suite.wait_until(lambda: not os.listdir(self.dir + "/kills"))

    def test_the_next_server_runs_no_hook_for_a_kill_file_that_is_kept(self):
        self.start_worker("""
            filetimer.configure(idle_timeout=0.2)
            with filetimer.expires(60):
                pass
            sys.stdin.read()
            """)
        self.record("killed")
        [kill] = pathlib.Path(self.dir, "kills").iterdir()
        suite.wait_until(lambda: kill.read_text().endswith('{"stage":"recorded"}\n'))
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        for _ in range(2):  # also the one after the next does not judge the worker again
            with filetimer.Server("--dry-run", "--on-expiry", "true", dir=self.dir):
                self.client("ping")
        self.assertEqual(len(self.records("server_stopped")), 2)  # they ended in order, behind their hooks
        self.assertEqual((self.records("hook"), len(self.records("expired"))), ([], 1))

    def test_an_incident_lists_an_equal_share_of_1024_scopes_of_each_worker(self):
        workers = []
        for timeout in "60", "0.2":
            workers.append(self.start_worker("""
                import contextlib
                with contextlib.ExitStack() as scopes:
                    for number in range(600):
                        scopes.enter_context(filetimer.expires(60, f"outer {number}"))
                    for number in range(300 * 16):
                        with filetimer.expires(60, f"ended {number // 16}"):
                            pass
                    say("in")
                    with filetimer.expires(float(sys.argv[1]), "inner"):
                        sys.stdin.read()
                """, timeout))
            workers[-1].stdout.readline()
        incident = self.record("incident")
        listed = [each["pid"] for each in incident["open_scopes"]]
        self.assertEqual([listed.count(each.pid) for each in workers], [512, 512])
        self.assertEqual(incident["omitted"], 2 * 601 - 1024)
        # Of 8192 ended scopes as well, the last ones. A page has 15 of each name.
        for each in workers:
            ended = {int(scopes["scope"].split()[1]): len(scopes["ended"]) for scopes in incident["ended_scopes"]
                     if scopes["pid"] == each.pid}
            self.assertEqual((sum(ended.values()), min(ended), ended[min(ended)]), (4096, 26, 1))
        self.assertEqual(incident["ended_omitted"], 2 * 300 * 15 - 8192)

    def test_verdicts_of_two_seconds_are_of_one_incident(self):
        self.start_worker("with filetimer.expires(1.8), filetimer.expires(0.2): time.sleep(60)")
        first, last = suite.wait_until(lambda: (found := self.records("expired"))[1:] and found)
        began, judged = (each["deadline_mono_ns"] + each["overdue_ms"] * 1e6 for each in (first, last))
        self.assertEqual(first["incident"] == last["incident"], judged - began <= 2e9)


class ReleasedLate(ServerCase):
    # The signal waits for the command.
    options = ("--evidence-command", "sleep 300", "--max-timeout", "0.1")

    def test_the_record_has_the_time_of_the_release_also_in_a_pause(self):
        metrics = pathlib.Path(self.folder, "metrics")
        self.server.close()
        self.server = filetimer.Server(*self.options, "--metrics", str(metrics), dir=self.dir)
        self.addCleanup(self.server.close)
        for pauses in "", "pauses":
            with self.subTest(pauses):
                worker = self.start_worker("""
                    filetimer.configure()
                    with filetimer.expires(0.1, "step") as scope:
                        if len(sys.argv) > 1:
                            scope.pause()
                        while not scope.times().expired:
                            time.sleep(0.01)
                    say(time.monotonic_ns())
                    time.sleep(60)
                    """, *pauses.split())
                released = int(worker.stdout.readline())
                late = self.record("released_late", worker.pid)
                deadline = self.record("expired", worker.pid)["deadline_mono_ns"]
                self.assertLessEqual(deadline + int(late["late_ms"]) * 1_000_000, released)
        self.server.close()
        self.assertIn(f'filetimer_released_late_total{{dir="{self.dir}",scope="step"}} 2\n', metrics.read_text())


class PausedTooLong(ServerCase):
    options = ("--max-timeout", "0.1")

    def test_it_has_no_time_left(self):
        self.configure()
        os.kill(self.server.pid, signal.SIGKILL)
        with filetimer.expires(0.05, "x") as scope:
            self.assertTrue(scope.pause())
            suite.wait_until(lambda: scope.remaining < 0)
            self.assertTrue(scope.times().paused)

    def test_the_times_of_its_record_agree(self):
        worker = self.start_worker("""
            scope = filetimer.Scope(3600, "x")
            scope.acquire()
            time.sleep(0.05)
            scope.pause()
            time.sleep(60)
            """)
        expired = self.record("expired", worker.pid)
        [listed] = expired["open_scopes"]
        self.assertEqual((expired["timeout_s"], listed["timeout_s"]), (0.1, 0.1))
        self.assertAlmostEqual(listed["remaining_s"], -expired["overdue_ms"] / 1000, 5)


class Clients(ServerCase):
    def test_explicit_clients_need_no_configure(self):
        with filetimer.Client(self.dir) as client:
            self.assertTrue(client.is_watched)
            self.assertFalse(client.closed)
            self.assertTrue(client.target.startswith(self.dir))
            with client.expires(FAR_S, "mine"), filetimer.Scope(FAR_S, "other", client=client):
                self.assertEqual(self.open_scopes(), ["mine", "other"])
            with client.heartbeat(FAR_S, "heart"), client.paused("pause"):
                self.assertEqual(self.open_scopes(), ["heart", "pause"])
            with client.heartbeat(10, "heart", signal=signal.SIGTERM, grace=2, first_timeout=FAR_S):
                [heart] = self.listed_scopes()
                self.assertEqual((heart["signal"], heart["grace_s"], heart["asked_s"]), (signal.SIGTERM, 2, FAR_S))
            with client.heartbeat(60, "warned", warn_after=0.05):
                self.assertEqual(self.record("warned")["scope"], "warned")
            self.assertEqual(repr(client), f"<filetimer.Client {client.target}>")
        self.assertTrue(client.closed)
        earlier, client = filetimer.configure(self.dir), filetimer.configure(self.dir)
        self.assertFalse(earlier.closed)
        filetimer.close()
        self.assertTrue(client.closed)

    def test_a_run_folder_may_be_any_kind_of_path(self):
        import pathlib
        for folder in (self.dir, os.fsencode(self.dir), pathlib.Path(self.dir)):
            filetimer.Client(folder).close()

    def test_a_file_of_timeouts_replaces_those_in_the_code(self):
        import pathlib
        path = pathlib.Path(self.folder, "timeouts.toml")
        path.write_text('step = "5m"\n[load]\nfirst_timeout = "10m"\n', encoding="utf-8")
        filetimer.configure(self.dir, timeouts=path)
        self.addCleanup(filetimer.close)

        def asked(name):
            return {each["scope"]: each for each in self.listed_scopes()}[name]["asked_s"]
        for expected_s in (600, FAR_S):
            with filetimer.expires(FAR_S, "step"), filetimer.expires(FAR_S, "load"):
                self.assertEqual(asked("step"), 300)
                self.assertEqual(asked("load"), expected_s)
        batches = (asked("load") for _ in "ab")  # neither scope is the first of its name
        self.assertEqual(list(filetimer.each(batches, FAR_S, "load")), [FAR_S, FAR_S])
        with filetimer.heartbeat(FAR_S, "step") as heart:
            heart.beat()
            self.assertEqual(asked("step"), 300)
            listed = {each["scope"]: each for each in self.listed_scopes()}
            self.assertEqual(listed["step"]["code_timeout_s"], FAR_S)

    def test_configure_without_a_server_waits_or_raises_or_returns(self):
        empty = os.path.join(self.folder, "empty")
        for missing, timeout in (("raise", 5), ("wait", 0.1)):
            begun = time.monotonic()
            with self.assertRaisesRegex(filetimer.ServerUnavailable, "no timer server at"):
                filetimer.configure(empty, missing=missing, timeout=timeout)
            self.assertLess(time.monotonic() - begun, 5)
        client = filetimer.Client(empty)
        self.assertFalse(client.is_watched)
        with client.expires(FAR_S, "x"):
            pass
        server = filetimer.Server(dir=empty)
        with client.expires(FAR_S, "x"):
            self.assertTrue(client.is_watched)
        server.close()


if __name__ == "__main__":
    suite.main()
