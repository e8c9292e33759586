#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The client library and timer_client with PyTorch's unmodified FileTimerServer.

The server runs in this process and kills workers. A worker that must survive is compared with one
that must not and has a later deadline: when that one is dead, the server has judged the first.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from torch.distributed.elastic.timer import FileTimerServer

import suite
from suite import BOUND_S, end

CLIENT = os.environ["FILETIMER_CLIENT"]
WORKER = os.environ["LIBRARY_WORKER"]


class ClientWithTorchServer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="filetimer-torch-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.pipe = os.path.join(self.folder, "pipe")
        self.server = FileTimerServer(self.pipe, max_interval=0.05)
        self.server.start()
        self.addCleanup(self.stop_server)

    def stop_server(self):
        # The server's thread blocks in open() until a client opens the pipe, so this opens it once.
        try:
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            pass
        self.server.stop()

    def start(self, *words):
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        self.addCleanup(end, process)
        return process

    def worker(self, mode, seconds):
        process = self.start(WORKER, self.pipe, mode, str(seconds))
        self.assertEqual(process.stdout.readline(), "in\n")
        return process

    def client(self, *words):
        return subprocess.run([CLIENT, *words], timeout=BOUND_S).returncode

    def assert_killed(self, process):
        self.assertEqual(process.wait(timeout=BOUND_S), -signal.SIGKILL)

    def assert_survives(self, process, longest_deadline):
        self.assert_killed(self.worker("hung", longest_deadline + 0.5))
        self.assertIsNone(process.poll())

    def test_a_hung_worker_is_killed(self):
        self.assert_killed(self.worker("hung", 0.5))

    def test_a_healthy_worker_is_not_killed(self):
        self.assert_survives(self.worker("healthy", 0.5), 0.5)

    def test_an_inner_scope_of_the_same_name_does_not_disarm_the_outer(self):
        self.assert_killed(self.worker("nested", 0.5))

    def test_a_flood_of_scopes_leaves_nothing_armed(self):
        worker = self.worker("flood", 2)
        self.assert_survives(worker, 2)
        worker.stdin.close()
        self.assertEqual(worker.wait(timeout=BOUND_S), 0)

    def test_run_exits_with_124_if_command_hangs(self):
        code = self.client("run", "--fifo", self.pipe, "--after", "500ms", "--", "sleep", "60")
        self.assertEqual(code, 124)

    def test_run_ends_with_the_status_of_a_healthy_command(self):
        code = self.client("run", "--fifo", self.pipe, "--after", "20s", "--", "sh", "-c", "exit 7")
        self.assertEqual(code, 7)

    def test_acquire_watches_another_process(self):
        process = self.start("sleep", "60")
        self.assertEqual(0, self.client("acquire", "--fifo", self.pipe, "--scope", "copy",
                                        "--after", "500ms", "--pid", str(process.pid)))
        self.assert_killed(process)

    def test_release_ends_what_acquire_started(self):
        process = self.start("sleep", "60")
        where = ["--fifo", self.pipe, "--scope", "copy", "--pid", str(process.pid)]
        self.assertEqual(0, self.client("acquire", *where, "--after", "1s"))
        self.assertEqual(0, self.client("release", *where))
        self.assert_survives(process, 1)


if __name__ == "__main__":
    suite.main()
