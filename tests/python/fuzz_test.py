# SPDX-License-Identifier: MIT
"""Arguments of any value, and scopes in any order, raise a Python exception or none, and never crash.
Hypothesis draws the same values in each run. With FILETIMER_FUZZ_RANDOM=1 it draws others,
FILETIMER_EXAMPLES times.
"""
import asyncio
import contextlib
import datetime
import math
import os
import unittest

import filetimer
import suite
from filetimer import admin, errors
from harness import ServerCase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

EXAMPLES = int(os.environ.get("FILETIMER_EXAMPLES", "200"))
CLEAR = (filetimer.TimerError, TypeError)
IS_RANDOM = os.environ.get("FILETIMER_FUZZ_RANDOM", "0") != "0"
bounded = settings(max_examples=EXAMPLES, deadline=None, database=None,
                   derandomize=not IS_RANDOM, print_blob=IS_RANDOM,
                   suppress_health_check=list(HealthCheck))

# Surrogates and NULs, too.
names = st.text(st.characters(), max_size=10_000) | st.text(
    st.sampled_from("ab\0\ud800\udfffä\U0001f600"), max_size=300)
numbers = (st.floats() | st.integers() | st.timedeltas() | st.booleans() | st.fractions()
           | st.decimals() | st.complex_numbers())
anything = st.none() | numbers | names | st.binary() | st.lists(st.integers()) | st.just(object())


