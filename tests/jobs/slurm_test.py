# SPDX-License-Identifier: MIT
"""Slurm: the example job on two nodes, with a hang, a suspension, a signal, and servers that die or
do not start; and servers that run their ranks themselves.
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import slurm_cluster
import suite
from job_case import BIN, EXAMPLES, RANK, JobCase, state_of, wait_until
from records import records

TIMEOUT_S = 4       # of a phase: what a healthy rank needs is milliseconds
# Longer than every phase, `exchange` with its twice TIMEOUT_S too, and than the server's
# --max-interval (10 s) by more than the second that it may be late.
SUSPENDED_S = 12
RANKS = range(4)


class Slurm(JobCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="filetimer-slurm-", dir="/tmp")
        cls.addClassCleanup(home.cleanup)
        cls.cluster = slurm_cluster.Cluster(pathlib.Path(home.name))
        cls.addClassCleanup(cls.cluster.stop)
        try:
            cls.cluster.start()
        except slurm_cluster.Unusable as why:
            raise unittest.SkipTest(f"Slurm does not work here: {why}")

    def submit(self, name, *words, path=f"{BIN}:{EXAMPLES}:{os.environ['PATH']}", **environment):
        return self.cluster.submit("--chdir", self.folder, "--output", self.folder / f"{name}.out",
                                   *words, PATH=path, **environment)

    def submit_script(self, *command, options=(), name="job", **environment):
        """The example job on both nodes, two ranks on each."""
        return self.submit(name, "--nodes=2", "--ntasks-per-node=2", *options,
                           EXAMPLES / "slurm_job", *command, **environment)

    def submit_example(self, *words, timeout=TIMEOUT_S, **options):
        return self.submit_script(*RANK, self.folder, "--timeout", timeout, *words, **options)

    def log_text(self):
        outputs = [f"--- {path.name}\n{path.read_text(errors='replace')}"
                   for path in sorted(self.folder.glob("*.out"))]
        return "\n".join([*outputs, self.cluster.logs()])

    def logs(self, job):
        return [self.folder / f"filetimer-{job}-{node}.jsonl" for node in slurm_cluster.NODES]

    def pids_of_ranks(self):
        """By rank, once all have started."""
        found = wait_until("all ranks start", lambda: (
            lambda pids: len(pids) == len(RANKS) and pids)(
                dict(re.findall(r"rank (\d+) \(pid (\d+)\) starts", self.output("job")))))
        return {int(rank): int(pid) for rank, pid in found.items()}

    def steps(self):
        """Returns the last step of each rank of a first attempt."""
        paths = [self.folder / f"attempt0-rank{rank}" for rank in RANKS]
        return [int(path.read_text()) if path.exists() else 0 for path in paths]

    def check_end(self, job, state="COMPLETED", restarts="0"):
        ended = self.cluster.wait_for_end(job)
        self.assertEqual((ended["JobState"], ended["Restarts"]), (state, restarts), self.log_text())

    def run_folders(self, job):
        return [pathlib.Path(f"/dev/shm/filetimer-0-job-{job}-{node}")
                for node in slurm_cluster.NODES]

    def check_servers_ended_in_order(self, job, killed=0):
        for log in self.logs(job):
            self.assertEqual(len(records([log], "server_stopped")),
                             len(records([log], "server_started")) - killed, self.log_text())
        for folder in self.run_folders(job):
            self.assertFalse(folder.exists())

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
        # Slurm may have ended the hook with the requeued job.
        hook = self.only(records([log], "hook"))
        self.assertTrue(hook.get("exit_status") == 0 or hook["result"] == "signalled", hook)
        for rank in RANKS:
            self.assertRegex(self.output("job"), fr"rank {rank} \(pid \d+\) starts after step 15")
            self.assertIn(f"rank {rank} ends: done", self.output("job"))
        for log in self.logs(job):
            self.assertEqual(len(records([log], "server_started")), 2, self.log_text())  # each attempt
        self.check_servers_ended_in_order(job)

    def test_a_job_that_is_suspended_and_resumed_loses_nobody(self):
        job = self.submit_example("--whole", "600")
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
        for log in self.logs(job):
            self.assertNotEqual(records([log], "deferred"), [], self.log_text())
        self.check_servers_ended_in_order(job)

    def test_the_signal_before_the_end_of_the_time_is_asked_for_and_reaches_no_server(self):
        # SIGUSR1 would end sh. With the other job's margin it would be due at once.
        work = 'echo "rank $SLURM_PROCID works"; until [ -e "$0/stop" ]; do sleep 0.1; done'
        deaf = self.submit_script("sh", "-c", work, self.folder, options=["--time=1"], name="deaf")
        wait_until("its ranks work", lambda: self.output("deaf").count("works") == len(RANKS))
        # Due once the ranks can take it: a time limit of two minutes puts it 15 s after the start
        # of the job. Slurm looks every 30 s, at all jobs. Their own time is up long after that.
        job = self.submit_example(options=["--time=60", "--signal=USR1@105"])
        wait_until("all work", lambda: min(self.steps()) > 1)
        self.cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=2")
        wait_until("all ranks got SIGUSR1", lambda: self.output("job").count("ends: SIGUSR1") == 4)
        (self.folder / "stop").touch()
        self.check_end(job)
        for rank in RANKS:
            self.assertIn(f"rank {rank} ends: SIGUSR1", self.output("job"))
        for log in self.logs(job):
            stopped = self.only(records([log], "server_stopped"))
            self.assertIn("shutdown", stopped["reason"])
        self.check_servers_ended_in_order(job)
        self.check_end(deaf)

    def test_an_interrupt_that_the_ranks_handle_stops_no_server(self):
        work = 'trap "echo interrupted" INT; echo works; until [ -e "$0/stop" ]; do sleep 0.1; done'
        job = self.submit_script("sh", "-c", work, self.folder)
        for done, then in (("works", ("scancel", "--signal=INT", job)), ("interrupted", ("true",))):
            wait_until(f"all ranks say {done}", lambda: self.output("job").count(done) == len(RANKS))
            self.cluster.ask(*then)
        (self.folder / "stop").touch()
        self.check_end(job)
        for log in self.logs(job):
            self.assertIn("shutdown", self.only(records([log], "server_stopped"))["reason"])

    def test_after_servers_that_were_killed_the_next_ones_watch_what_is_open(self):
        job = self.submit_example("--hang", "3:20", timeout=8, MAX_REQUEUES="0")
        wait_until("rank 3 is about to hang, the others wait for it",
                   lambda: self.steps() == [20, 20, 20, 19])
        for log in self.logs(job):
            server = self.only(records([log], "server_started"))
            lists = [BIN / "timer_client", "list", "--json", "--dir", server["dir"]]
            wait_until("both ranks are in a scope", lambda: subprocess.check_output(lists).count(b"\n") == 2)
            os.kill(server["server_pid"], signal.SIGKILL)
        # The job is not requeued. The other ranks end with this one, long before they would expire.
        self.check_end(job, state="FAILED")
        for log in self.logs(job):
            _, second = records([log], "server_started")
            self.assertEqual(second["adopted_scopes"], 2, self.log_text())
        expired = self.only(records(self.logs(job), "expired"))
        self.assertEqual((expired["rank"], expired["scope"]), (3, "forward"))
        self.assertEqual(self.only(records(self.logs(job), "killed"))["verdict"], "dead")
        hook = self.only(records(self.logs(job), "hook"))
        self.assertEqual(hook["exit_status"], 0)
        self.assertIn(f"job {job} was requeued 0 times already: not requeued again",
                      self.output("job"))
        for node in slurm_cluster.NODES:
            self.assertIn(f"timer_server on {node} was killed (status 137)", self.output("job"))
        self.check_servers_ended_in_order(job, killed=1)

    def test_a_job_with_servers_that_do_not_come_ends(self):
        late = self.folder / "late"
        late.mkdir()
        (late / "timer_server").write_text(
            f'#!/bin/sh\ncase $LATE in *$SLURMD_NODENAME*) exec sleep 600 ;; esac\n'
            f'exec {shlex.quote(str(BIN))}/timer_server "$@"\n')
        (late / "timer_server").chmod(0o755)
        jobs = {name: self.submit_script("sleep", "600", name=name, LATE=nodes,
                                         path=f"{late}:{BIN}:{EXAMPLES}:{os.environ['PATH']}")
                for name, nodes in (("both", "n1 n2"), ("one", "n2"))}
        for name, job in jobs.items():
            for folder in self.run_folders(job):  # a server that is killed leaves it
                self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            self.check_end(job, state="FAILED")
            # If both nodes lack a server, the failure of the first ends the other.
            lacking = "n[12]" if name == "both" else "n2"
            self.assertRegex(self.output(name), f"no timer_server on {lacking} within 30 s")

    def test_of_an_array_the_task_that_hangs_is_requeued_alone(self):
        # The task with the id of the whole array.
        script = f"""
            hang=
            [ "$SLURM_JOB_ID" = "$SLURM_ARRAY_JOB_ID" ] && hang='--hang 0:8'
            mkdir -p "$SLURM_ARRAY_TASK_ID"
            srun timer_server --log "$SLURM_ARRAY_TASK_ID.jsonl" --on-expiry requeue_slurm_job -- \
              {shlex.join(map(str, RANK))} "$SLURM_ARRAY_TASK_ID" --timeout {TIMEOUT_S} $hang"""
        array = self.submit("%a", "--array=0-2", "--requeue", "--wrap", script)

        def tasks():
            return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in
                    self.cluster.ask("scontrol", "show", "job", "-o", array).splitlines()]

        wait_until("all tasks run",
                   lambda: [task.get("JobState") for task in tasks()] == ["RUNNING"] * 3)
        wait_until("one is requeued", lambda: any(task["Restarts"] != "0" for task in tasks()))
        states = {task["JobId"]: (task["Restarts"], task["JobState"]) for task in tasks()}
        self.assertEqual(states.pop(array)[0], "1", self.log_text())
        self.assertEqual(list(states.values()), [("0", "RUNNING")] * 2, self.log_text())
        for task in range(3):
            (self.folder / str(task) / "stop").touch()
        for job in states:
            self.check_end(job)

    def test_the_line_of_the_documents_runs_one_server_on_each_node(self):
        root = EXAMPLES.parents[1]
        [line] = re.findall(r"^srun (?:.*\\\n)?.* -- torchrun \.\.\.$",
                            (root / "docs/jobs.md").read_text(), re.MULTILINE)
        self.assertIn(line, (root / "README.md").read_text())
        self.assertIn(line.partition(" \\\n")[0], (root / "docs/install.md").read_text())
        self.assertIn(re.sub("^", "#   ", line, flags=re.MULTILINE),
                      (EXAMPLES / "requeue_slurm_job").read_text())
        job = self.submit("job", "--nodes=2", "--ntasks-per-node=2", "--wrap",
                          line.replace("torchrun ...", "sh -c 'echo runs on $SLURMD_NODENAME'"))
        self.check_end(job)
        self.assertEqual(sorted(re.findall(r"runs on (\w+)", self.output("job"))),
                         list(slurm_cluster.NODES), self.log_text())

    def test_two_jobs_on_one_node_with_a_runtime_folder_that_is_gone_do_not_meet(self):
        jobs = {}
        for name in ("one", "other"):
            shared = self.folder / name
            shared.mkdir()
            ranks = shlex.join(map(str, [*RANK, shared, "--timeout", TIMEOUT_S]))
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
    suite.main(slurm_cluster.missing())
