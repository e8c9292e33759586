# SPDX-License-Identifier: MIT
"""Slurm: the example job on two nodes, through a hang, a suspension and a signal; and servers that
run their ranks themselves.
"""
import os
import pathlib
import re
import tempfile
import time

import slurm_cluster
from job_case import BIN, EXAMPLES, RANK, JobCase, main, records, state_of, wait_until

TIMEOUT_S = 4       # of a phase: what a healthy rank needs is milliseconds
SUSPENDED_S = 10    # longer than every phase, `exchange` with its twice TIMEOUT_S too
RANKS = range(4)


class Slurm(JobCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="filetimer-slurm-", dir="/tmp")
        cls.addClassCleanup(home.cleanup)
        cls.cluster = slurm_cluster.Cluster(pathlib.Path(home.name))
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    def submit(self, name, *words, **environment):
        path = f"{BIN}:{EXAMPLES}:{os.environ['PATH']}"
        return self.cluster.submit("--chdir", self.folder, "--output", self.folder / f"{name}.out",
                                   *words, PATH=path, **environment)

    def submit_example(self, *words, options=()):
        """The example job on both nodes, two ranks on each."""
        return self.submit("job", "--nodes=2", "--ntasks-per-node=2", *options,
                           EXAMPLES / "slurm_job", *RANK, self.folder, "--timeout", TIMEOUT_S,
                           *words)

    def told(self):
        return f"{self.output('job')}\n{self.cluster.logs()}"

    def logs(self, job):
        return [self.folder / f"filetimer-{job}-{node}.jsonl" for node in slurm_cluster.NODES]

    def pids_of_ranks(self):
        """By rank, once all have started."""
        found = wait_until("all ranks start", lambda: (
            lambda pids: len(pids) == len(RANKS) and pids)(
                dict(re.findall(r"rank (\d+) \(pid (\d+)\) starts", self.output("job")))))
        return {int(rank): int(pid) for rank, pid in found.items()}

    def steps(self):
        """How far each rank of a first attempt is."""
        paths = [self.folder / f"attempt0-rank{rank}" for rank in RANKS]
        return [int(path.read_text()) if path.exists() else 0 for path in paths]

    def check_end(self, job, state="COMPLETED", restarts="0"):
        ended = self.cluster.wait_for_end(job)
        self.assertEqual((ended["JobState"], ended["Restarts"]), (state, restarts), self.told())

    def check_servers_ended_in_order(self, job):
        for log in self.logs(job):
            self.assertEqual(len(records([log], "server_stopped")),
                             len(records([log], "server_started")), self.told())
        for node in slurm_cluster.NODES:
            self.assertFalse(pathlib.Path(f"/dev/shm/filetimer-0-job-{job}-{node}").exists())

    def test_a_hang_is_killed_and_the_requeued_job_completes(self):
        job = self.submit_example("--steps", "40", "--hang", "3:20")
        self.check_end(job, restarts="1")
        expired = self.only(records(self.logs(job), "expired"))
        self.assertEqual((expired["rank"], expired["local_rank"], expired["scope"]),
                         (3, 1, "forward"))
        self.assertEqual(expired["job_id"], job)
        self.assertIn(expired["step_id"], ("0", "1"))  # the other one is the servers'
        log = self.only([log for log in self.logs(job) if records([log], "expired")])
        self.assertIn("-n2", log.name)
        self.assertEqual(self.only(records([log], "killed"))["verdict"], "dead")
        # Slurm may have ended the hook with the job that it put back.
        hook = self.only(records([log], "hook"))
        self.assertTrue(hook.get("exit_status") == 0 or hook["result"] == "signalled", hook)
        for rank in RANKS:
            self.assertRegex(self.output("job"), fr"rank {rank} \(pid \d+\) starts after step 15")
            self.assertIn(f"rank {rank} ends: done", self.output("job"))
        for log in self.logs(job):
            self.assertEqual(len(records([log], "server_started")), 2, self.told())  # each attempt
        self.check_servers_ended_in_order(job)

    def test_a_job_that_is_suspended_and_resumed_loses_nobody(self):
        job = self.submit_example()
        pids = self.pids_of_ranks()
        wait_until("all work", lambda: min(self.steps()) > 5)
        self.cluster.ask("scontrol", "suspend", job)
        wait_until("all ranks are stopped",
                   lambda: {state_of(pid) for pid in pids.values()} == {"T"})
        time.sleep(SUSPENDED_S)
        self.assertEqual({state_of(pid) for pid in pids.values()}, {"T"})
        before = max(self.steps())
        self.cluster.ask("scontrol", "resume", job)
        wait_until("all work again", lambda: min(self.steps()) > before + 5)
        (self.folder / "stop").touch()
        self.check_end(job)
        self.assertEqual(records(self.logs(job), "expired"), [])
        self.assertNotEqual(records(self.logs(job), "deferred"), [], self.told())
        self.check_servers_ended_in_order(job)

    def test_the_signal_before_the_end_of_the_time_reaches_the_ranks_and_no_server(self):
        # 15 s after the job began, or up to 30 s later: that often Slurm looks.
        job = self.submit_example(options=["--time=1", "--signal=USR1@45"])
        self.check_end(job)
        for rank in RANKS:
            self.assertIn(f"rank {rank} ends: SIGUSR1", self.output("job"))
        for log in self.logs(job):
            stopped = self.only(records([log], "server_stopped"))
            self.assertIn("shutdown", stopped["reason"])
        self.check_servers_ended_in_order(job)

    def test_two_jobs_on_one_node_with_a_runtime_folder_that_is_gone_do_not_meet(self):
        jobs = {}
        for name in ("one", "other"):
            shared = self.folder / name
            shared.mkdir()
            ranks = " ".join(map(str, [*RANK, shared, "--timeout", TIMEOUT_S]))
            jobs[name] = self.submit(
                name, "--nodes=1", "--ntasks=1", "--nodelist=n1",
                "--wrap", f"srun timer_server --log {name}.jsonl -- {ranks}",
                XDG_RUNTIME_DIR="/run/user/of-another-host")
        folders = {}
        for name in jobs:
            found = wait_until(f"job {name} starts", lambda: re.search(
                "watched in (.*)", self.output(name)))
            folders[name] = pathlib.Path(found.group(1))
        self.assertEqual(len(set(folders.values())), 2, folders)
        for name, folder in folders.items():
            self.assertTrue(folder.is_dir())
            (self.folder / name / "stop").touch()
        for name, job in jobs.items():
            self.check_end(job)
            log = self.folder / f"{name}.jsonl"
            self.assertEqual(self.only(records([log], "server_started"))["dir"],
                             str(folders[name]))
            self.assertEqual(self.only(records([log], "server_stopped"))["reason"],
                             "COMMAND ended")
            self.assertEqual(records([log], "left_open"), [])
            self.assertFalse(folders[name].exists())


if __name__ == "__main__":
    main(slurm_cluster.missing())