class Odd:
    """A number and a duration that raises, or returns a wrong type."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.result()

    def __index__(self):
        return self.result()

    def total_seconds(self):
        return self.result()

    def result(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Arguments(ServerCase):
    options = ("--dry-run",)

    def setUp(self):
        super().setUp()
        self.client = self.configure(statistics=False)

    def test_any_name(self):
        @bounded
        @given(names)
        def run(name):
            is_fine = name and "\0" not in name and not any(
                "\ud800" <= each <= "\udfff" for each in name)
            try:
                with filetimer.expires(3600, name) as scope:
                    self.assertEqual(scope.name, name)
                    repr(scope)
            except errors.InvalidArgument as error:
                self.assertFalse(is_fine, error)
            else:
                self.assertTrue(is_fine)
        run()

    def test_any_timeout(self):
        @bounded
        @given(numbers)
        def run(timeout):
            if isinstance(timeout, (bool, complex)):
                with self.assertRaises(TypeError):
                    filetimer.Scope(timeout)
                return
            if isinstance(timeout, datetime.timedelta):
                seconds = timeout.total_seconds()
            else:
                try:
                    seconds = float(timeout)
                except (OverflowError, ValueError):  # decimal's signalling NaN is a ValueError
                    seconds = math.nan
            is_fine = 0 < seconds <= 1e9 or seconds == math.inf
            try:
                scope = filetimer.Scope(timeout, "x")
            except ValueError:
                self.assertFalse(is_fine)
            else:
                self.assertTrue(is_fine)
                with scope:
                    scope.renew(timeout)
                    scope.times()
        run()

    def test_anything_at_all(self):
        options = ("signal", "grace", "warn_after", "first_timeout", "on_expiry")

        @bounded
        @given(anything, anything, st.dictionaries(st.sampled_from(options), anything))
        def run(timeout, name, more):
            for make in (filetimer.expires, filetimer.Scope):
                try:
                    with make(timeout, name, **more):
                        pass
                except CLEAR:
                    pass
                except ValueError as error:  # of float(), for a signalling NaN
                    self.assertIn("NaN", str(error))
            for call in (admin.rpc_timeout, self.client.start):
                try:
                    call(timeout)
                except CLEAR:
                    pass
                except ValueError as error:
                    self.assertIn("NaN", str(error))
            self.client.stop()
        run()

    def test_numbers_that_raise_or_lie(self):
        for value in (KeyError("x"), ZeroDivisionError(), 3, "3", None, math.nan, 2.5):
            odd = Odd(value)
            expected = type(value) if isinstance(value, Exception) else CLEAR
            try:
                filetimer.expires(odd, "x")
            except expected:
                pass
            try:
                filetimer.expires(1, "x", signal=odd)
            except expected:
                pass


class ScopesInAnyOrder(RuleBasedStateMachine):
    """Three scopes and a client in any order of operations, compared with the expected open scopes."""

    case = None

    def __init__(self):
        super().__init__()
        self.client = filetimer.Client(self.case.dir)
        self.scopes = [self.client.expires(3600, f"s{i}") for i in range(3)]
        self.state = ["free"] * 3
        self.others = []

    @rule(i=st.integers(0, 2))
    def enter(self, i):
        is_fine = self.state[i] == "free" and not self.client.closed
        try:
            self.scopes[i].__enter__()
            assert is_fine
            self.state[i] = "entered"
        except filetimer.TimerError:
            assert not is_fine

    @rule(i=st.integers(0, 2))
    def acquire(self, i):
        is_fine = self.state[i] == "free" and not self.client.closed
        try:
            self.scopes[i].acquire()
            assert is_fine
            self.state[i] = "acquired"
        except filetimer.TimerError:
            assert not is_fine

    @rule(i=st.integers(0, 2))
    def leave(self, i):
        is_fine = self.state[i] in ("entered", "left early")
        try:
            self.scopes[i].__exit__(None, None, None)
            assert is_fine
            self.state[i] = "free"
        except filetimer.TimerError:
            assert not is_fine

    @rule(i=st.integers(0, 2))
    def release(self, i):
        was_open = self.state[i] in ("entered", "acquired")
        assert self.scopes[i].release() == was_open
        if was_open:
            self.state[i] = "left early" if self.state[i] == "entered" else "free"

    @rule(i=st.integers(0, 2), timeout=st.floats(1000, 10_000))
    def renew(self, i, timeout):
        assert self.scopes[i].renew(timeout) == (self.state[i] in ("entered", "acquired"))

    @rule(i=st.integers(0, 2), is_pause=st.booleans())
    def pause(self, i, is_pause):
        scope = self.scopes[i]
        is_open = self.state[i] in ("entered", "acquired")
        assert (scope.pause() if is_pause else scope.resume()) == is_open
        assert scope.is_open == is_open

    @rule(i=st.integers(0, 2))
    def drop(self, i):
        self.scopes[i] = filetimer.Scope(3600, "again", client=self.client)
        self.state[i] = "free"

    @precondition(lambda self: not self.client.closed)
    @rule()
    def beat(self):
        self.others.append(self.client.heartbeat(3600))
        assert self.others[-1].beat()

    @rule()
    def close(self):
        self.client.close()

    def teardown(self):
        self.scopes.clear()
        self.others.clear()
        assert self.case.open_scopes() == []


class AnyOrder(ServerCase):
    def test_scopes_in_any_order(self):
        machine = type("Machine", (ScopesInAnyOrder,), {"case": self})
        test = machine.TestCase("runTest")
        test.settings = settings(bounded, max_examples=max(EXAMPLES // 8, 1),
                                 stateful_step_count=60)
        test.runTest()

    def test_tasks_that_pause_in_any_order_are_paused_independently(self):
        self.configure()

        async def work(draw, depth=0):
            """Opens scopes, each of which must be paused if and only if this task is."""
            is_paused = False
            with contextlib.ExitStack() as stack:
                for _ in range(draw.randrange(1, 6)):
                    await asyncio.sleep(0)
                    if draw.random() < 0.3:
                        stack.enter_context(filetimer.paused())
                        is_paused = True
                    scope = stack.enter_context(filetimer.expires(3600, "x"))
                    await asyncio.sleep(0)
                    assert scope.times().paused == is_paused
            if depth < 3 and draw.random() < 0.5:
                await asyncio.create_task(work(draw, depth + 1))

        @bounded
        @given(st.randoms(use_true_random=False), st.integers(1, 20))
        def run(draw, count):
            async def main():
                await asyncio.gather(*(work(draw) for _ in range(count)))
            asyncio.run(main())
        run()
        self.assertEqual(self.open_scopes(), [])


if __name__ == "__main__":
    suite.main()
