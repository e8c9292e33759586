# SPDX-License-Identifier: MIT
"""filetimer.torch.FileTimerClient with PyTorch's unmodified expires()."""
import asyncio
import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
import unittest

import filetimer
import suite
from harness import FAR_S, ServerCase, in_thread

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch.distributed.elastic.timer as timer

    import filetimer.torch


class WithoutTorch(unittest.TestCase):
    def test_the_package_imports_and_the_module_names_what_is_missing(self):
        script = ("import sys; sys.modules['torch'] = None\nimport filetimer\n"
                  "try:\n    import filetimer.torch\nexcept ImportError as e: print(e.name)")
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout[:5]), (0, b"torch"))

    def test_the_package_imports_neither_torch_nor_large_modules(self):
        script = ("import sys, filetimer\nfor name in ('torch', 'numpy', 'typing', 'asyncio', "
                  "'subprocess', 'dataclasses', 'json', 'datetime', 'signal'):\n"
                  "    assert name not in sys.modules, name")
        subprocess.run([sys.executable, "-S", "-E", "-c", "import sys; sys.path.insert(0, %r)\n%s"
                        % (os.path.dirname(os.path.dirname(filetimer.__file__)), script)],
                       check=True)


@unittest.skipUnless(HAS_TORCH, "no torch here")
class Torch(ServerCase):
    def setUp(self):
        super().setUp()
        self.pipe = os.path.join(self.dir, "requests")

    def test_existing_code_uses_a_page(self):
        timer.configure(filetimer.torch.FileTimerClient(self.pipe))
        with timer.expires(after=FAR_S, scope="forward"):
            self.assertEqual(self.open_scopes(), ["forward"])
            with timer.expires(after=FAR_S):
                self.assertEqual(len(self.open_scopes()), 2)
        self.assertEqual(self.open_scopes(), [])
        self.assertEqual(self.statistics()["forward"], 1)  # only pages have statistics

    def test_it_takes_the_client_that_is_configured(self):
        made = filetimer.torch.FileTimerClient()  # as a library does when it is imported
        client = self.configure()
        for each in made, filetimer.torch.FileTimerClient(client=client):
            each.acquire("x", math.inf)
            self.assertEqual(self.open_scopes(), ["x"])
            each.release("x")

    def test_a_timer_that_is_too_long_for_a_deadline_has_none(self):
        client = filetimer.torch.FileTimerClient(self.pipe)
        client.acquire("x", time.time() + 1e10)
        [scope] = self.listed_scopes()
        self.assertIsNone(scope["remaining_s"])
        client.release("x")
        with self.assertRaises(ValueError):
            client.acquire("x", math.nan)

    def test_several_timers_of_one_name_are_open_and_a_release_ends_the_innermost(self):
        client = filetimer.torch.FileTimerClient(self.pipe)
        for acquire in (client.acquire, lambda *timer: client.acquire(*timer)):  # also for its caller
            acquire("x", math.inf)
            acquire("x", time.time() + FAR_S)
            self.assertEqual(self.open_scopes(), ["x", "x"])
            client.release("x")
            [outer] = self.listed_scopes()
            self.assertIsNone(outer["remaining_s"])
            client.release("x")
            client.release("x")
            self.assertEqual(self.open_scopes(), [])

    def test_a_release_ends_a_timer_of_its_own_thread_first(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.dir)
        client = filetimer.torch.FileTimerClient("requests")
        in_thread(client.acquire, "x", math.inf)
        for name in "xy":
            client.acquire(name, time.time() + FAR_S)
        client.release("x")
        self.assertEqual([(each["scope"], each["remaining_s"] is None) for each in self.listed_scopes()],
                         [("x", True), ("y", False)])
        for name in "xzx":
            client.release(name)
        self.assertEqual(self.open_scopes(), ["y"])
        client.release("y")
        self.assertEqual(client._open, [])

    def test_each_task_ends_the_timer_that_it_has_started(self):
        timer.configure(filetimer.torch.FileTimerClient(self.pipe))

        async def task(hours):
            with timer.expires(after=FAR_S * hours, scope="x"):
                for _ in range(hours):
                    await asyncio.sleep(0)
            return [round(each["remaining_s"] / FAR_S) for each in self.listed_scopes()]

        async def main():
            return await asyncio.gather(task(1), task(2))
        self.assertEqual(asyncio.run(main()), [[2], []])

    def test_a_generator_that_another_thread_resumes_ends_its_own_timer(self):
        timer.configure(filetimer.torch.FileTimerClient(self.pipe))

        def step(hours):
            with timer.expires(after=FAR_S * hours, scope="x"):
                yield
        moved, own = step(1), step(2)
        in_thread(next, moved)
        next(own)
        moved.close()
        [left] = self.listed_scopes()
        self.assertGreater(left["remaining_s"], FAR_S)
        own.close()

    def test_two_releases_at_the_same_time_end_two_timers(self):
        client = filetimer.torch.FileTimerClient(self.pipe)
        others = [client.release]

        class Name(str):
            def __eq__(self, other):
                while others:  # as another thread, while this release looks for its timer
                    others.pop()("x")
                return str.__eq__(self, other)
        for _ in range(2):
            client.acquire("x", math.inf)
        client.release(Name("x"))
        self.assertEqual(self.open_scopes(), [])

    def test_a_hung_worker_gets_the_clients_signal_at_once_if_its_time_has_passed(self):
        for arguments, after, number in (("sys.argv[1]", 0.3, signal.SIGKILL),
                                         ("sys.argv[1], signal.SIGTERM", 0.3, signal.SIGTERM),
                                         ("sys.argv[1]", -5, signal.SIGKILL)):
            with self.subTest(arguments, after=after):
                worker = self.start_worker(f"""
                    import filetimer.torch, torch.distributed.elastic.timer as timer
                    timer.configure(filetimer.torch.FileTimerClient({arguments}))
                    with timer.expires(after={after}, scope="forward"):
                        time.sleep(60)
                    """, self.pipe)
                self.assertEqual(worker.wait(timeout=60), -number)
                self.assertEqual(self.record("expired", worker.pid)["scope"], "forward")

    def test_a_default_name_may_have_a_path_that_is_no_text(self):
        client = filetimer.torch.FileTimerClient(self.pipe)
        client.acquire("/\udcff/train.py#7", math.inf)
        self.assertEqual(self.open_scopes(), ["/?/train.py#7"])
        client.release("/\udcff/train.py#7")
        self.assertEqual(self.open_scopes(), [])

    def test_a_negative_time_is_a_release_and_a_negative_signal_is_none(self):
        client = filetimer.torch.FileTimerClient(self.pipe, -1)
        client.acquire("x", math.inf)
        self.assertEqual(self.open_scopes(), ["x"])
        client.acquire("x", -1)
        self.assertEqual(self.open_scopes(), [])

    def test_a_function_does_not_end_the_timer_of_a_thread_whose_frame_was_where_its_own_is(self):
        client, frames = filetimer.torch.FileTimerClient(self.pipe), []

        def work(keep, call, *args):
            frames.append(keep(sys._getframe()))
            if id(frames[-1]) == frames[0] or len(frames) == 1:
                call(*args)
                return True
        client.acquire("x", math.inf)
        in_thread(work, id, client.acquire, "x", time.time() + FAR_S)
        if not any(work(lambda frame: frame, client.release, "x") for _ in range(1000)):
            self.skipTest("no frame is where that of the thread was")
        [left] = self.listed_scopes()
        self.assertIsNotNone(left["remaining_s"])

    def test_a_path_without_the_runtime_directory_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'/tmp/theirs' does not name a runtime directory DIR: .* no path"):
            filetimer.torch.FileTimerClient("/tmp/theirs")


if __name__ == "__main__":
    suite.main()
