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
import time
import traceback

import filetimer
import suite
from filetimer import admin, errors
from harness import ServerCase, in_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
        self.client = self.configure()

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


def inside(scope):
    with scope:
        yield


class Opening:
    """What is expected of one entry of a scope."""

    def __init__(self, state, is_watched, is_first, generator=None):
        self.state = state  # "entered", "acquired"; "left early": released, and still in its `with`
        self.is_watched = is_watched
        self.is_first = is_first
        self.generator = generator  # that is in the `with`
        self.is_paused = False  # by its own pause()
        self.is_expired = False
        self.is_given_up = False  # a renewal was told of the verdict, and has ended the scope

    @property
    def is_open(self):
        return self.is_watched and self.state != "left early"


class ModelScope(list):
    """The entries of a scope, the oldest first."""

    @property
    def current(self):
        """The one that methods concern which no `with` is around: the latest if it was acquired, else the first one,
        or the latest.
        """
        found = [each for each in self if each.state != "left early"]
        if found and found[-1].state == "acquired":
            return found[-1]
        return next((each for each in found if each.is_first), (found or [Opening("none", False, False)])[-1])


class ScopesInAnyOrder(RuleBasedStateMachine):
    """Three scopes and a client in any order of operations, compared with the expected open scopes. The
    last scope has on_expiry="raise". The server only records.
    """

    case = None

    def __init__(self):
        super().__init__()
        self.client = filetimer.Client(self.case.dir)
        filetimer.configure(self.case.dir)
        self.scopes = [self.client.expires(3600, f"s{i}") for i in range(2)]
        self.scopes.append(filetimer.Scope(3600, "s2", on_expiry="raise", client=self.client))
        self.models = [ModelScope() for _ in range(3)]
        self.regions = []
        self.others = []

    @rule(i=st.integers(0, 2))
    def enter(self, i):
        """A scope that raises is refused in a generator, so it is entered once and by hand."""
        if i == 2:
            if self.models[i]:
                return
            self.scopes[i].__enter__()
        generator = inside(self.scopes[i]) if i != 2 else None
        next(generator or iter("x"))
        self.models[i].append(Opening("entered", not self.client.closed, not self.models[i], generator))

    @rule(i=st.integers(0, 2))
    def acquire(self, i):
        if i == 2 and any(each.state != "acquired" for each in self.models[i]):
            return
        self.scopes[i].acquire()
        self.models[i].append(Opening("acquired", not self.client.closed, not self.models[i]))

    @rule(i=st.integers(0, 2), which=st.integers(0, 9), has_failed=st.booleans(), is_elsewhere=st.booleans())
    def leave(self, i, which, has_failed, is_elsewhere):
        model = self.models[i]
        entered = [each for each in model if each.state != "acquired"]
        if not entered:
            self.scopes[i].__exit__(None, None, None)
            return
        left = entered[which % len(entered)]

        def call():
            try:
                if left.generator is None:
                    self.scopes[i].__exit__(ValueError if has_failed else None, None, None)
                elif has_failed:
                    left.generator.throw(ValueError)
                else:
                    next(left.generator, None)
            except ValueError:
                pass
        in_thread(call) if is_elsewhere else call()  # a dry run raises no ScopeExpired
        model.remove(left)

    @rule(i=st.integers(0, 2), is_elsewhere=st.booleans())
    def release(self, i, is_elsewhere):
        is_elsewhere &= len(self.models[i]) == 1
        released = self.models[i].current
        found = []
        call = lambda: found.append(self.scopes[i].release())  # noqa: E731
        in_thread(call) if is_elsewhere else call()
        assert found == [released.is_open and not released.is_expired]
        if released.state == "entered":
            released.state = "left early"
        elif released.state == "acquired":
            self.models[i].remove(released)

    @rule(i=st.integers(0, 2), timeout=st.floats(1000, 10_000))
    def renew(self, i, timeout):
        model = self.models[i].current
        is_fine = model.is_open and not model.is_expired
        assert self.scopes[i].renew(timeout) == is_fine
        model.is_given_up |= model.is_open and model.is_expired
        if is_fine:
            assert abs(self.scopes[i].times().timeout - timeout) < 1e-3

    @precondition(lambda self: not self.regions)
    @rule(i=st.integers(0, 2), is_pause=st.booleans())
    def pause(self, i, is_pause):
        scope, model = self.scopes[i], self.models[i].current
        is_fine = model.is_open and not model.is_expired
        assert (scope.pause() if is_pause else scope.resume()) == is_fine
        if is_fine:
            model.is_paused = is_pause

    @precondition(lambda self: not self.client.closed and len(self.regions) < 3)
    @rule()
    def enter_region(self):
        self.regions.append(self.client.paused("region"))
        self.regions[-1].__enter__()

    @precondition(lambda self: self.regions)
    @rule(is_first=st.booleans())
    def leave_region(self, is_first):
        self.regions.pop(0 if is_first else -1).__exit__(None, None, None)

    @precondition(lambda self: not self.regions)
    @rule(i=st.integers(0, 2))
    def expire(self, i):
        """Its timeout becomes a few milliseconds, and they pass."""
        scope, model = self.scopes[i], self.models[i].current
        if model.is_open and not model.is_paused and not model.is_expired:
            assert scope.renew(0.002)
            end = time.monotonic() + suite.BOUND_S
            while not scope.times().expired:
                assert time.monotonic() < end
                time.sleep(0.001)
            model.is_expired = True

    @rule(is_listed=st.booleans())
    def fork(self, is_listed):
        """In the child no scope is open; it opens its own, and the parent's go on."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for scope, model in zip(self.scopes, self.models):
                    assert scope.times() is None and not scope.renew() and not scope.pause()
                    for each in model:
                        if each.generator:
                            next(each.generator, None)
                        elif each.state != "acquired":
                            scope.__exit__(None, None, None)
                    scope.release()
                if not self.client.closed:
                    with self.client.expires(3600, "child") as scope:
                        assert scope.is_open
                        assert not is_listed or self.case.open_scopes() == ["child"]
                    for scope in self.scopes:
                        with scope:
                            times = scope.times()
                            assert not times.expired and not times.paused
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0

    @rule(i=st.integers(0, 2))
    def drop(self, i):
        for each in self.models[i]:
            if each.generator:
                each.generator.close()
        self.scopes[i] = filetimer.Scope(3600, "again", client=self.client)
        if i == 2:
            self.scopes[i] = filetimer.Scope(3600, "again", on_expiry="raise", client=self.client)
        self.models[i] = ModelScope()

    @precondition(lambda self: not self.client.closed)
    @rule()
    def beat(self):
        self.others.append(self.client.heartbeat(3600))
        assert self.others[-1].beat()

    @rule()
    def compare_with_the_server(self):
        if not self.regions and not self.others:
            wanted = sorted(scope.name for scope, model in zip(self.scopes, self.models)
                            for each in model if each.is_open and not each.is_expired)
            listed = [each["scope"] for each in self.case.listed_scopes() if not each.get("expired")]
            assert sorted(listed) == wanted, (listed, wanted)

    @precondition(lambda self: not self.regions)
    @rule()
    def close(self):
        self.client.close()

    @invariant()
    def times_are_those_of_the_model(self):
        for scope, entries in zip(self.scopes, self.models):
            model, times = entries.current, scope.times()
            is_open = model.is_open and not model.is_given_up
            assert (times is not None) == is_open == scope.is_open
            if times is not None:
                assert times.expired == model.is_expired
                assert times.expired or times.paused == (model.is_paused or bool(self.regions))
                assert 0 <= times.elapsed and times.remaining <= times.timeout

    def teardown(self):
        while self.regions:
            self.regions.pop().__exit__(None, None, None)
        for each in sum(self.models, []):
            if each.generator:
                each.generator.close()
        self.scopes.clear()
        self.others.clear()
        assert self.case.open_scopes() == []


class AnyOrder(ServerCase):
    options = ("--dry-run", "--grace", "10ms")  # after which a scope that raises is expired

    def test_scopes_in_any_order(self):
        machine = type("Machine", (ScopesInAnyOrder,), {"case": self})
        test = machine.TestCase("runTest")
        test.settings = settings(bounded, max_examples=max(EXAMPLES // 8, 1),
                                 stateful_step_count=60)
        test.runTest()

    def test_tasks_that_share_a_scope_keep_their_own_deadlines(self):
        self.configure()
        shared = filetimer.Scope(3600, "x")

        async def work(draw, depth=0):
            with contextlib.ExitStack() as stack:
                for _ in range(draw.randrange(1, 6)):
                    await asyncio.sleep(0)
                    stack.enter_context(shared)
                    timeout = draw.randrange(1000, 10_000)
                    shared.renew(timeout)
                    await asyncio.sleep(0)
                    assert abs(shared.times().timeout - timeout) < 1e-3
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
