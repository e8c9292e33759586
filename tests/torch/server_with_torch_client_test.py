#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""PyTorch's unmodified FileTimerClient with our timer_server.

A worker is a process of its own, which carries out one of MODES. A worker that must survive is compared
with one that must not and has a later deadline: when that one is dead, the server has judged the first.
"""
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import unittest

import torch.distributed.elastic.timer as timer

import suite
from records import judge_logs, records, wait_for_record
from suite import BOUND_S, end

FAR_S = 3600
TORCH_DEFAULT_SCOPE = "contextlib.py#"  # the name in 1.13 of a scope without a name


def say(word):
    print(word, flush=True)


def hang():
    while True:
        signal.pause()


def hung(client, seconds, scope="forward"):
    with timer.expires(after=seconds, scope=scope):
        say("in")
        hang()


def unnamed(client, seconds):
    hung(client, seconds, scope=None)


def nested(client, seconds):
    with timer.expires(after=FAR_S, scope="epoch"):
        with timer.expires(after=FAR_S, scope="step"):
            pass
        hung(client, seconds, "exchange")


def healthy(client, seconds, scopes=1):
    for _ in range(scopes):
        with timer.expires(after=seconds, scope="step"):
            pass
    say("in")
    hang()


def flood(client, seconds):
    # As many as a training loop opens in a few steps: they would fill the reference server's pipe.
    healthy(client, seconds, scopes=640)


def past(client, _):
    for _ in range(20):
        client.acquire("forward", time.time() - FAR_S)
        client.release("forward")
    say("in")
    hang()


MODES = {f.__name__: f for f in (hung, unnamed, nested, healthy, flood, past)}


def work(mode, pipe, seconds, number):
    client = timer.FileTimerClient(pipe, int(number))
    timer.configure(client)
    MODES[mode](client, float(seconds))


class Forked(multiprocessing.get_context("fork").Process):
    """A worker that need not import torch, with the members of subprocess.Popen that are used here."""

    stdin = stderr = None

    def __init__(self, *arguments):
        super().__init__(args=arguments)
        self.arguments = arguments
        reading, self.writing = os.pipe()
        self.stdout = open(reading, encoding="utf-8")
        self.start()
        os.close(self.writing)

    def run(self):
        os.dup2(self.writing, 1)
        work(*self.arguments)

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        return self.exitcode


class ServerWithTorchClient(unittest.TestCase):
    def setUp(self):
        self.folder = suite.folder_of(self, "torch")
        self.addCleanup(judge_logs, self, self.folder)
        self.pipe = os.path.join(self.folder, "requests")
        self.log = os.path.join(self.folder, "expired.jsonl")

    def start_server(self, *options):
        server = subprocess.Popen(
            [os.environ["FILETIMER_SERVER"], "--dir", self.folder, *options],
            stdout=subprocess.PIPE, universal_newlines=True)
        self.addCleanup(end, server)
        self.assertTrue(server.stdout.readline().startswith("ready "))
        return server

    def start_worker(self, mode, seconds, number=signal.SIGKILL, **environment):
        words = [mode, self.pipe, str(seconds), str(int(number))]
        worker = Forked(*words) if not environment else subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *words],
            stdout=subprocess.PIPE, universal_newlines=True, env=dict(os.environ, **environment))
        self.addCleanup(end, worker)
        return worker

    def worker(self, mode, seconds, number=signal.SIGKILL, **environment):
        worker = self.start_worker(mode, seconds, number, **environment)
        self.assertEqual(worker.stdout.readline(), "in\n")
        return worker

    def records(self, event, pid):
        return records([self.log], event, pid)

    def record(self, event, pid):
        return wait_for_record(self, self.log, event, pid)

    def stop(self, server):
        server.terminate()
        self.assertEqual(server.wait(timeout=BOUND_S), 0)
        return records([self.log])[-1]

    def assert_survives(self, worker, longest_deadline):
        witness = self.worker("hung", longest_deadline + 0.5)
        self.assertEqual(witness.wait(timeout=BOUND_S), -signal.SIGKILL)
        self.assertIsNone(worker.poll())
        self.assertEqual(self.records("expired", worker.pid), [])

    def test_a_hung_worker_gets_the_clients_signal_and_its_scope_is_recorded(self):
        self.start_server()
        for number in signal.SIGKILL, signal.SIGTERM:
            worker = self.worker("hung", 0.5, number, RANK="3", LOCAL_RANK="1")
            self.assertEqual(worker.wait(timeout=BOUND_S), -number)
            expired = self.record("expired", worker.pid)
            self.assertEqual(expired["scope"], "forward")
            self.assertEqual(expired["signal"], number)
            self.assertEqual((expired["rank"], expired["local_rank"]), (3, 1))
            self.assertAlmostEqual(expired["timeout_s"], 0.5, delta=0.4)
            self.assertGreaterEqual(expired["overdue_ms"], 0)
            killed = self.record("killed", worker.pid)
            self.assertEqual(killed["verdict"], "dead")
            self.assertEqual([(s["signal"], s["name"]) for s in killed["signals"]],
                             [(number, number.name)])

    def test_a_scope_without_a_name_is_enforced(self):
        self.start_server()
        worker = self.worker("unnamed", 0.3)
        self.assertEqual(worker.wait(timeout=BOUND_S), -signal.SIGKILL)
        self.assertIn(TORCH_DEFAULT_SCOPE, self.record("expired", worker.pid)["scope"])

    def test_a_healthy_worker_is_not_killed(self):
        self.start_server()
        self.assert_survives(self.worker("healthy", 0.5), 0.5)

    def test_an_inner_scope_expires_inside_an_outer_one(self):
        self.start_server()
        worker = self.worker("nested", 0.3)
        self.assertEqual(worker.wait(timeout=BOUND_S), -signal.SIGKILL)
        expired = self.record("expired", worker.pid)
        self.assertEqual(expired["scope"], "exchange")
        self.assertEqual({s["scope"] for s in expired["open_scopes"]}, {"epoch", "exchange"})
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["epoch"])

    def test_640_scopes_in_a_tight_loop_raise_nothing_and_leave_nothing_armed(self):
        server = self.start_server()
        workers = [self.start_worker("flood", 2) for _ in range(2)]
        for worker in workers:
            self.assertEqual(worker.stdout.readline(), "in\n")  # else it died of BlockingIOError
        for worker in workers:
            self.assert_survives(worker, 2)
        stopped = self.stop(server)
        self.assertEqual(stopped["left"], [])
        self.assertEqual(stopped["rejected"], 0)

    def test_a_past_acquire_that_is_read_with_its_release_kills_no_worker(self):
        server = self.start_server()
        server.send_signal(signal.SIGSTOP)
        worker = self.worker("past", 0)
        server.send_signal(signal.SIGCONT)
        self.assert_survives(worker, 0)
        self.assertEqual(self.stop(server)["left"], [])

    def test_a_worker_that_ends_inside_a_scope_has_left_it_open(self):
        self.start_server()
        worker = self.worker("hung", FAR_S)
        worker.terminate()
        worker.wait(timeout=BOUND_S)
        self.assertEqual(self.record("left_open", worker.pid)["scope"], "forward")
        self.assertEqual(self.records("killed", worker.pid), [])

    def test_without_a_server_the_client_raises_not_available(self):
        client = timer.FileTimerClient(self.pipe)
        with self.assertRaisesRegex(BrokenPipeError, "not available"):
            client.acquire("forward", time.time() + FAR_S)
        server = self.start_server()
        self.stop(server)
        with self.assertRaisesRegex(BrokenPipeError, "not available"):
            client.acquire("forward", time.time() + FAR_S)
        # The same after a server that was killed and left its pipe.
        server = self.start_server()
        server.kill()
        server.wait(timeout=BOUND_S)
        self.assertTrue(os.path.exists(self.pipe))
        with self.assertRaisesRegex(BrokenPipeError, "not available"):
            client.acquire("forward", time.time() + FAR_S)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] in MODES:
        work(*sys.argv[1:])
    else:
        suite.main()
