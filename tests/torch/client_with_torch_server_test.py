#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""timer_client with PyTorch's unmodified FileTimerServer.

The server runs in this process and kills workers. A worker that must survive is compared with one
that must not and has a later deadline: when that one is dead, the server has judged the first.
"""
import os
import signal
import subprocess
import unittest

from torch.distributed.elastic.timer import FileTimerServer

import suite
from suite import BOUND_S, end

CLIENT = os.environ["FILETIMER_CLIENT"]


class ClientWithTorchServer(unittest.TestCase):
    def setUp(self):
        self.folder = suite.folder_of(self, "torch")
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

    def client(self, *words):
        return subprocess.run([CLIENT, *words], timeout=BOUND_S).returncode

    def say(self, command, process, scope, *more):
        self.assertEqual(0, self.client(command, "--fifo", self.pipe, "--scope", scope,
                                        "--pid", str(process.pid), *more))

    def worker(self, scope, after):
        process = subprocess.Popen(["sleep", "60"])
        self.addCleanup(end, process)
        self.say("acquire", process, scope, "--timeout", after)
        return process

    def assert_killed(self, process):
        self.assertEqual(process.wait(timeout=BOUND_S), -signal.SIGKILL)

    def test_acquire_watches_another_process(self):
        self.assert_killed(self.worker("copy", "500ms"))

    def test_release_ends_what_acquire_started(self):
        process = self.worker("copy", "2s")
        self.say("acquire", process, "copy", "--timeout", "2s")  # renews it
        self.say("release", process, "copy")
        self.assert_killed(self.worker("hung", "2500ms"))
        self.assertIsNone(process.poll())

    def test_an_inner_scope_does_not_disarm_the_outer(self):
        process = self.worker("step", "1s")
        self.say("acquire", process, "inner", "--timeout", "1s")
        self.say("release", process, "inner")
        self.assert_killed(process)

    def test_run_exits_with_124_if_command_hangs(self):
        code = self.client("run", "--fifo", self.pipe, "--timeout", "500ms", "--", "sleep", "60")
        self.assertEqual(code, 124)

    def test_run_ends_with_the_status_of_a_healthy_command(self):
        code = self.client("run", "--fifo", self.pipe, "--timeout", "20s", "--", "sh", "-c", "exit 7")
        self.assertEqual(code, 7)


if __name__ == "__main__":
    suite.main()
