# SPDX-License-Identifier: MIT
"""torchrun on two "hosts", two ranks on each, under a timer_server of its own: a rank that hangs in
step 20 of a real training is killed, and torchrun starts all ranks again from the checkpoint.
"""
import os
import re
import socket
import sys

import suite
from job_case import BIN, EXAMPLES, JobCase, free_port
from records import records

CLIENTS = "filetimer", "torch"  # of the ranks of each host
TIMEOUT_S = 10  # of a phase: what a healthy rank needs is milliseconds
HUNG_RANK = 3
HANG_STEP = 20
STEPS = 60
# Debian's torch 1.13 fails without -r 1 -t 1 (output into files, and shown).
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1", "--nnodes", "2",
            "--nproc_per_node", "2", "--max_restarts", "3", "--monitor_interval", "0.2",
            "--rdzv_backend", "c10d", "--rdzv_id", "digits"]


def missing():
    """Returns why torchrun cannot run here; empty: it can."""
    for name in ("localhost", socket.getfqdn()):  # where its hosts look for each other
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            return f"torchrun does not find {name}, as where there is no /etc/hosts: {error}"
    return ""


class Torchrun(JobCase):
    def start_host(self, host, port):
        return self.start(
            f"host{host}",
            [BIN / "timer_server", "--dir", self.folder / f"run{host}", "--", *TORCHRUN,
             "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_conf", f"is_host={1 - host}",
             "--log_dir", self.folder / f"output{host}", EXAMPLES / "digits_torch.py",
             "--client", CLIENTS[host], "--steps", STEPS, "--timeout", TIMEOUT_S,
             "--hang", f"{HUNG_RANK}:{HANG_STEP}", "--checkpoint", self.folder / "digits.pt"],
            GLOO_SOCKET_IFNAME="lo")

    def test_a_rank_that_hangs_is_killed_and_the_training_goes_on_from_its_checkpoint(self):
        port = free_port()
        hosts = [self.start_host(host, port) for host in range(2)]
        statuses = [self.status_of(host) for host in hosts]
        output = "".join(f"--- host {host}\n{self.output(f'host{host}')}" for host in range(2))
        self.assertEqual(statuses, [0, 0], output)
        self.assertNotIn("unwatched", output)

        # The rank that hung was killed, and no `exchange` of another rank had to expire.
        self.assertEqual(output.count(f"hangs in forward, step {HANG_STEP}"), 1, output)
        logs = [self.folder / f"run{host}" / "expired.jsonl" for host in range(2)]
        expired = self.only(records(logs, "expired"))
        self.assertEqual((expired["rank"], expired["local_rank"]), (HUNG_RANK, HUNG_RANK % 2))
        self.assertEqual((expired["scope"], expired["job_id"]), ("forward", "digits"))
        self.assertIn(f"rank {HUNG_RANK} (pid {expired['pid']}) hangs", output)
        killed = self.only(records(logs, "killed"))
        self.assertEqual((killed["id"], killed["verdict"]), (expired["id"], "dead"))

        # The second attempt resumed from the checkpoint and completed the training.
        self.assertIn(f"resumes after step {HANG_STEP - 10}\n", output)
        accuracy = re.search(r"accuracy ([0-9.]+) on", output)
        self.assertGreater(float(accuracy.group(1)), 0.8, output)
        for log in logs:
            self.assertEqual(self.only(records([log], "server_stopped"))["reason"],
                             "COMMAND ended")


if __name__ == "__main__":
    suite.main(missing())
