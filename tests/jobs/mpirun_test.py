# SPDX-License-Identifier: MIT
"""Open MPI: ranks of mpirun with a server beside them, and with a server that they start."""
import os
import pathlib
import re
import shutil
import subprocess

import suite
from job_case import BIN, EXAMPLES, RANK, JobCase, wait_until
from records import records, wait_for_record

MPIRUN = ["mpirun", "-n", "4", "--oversubscribe"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpirun(JobCase):
    def mpirun(self, *words, **environment):
        """Returns its exit status."""
        started = self.start("mpirun", [*MPIRUN, *words], **AS_ROOT,
                             OMPI_MCA_orte_tmpdir_base=str(self.folder), **environment)
        return self.status_of(started)

    def check_worker(self, expired, rank):
        self.assertEqual((expired["rank"], expired["local_rank"]), (rank, rank))
        self.assertRegex(expired["job_id"], "^[0-9]+$")  # PMIX_NAMESPACE
        self.assertNotIn("step_id", expired)

    def test_each_rank_runs_under_timer_client(self):
        run = self.folder / "run"
        self.start("server", [BIN / "timer_server", "--dir", run])
        wait_until("the server is ready", lambda: "ready " in self.output("server"))
        status = self.mpirun(
            "timer_client", "run", "--timeout", "3", "--scope", "rank", "--",
            "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK; test $OMPI_COMM_WORLD_RANK -ne 2 || sleep 600",
            FILETIMER_DIR=str(run))
        self.assertEqual(status, 124, self.output("mpirun"))
        for rank in range(4):
            self.assertIn(f"rank {rank}\n", self.output("mpirun"))
        log = run / "expired.jsonl"
        self.assertEqual(wait_for_record(self, log, "killed")["verdict"], "dead")
        expired = self.only(records([log], "expired"))
        self.assertEqual(expired["scope"], "rank")
        self.check_worker(expired, 2)

    def run_with_a_server(self, *words):
        status = self.mpirun(EXAMPLES / "server_per_node", "--kill", "process", "--",
                             *RANK, self.folder, "--timeout", "4", *words)
        out = self.output("mpirun")
        log = self.only(list(self.folder.glob("filetimer-*.jsonl")))
        self.assertEqual(len(records([log], "server_started")), 1, out)
        # The same for all. Where mpirun ends the ranks it stays: SIGKILL follows SIGTERM at once.
        folders = sorted(set(re.findall(r"watched in (\S+-\w{6})", out)))
        self.assertEqual(len(folders), 1, f"mpirun exits with {status}: {out}")
        folder = pathlib.Path(folders[0])
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        # A verdict is in the kill file: mpirun may kill the server before it is in the log.
        expired = {each["id"]: each for each in records([*folder.glob("kills/*"), log], "expired")}
        return status, out, log, folder, list(expired.values())

    def test_the_first_rank_of_the_node_brings_the_server(self):
        status, out, log, folder, expired = self.run_with_a_server("--steps", "20")
        self.assertEqual(status, 0, out)
        for rank in range(4):
            # mpirun may forward the end of a line after another rank's line.
            self.assertIn(f"rank {rank} ends: done", out)
        self.assertEqual(expired, [])
        self.assertEqual(len(records([log], "server_stopped")), 1, out)
        self.assertFalse(folder.exists())

    def test_a_rank_that_hangs_is_killed_and_mpirun_ends_the_others(self):
        status, out, log, _, expired = self.run_with_a_server("--hang", "3:20")
        self.assertNotEqual(status, 0, out)
        expired = self.only(expired)
        self.check_worker(expired, 3)
        self.assertEqual(expired["scope"], "forward")
        self.assertIn([each["verdict"] for each in records([log], "killed")], ([], ["dead"]))

    def test_so_is_the_rank_that_brought_the_server(self):
        status, out, _, _, expired = self.run_with_a_server("--hang", "0:20")
        self.assertNotEqual(status, 0, out)
        self.check_worker(self.only(expired), 0)

    def test_ranks_follow_no_link_of_an_earlier_job(self):
        (self.folder / "filetimer").symlink_to("gone")  # left by a killed mpirun
        (self.folder / "filetimer-1").symlink_to("gone")
        started = []
        for rank in (1, 0):
            started.append(self.start(
                f"rank{rank}", [EXAMPLES / "server_per_node", "--", "sh", "-c", "echo in $FILETIMER_DIR."],
                OMPI_MCA_orte_jobfam_session_dir=str(self.folder), OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
                PMIX_NAMESPACE="7", HOSTNAME="of-another-host"))
        for rank in started:
            self.assertEqual(self.status_of(rank), 0, self.output("rank0"))
        folder = self.only(re.findall(r"in (\S+)\.", self.output("rank1")))
        self.assertIn(f"in {folder}.\n", self.output("rank0"))
        log = self.only(list(self.folder.glob("*.jsonl")))
        self.assertEqual(log.name, f"filetimer-7-{os.uname().nodename}.jsonl")

    def test_what_it_cannot_do_it_says(self):
        usage = "usage: mpirun ... server_per_node [SERVER OPTION...] -- PROGRAM [ARG...]\n"
        for words in ([], ["true"], ["--grace", "5s", "--"]):
            self.assertEqual(self.server_per_node(*words), (2, usage))
        status, said = self.server_per_node("--", "true")
        self.assertNotEqual(status, 0)
        self.assertIn("expected the mpirun of Open MPI 4", said)

    def server_per_node(self, *words):
        """Runs it outside of mpirun, and returns its exit status and its output."""
        done = subprocess.run([EXAMPLES / "server_per_node", *words], cwd=self.folder, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True)
        return done.returncode, done.stdout


if __name__ == "__main__":
    suite.main("" if shutil.which("mpirun") else "no mpirun here: Debian's openmpi-bin has it")
