# SPDX-License-Identifier: MIT
"""Restarts of a server that was killed: the next server continues its kills."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import filetimer
import suite
from harness import CLIENT, SERVER, SIGNALS_WAIT, ServerCase, with_slow
from records import records


class Restarts(ServerCase):
    def start_next(self):
        self.server.close()
        self.server = filetimer.Server(dir=self.dir)
        self.addCleanup(self.server.close)

    def start_signalled_worker(self):
        """Returns a worker whose kill waits for the end of its child, and the child's pid."""
        worker = self.start_worker("""
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))
            with filetimer.expires(60, "epoch"), filetimer.expires(0.3, signal=signal.SIGCONT, grace=60):
                time.sleep(60)
            """)
        child = int(worker.stdout.readline())
        self.wait_for_stage("signalled")
        return worker, child

    def test_a_record_does_not_continue_the_half_line_of_another_server_that_was_killed(self):
        log = os.path.join(self.folder, "shared")  # no rule allows half a line without a killed server
        server = filetimer.Server("--log", log, dir=os.path.join(self.folder, "other"))
        self.addCleanup(server.close)
        suite.wait_until(lambda: records([log], "server_started"))
        with open(log, "a") as file:
            file.write('{"schema":1,"event":"exp')
        server.close()
        self.assertEqual(len(records([log], "server_stopped")), 1)

    def test_the_next_server_kills_in_a_scope_that_has_the_name_of_idle_timeouts(self):
        self.server.close()
        self.server = filetimer.Server("--evidence-command", "sleep 300", dir=self.dir)  # the signal waits for it
        worker = self.start_worker("""
            with filetimer.expires(0.3, "(idle)"):
                time.sleep(60)
            """)
        self.wait_for_stage("recorded")
        os.kill(self.server.pid, signal.SIGKILL)
        self.start_next()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "dead")

    def start_in_new_directory(self):
        self.server.close()
        shutil.rmtree(self.dir)
        self.start_next()

    def test_a_thread_that_has_ended_in_a_pause_keeps_its_process_in_no_removed_directory(self):
        self.configure()
        pause = filetimer.paused("pause")
        thread = threading.Thread(target=pause.__enter__)
        thread.start()
        thread.join()
        self.start_in_new_directory()

        def is_watched():
            with filetimer.expires(60, "step"):
                return self.open_scopes() == ["step"]
        suite.wait_until(is_watched)

    def test_a_thread_in_regions_of_two_clients_leaves_the_last_one_though_they_began_on_two_pages(self):
        late = pathlib.Path(self.folder, "late")
        late.touch()
        outer = filetimer.Client(late)  # which has no page until the file is gone
        self.addCleanup(outer.close)

        def has_moved():
            with outer.expires(60, "look") as scope:
                return scope.is_open
        with outer.paused("outer"):
            late.unlink()
            inner = filetimer.Client(late)
            self.addCleanup(inner.close)
            with inner.paused("inner"):
                suite.wait_until(has_moved)
            with inner.expires(60, "step") as scope:
                self.assertTrue(scope.times().paused)
        with inner.expires(60, "step") as scope:
            self.assertFalse(scope.times().paused)

    def test_the_timeouts_of_a_heartbeat_and_of_the_last_client_count_in_a_new_directory(self):
        for name, minutes in ("early", 5), ("late", 10):
            pathlib.Path(self.folder, name).write_text(f'queue = "5m"\nstep = "{minutes}m"\n', encoding="utf-8")
        self.configure(timeouts=os.path.join(self.folder, "early"))
        self.start_in_new_directory()
        self.addCleanup(filetimer.Client(self.dir, timeouts=os.path.join(self.folder, "late")).close)

        def has_moved():
            with filetimer.heartbeat(60, "queue", first_timeout=3600) as heart:
                self.assertEqual(heart.times().timeout, 3600)
                return self.open_scopes() == ["queue"]
        suite.wait_until(has_moved)
        with filetimer.expires(60, "step") as step:
            self.assertEqual(step.times().timeout, 600)

    def test_a_server_that_was_killed_while_it_started_leaves_nothing_in_the_way(self):
        self.server.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            left.bind(self.dir + "/control.new")
        self.start_next()
        self.client("ping")

    def test_the_pipe_of_a_killed_server_gives_way_to_a_link_to_a_pipe_elsewhere(self):
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        elsewhere = os.path.join(self.folder, "pipe")
        self.server = filetimer.Server("--fifo", elsewhere, dir=self.dir)
        self.addCleanup(self.server.close)
        self.assertEqual(os.readlink(self.dir + "/requests"), elsewhere)

    def test_the_terms_of_an_earlier_server_do_not_count(self):
        self.server.close()
        self.server = filetimer.Server("--max-timeout", "1m", "--default-timeout", "30s", dir=self.dir)
        client = self.configure()
        for granted_s in 60, 3600:
            with filetimer.expires(3600):
                self.assertEqual([each["granted_s"] for each in self.listed_scopes()], [granted_s])
            self.start_next()
        with self.assertRaisesRegex(ValueError, "--default-timeout"):
            client.start()

    def test_a_release_waits_for_the_next_server(self):
        worker = self.start_worker("sys.stdin.read()")
        self.client("acquire", "--scope", "copy", "--timeout", "10", "--pid", str(worker.pid))
        suite.wait_until(lambda: self.open_scopes(worker.pid) == ["copy"])
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        release = subprocess.Popen([CLIENT, "release", "--scope", "copy", "--pid", str(worker.pid), "--dir", self.dir])
        time.sleep(1)  # longer than a request waits that loses nothing
        self.start_next()
        self.assertEqual(release.wait(suite.BOUND_S), 0)
        suite.wait_until(lambda: self.open_scopes(worker.pid) == [])

    def test_the_next_server_tells_of_workers_that_ended_while_none_ran(self):
        killed = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(1, signal=signal.SIGTERM, grace=60):
                time.sleep(60)
            """, RANK="3", LOCAL_RANK="1", JOB_ID="77", SLURM_STEP_ID="5")
        left = self.start_worker("""
            with filetimer.expires(60):
                say("in")
                time.sleep(60)
            """, PMIX_RANK="5", MPI_LOCALRANKID="2", LSB_JOBID="8812")
        left.stdout.readline()
        comm = pathlib.Path(f"/proc/{left.pid}/comm").read_text().strip()
        self.wait_for_stage("signalled")
        os.kill(self.server.pid, signal.SIGKILL)
        for worker in killed, left:
            worker.kill()
            worker.wait()
        self.start_next()
        record = self.record("killed", killed.pid)
        self.assertEqual([record[field] for field in ("verdict", "reason", "rank", "local_rank", "job_id")],
                         ["dead", "the worker ended while no server was running", 3, 1, "77"])
        expired = self.records("expired", killed.pid)[0]
        self.assertEqual(expired["step_id"], "5")
        for field in ("uid", "comm", "cmdline", "step_id", "incident"):
            self.assertEqual(record[field], expired[field])
        record = self.record("left_open", left.pid)
        self.assertEqual([record[field] for field in ("rank", "local_rank", "job_id", "comm", "uid")],
                         [5, 2, "8812", comm, os.geteuid()])
        self.assertEqual([each["ended_scopes"] for each in self.records("server_started")], [0, 1])

    def test_the_next_server_finds_a_scope_of_the_pipe_whose_file_was_removed(self):
        self.server.close()
        self.server = filetimer.Server("--max-interval", "20ms", dir=self.dir)
        worker = self.start_worker("sys.stdin.read()")
        self.client("acquire", "--scope", "copy", "--timeout", "1h", "--pid", str(worker.pid))
        page = pathlib.Path(self.dir, "scopes/server", str(worker.pid))
        suite.wait_until(page.exists)
        page.unlink()
        suite.wait_until(page.exists)
        os.kill(self.server.pid, signal.SIGKILL)
        self.start_next()
        self.assertEqual(self.open_scopes(worker.pid), ["copy"])

    def test_a_worker_that_has_read_its_own_page_is_watched_by_the_next_server(self):
        self.server.close()
        worker = self.start_worker("""
            import glob
            filetimer.configure()
            for page in glob.glob(os.environ["FILETIMER_DIR"] + "/scopes/*-*"):
                open(page).close()  # the kernel drops the lock of the page
            with filetimer.expires(1):
                say("inside")
                time.sleep(60)
            """)
        worker.stdout.readline()
        self.start_next()
        self.assertEqual(worker.wait(suite.BOUND_S), -signal.SIGKILL)

    def test_the_next_server_names_the_scopes_that_ended_with_the_worker(self):
        worker, left = self.start_signalled_worker()
        [page] = pathlib.Path(self.dir, "scopes").glob(f"{worker.pid}-*")
        copy = shutil.copy(page, self.folder)
        worker.kill()
        worker.wait()
        self.wait_for_stage("cancelled")
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        os.rename(copy, page)  # as if the server had been killed before it removed the page
        self.start_next()
        os.kill(left, signal.SIGKILL)
        record = self.record("killed", worker.pid)
        self.assertEqual((record["verdict"], record["cancelled"]), ("dead", ["epoch"]))

    def test_the_scopes_of_a_worker_that_dies_while_the_server_looks_end_with_it(self):
        worker, child = self.start_signalled_worker()
        self.slow_server("poll", "delay_exit", 400_000)
        os.kill(child, signal.SIGKILL)
        time.sleep(0.2)  # the server has found the worker alive, and has not looked at the child yet
        worker.kill()
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["epoch"])

    def test_the_next_server_kills_an_idle_worker_that_has_a_scope_of_the_pipe_too(self):
        self.server.close()
        self.server = filetimer.Server("--evidence-command", "sleep 300", dir=self.dir)  # the signal waits for it
        self.start_worker("""
            filetimer.configure(idle_timeout=1)
            with filetimer.expires(60):
                pass
            time.sleep(60)
            """, prefix=(CLIENT, "run", "--"))
        self.wait_for_stage("recorded")
        os.kill(self.server.pid, signal.SIGKILL)
        self.start_next()
        self.assertEqual(self.record("killed")["verdict"], "dead")

    def test_the_server_after_the_next_names_the_scopes_that_ended_with_the_worker(self):
        worker, left = self.start_signalled_worker()
        for _ in range(2):
            os.kill(self.server.pid, signal.SIGKILL)
            suite.end(worker)
            self.start_next()
        os.kill(left, signal.SIGKILL)
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["epoch"])

    def test_the_server_after_one_that_was_killed_at_its_start_names_them_too(self):
        worker, left = self.start_signalled_worker()
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        suite.end(worker)
        [page] = pathlib.Path(self.dir, "scopes").glob(f"{worker.pid}-*")
        words = with_slow("unlink", "signal", "KILL") + ("-P", str(page.parent / ".owners" / page.name))
        self.assertEqual(subprocess.run([*words, SERVER, "--dir", self.dir]).returncode, -signal.SIGKILL)
        self.assertFalse(page.exists())
        self.start_next()
        os.kill(left, signal.SIGKILL)
        self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["epoch"])

    def test_a_kill_that_a_dry_run_has_begun_ends_what_the_worker_has_left(self):
        self.server.close()
        self.server = filetimer.Server("--dry-run", "--evidence-command", "sleep 300", dir=self.dir)
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with filetimer.expires(0.3, signal=signal.SIGTERM, grace=5): time.sleep(60)
            """)
        left = int(worker.stdout.readline())
        for stage in "judged", "signalled":
            self.wait_for_stage(stage)
            os.kill(self.server.pid, signal.SIGKILL)
            self.start_next()
        suite.wait_until(lambda: suite.state_of(left) in ("", "Z"), "it lives on")
        self.assertEqual(len(self.record("killed", worker.pid)["signals"]), 2)

    def test_the_next_server_kills_no_process_that_has_the_pid_of_a_target(self):
        worker = self.start_worker("""
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))
            with filetimer.expires(0.3, signal=signal.SIGCONT, grace=5): time.sleep(60)
            """)
        other = int(worker.stdout.readline())
        self.addCleanup(os.kill, other, signal.SIGKILL)
        self.wait_for_stage("signalled")
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        suite.end(worker)
        [kill] = pathlib.Path(self.dir, "kills").iterdir()
        # As if the target had ended, and another process had got its pid.
        kill.write_text(re.sub(r'("starts":\[\d+),\d+]', r"\1,1]", kill.read_text()))
        self.start_next()
        self.assertEqual(len(self.record("killed", worker.pid)["signals"]), 1)
        self.assertEqual(suite.state_of(other), "S")

    def test_a_worker_that_was_stopped_for_a_signal_and_has_left_its_scope_runs_again(self):
        self.server.close()
        self.server = filetimer.Server(*SIGNALS_WAIT, dir=self.dir)
        worker = self.start_worker("""
            scope = filetimer.Scope(0.3)
            scope.acquire()
            sys.stdin.readline()
            scope.release()
            say("left")
            sys.stdin.read()
            """)
        self.wait_for_stage("recorded")
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.stdout.readline(), "left\n")
        self.client("ping")
        self.wait_for_stage("released")
        os.kill(self.server.pid, signal.SIGKILL)
        # A server that looks for a release once more, just before the signal, has stopped the worker by then.
        os.kill(worker.pid, signal.SIGSTOP)
        self.start_next()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "spared")
        suite.wait_until(lambda: suite.state_of(worker.pid) == "S", "it stays stopped")

    def test_a_scope_that_a_kill_has_cancelled_is_not_watched_when_the_server_died_right_after_it(self):
        for lives in True, False:
            with self.subTest(lives=lives):
                self.server.close()
                self.server = filetimer.Server("--kill-wait", "1s", dir=self.dir)
                worker = self.start_worker("signal.signal(signal.SIGTERM, signal.SIG_IGN), say(), time.sleep(60)")
                worker.stdout.readline()
                line = {"version": 1, "pid": worker.pid, "signal": int(signal.SIGTERM)}
                lines = ({**line, "scope_id": "far", "expiration_time": time.time() + 3600},
                         {**line, "scope_id": "job", "expiration_time": time.time() + 3600, "x_whole_process": True},
                         {**line, "scope_id": "due", "expiration_time": time.time()})
                pathlib.Path(self.server.fifo).write_text("".join(json.dumps(each) + "\n" for each in lines))
                self.wait_for_stage("signalled")
                page = pathlib.Path(self.dir, "scopes/server", str(worker.pid))
                before_its_end = page.read_bytes()
                [kill] = pathlib.Path(self.dir, "kills").iterdir()
                os.link(kill, self.folder + "/kill")
                self.assertEqual(self.record("killed", worker.pid)["cancelled"], ["far"])
                self.client("ping")
                os.kill(self.server.pid, signal.SIGKILL)
                self.server.close()
                # As if the server had been killed when the end of the kill was in its file alone.
                page.write_bytes(before_its_end)
                os.replace(self.folder + "/kill", kill)
                if not lives:
                    suite.end(worker)
                self.start_next()
                left = ["job"] * lives  # a scope of the whole process goes on, and ends with it
                # Its first iteration saves the page.
                suite.wait_until(lambda pid=worker.pid, left=left: self.open_scopes(pid) == left)
                self.client("ping")
                self.assertEqual(self.open_scopes(worker.pid), left)
                self.assertEqual(self.records("left_open", worker.pid), [])

    def test_a_scope_of_the_pipe_from_before_a_reboot_is_left_open(self):
        worker = self.start_worker("time.sleep(60)")
        self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", str(worker.pid))
        self.client("ping")
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        with open(f"{self.dir}/scopes/server/{worker.pid}", "r+b") as page:
            page.seek(16)
            page.write(bytes(16))  # the id of another boot
        self.start_next()
        self.assertEqual(self.record("left_open", worker.pid)["reason"], "the machine was restarted")
        self.assertEqual(self.open_scopes(worker.pid), [])

    def kill_file_of(self, worker, last):
        """Returns the file of a kill that was as far as this stage when the server was killed: two scopes of the worker
        have expired together, and it has left one of them before the signal.
        """
        self.server.close()
        self.server = filetimer.Server(*SIGNALS_WAIT, dir=self.dir)
        time.sleep(0.2)
        line = {"version": 1, "pid": worker.pid, "expiration_time": time.time() - 0.1}  # after its start
        lines = ({**line, "scope_id": "left", "signal": 15, "x_grace_s": 0.1},
                 {**line, "scope_id": "open", "signal": int(signal.SIGWINCH), "x_grace_s": -1})  # which ends no process
        with open(self.server.fifo, "w") as pipe:
            print(*map(json.dumps, lines), sep="\n", file=pipe, flush=True)
            self.wait_for_stage("evidence")
            [kill] = pathlib.Path(self.dir, "kills").iterdir()
            suite.wait_until(lambda: kill.read_text().endswith('"evidence"}\n{"stage":"recorded"}\n'))
            print(json.dumps({**line, "scope_id": "left", "signal": 0, "expiration_time": -1}), file=pipe, flush=True)
            self.wait_for_stage("released")
        suite.wait_until(lambda: kill.read_text().endswith('{"stage":"recorded"}\n'))
        self.client("ping")
        self.assertLessEqual(kill.read_text().count('{"stage":"recorded"}'), 3)  # each was noted once
        go = pathlib.Path(self.dir, "go")
        go.touch()
        self.wait_for_stage("signalled")
        os.kill(self.server.pid, signal.SIGKILL)
        go.unlink()
        self.server.close()
        kill.write_text(re.sub(f'(?s)({{"stage":"{last}".*?\n).*', r"\1", kill.read_text()))
        return kill

    def test_the_next_server_signals_for_no_scope_that_was_left_and_has_what_the_log_lacks(self):
        for last, event in ("evidence", "evidence"), ("released", "released_late"), ("signalled", "expired"):
            with self.subTest(last):
                worker = subprocess.Popen(["sleep", "60"])
                self.addCleanup(suite.end, worker)
                kill, log = self.kill_file_of(worker, last), pathlib.Path(self.server.log)
                if last != "signalled":
                    log.write_text(re.sub(f'.*"event":"{event}".*\n', "", log.read_text()))
                self.start_next()
                suite.wait_until(lambda: "signalled" in kill.read_text())
                self.server.close()  # which waits no longer for the end of the worker
                self.assertIn(self.records(event, worker.pid)[0]["id"], kill.name)
                self.assertEqual([each["signal"] for each in self.records("killed", worker.pid)[0]["signals"]],
                                 [signal.SIGWINCH])
                self.assertEqual(len(set(map(json.dumps, self.records("evidence", worker.pid)))), 1)

    def test_the_next_server_goes_on_with_the_oldest_kill_first(self):
        workers = [subprocess.Popen(["sleep", "60"]) for _ in range(8)]
        self.server.close()
        self.server = filetimer.Server(*SIGNALS_WAIT, dir=self.dir)
        time.sleep(0.2)
        line = {"version": 1, "scope_id": "x", "signal": 9, "expiration_time": time.time() - 0.1}  # after their start
        for each in workers:
            self.addCleanup(suite.end, each)
            pathlib.Path(self.server.fifo).write_text(json.dumps({**line, "pid": each.pid}) + "\n")
            self.client("ping")
        suite.wait_until(lambda: len(os.listdir(self.dir + "/kills")) == len(workers))
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        server = subprocess.Popen([SERVER, "--dir", self.dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True)
        self.addCleanup(suite.end, server)
        for each in workers:
            each.wait(timeout=suite.BOUND_S)
        server.terminate()
        said = server.communicate(timeout=suite.BOUND_S)[1]
        continued = re.findall(r"pid (\d+) was to be killed by a server that has ended", said)
        self.assertEqual(continued, [str(each.pid) for each in workers])

    def test_the_next_server_names_the_rank_of_a_worker_that_the_one_before_had_not_read(self):
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(0.3, signal=signal.SIGTERM, grace=1):
                time.sleep(60)
            """, RANK="3", SLURM_JOB_ID="77")
        self.wait_for_stage("signalled")
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()
        [kill] = pathlib.Path(self.dir, "kills").iterdir()
        for path in kill, pathlib.Path(self.server.log):
            path.write_text(re.sub(r'"(cmdline|rank|job_id)":.*?,(?=")', "", path.read_text()))
        self.start_next()
        killed = self.record("killed", worker.pid)
        self.assertEqual((killed.get("rank"), killed.get("job_id")), (3, "77"))

    def test_the_next_server_counts_an_idle_timeout_from_the_last_release_on_the_pipe(self):
        worker = self.start_worker("""
            filetimer.configure(idle_timeout=3)
            with filetimer.expires(60):
                pass
            say(os.getpid())
            time.sleep(60)
            """, prefix=(CLIENT, "run", "--"))
        pid = worker.stdout.readline().strip()
        self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", pid)
        self.client("ping")
        time.sleep(3)
        released = time.monotonic_ns()
        self.client("release", "--scope", "x", "--pid", pid)
        self.client("ping")
        os.kill(self.server.pid, signal.SIGKILL)
        self.start_next()
        self.assertGreaterEqual(self.record("expired", int(pid))["acquired_mono_ns"], released)

    def test_the_scopes_of_a_worker_without_proc_have_one_verdict_each(self):
        words = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
        if not shutil.which("unshare") or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this machine does not allow a new mount namespace")
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(60, "epoch"), filetimer.expires(0.3, signal=signal.SIGTERM, grace=60):
                time.sleep(60)
            """, prefix=words)
        self.wait_for_stage("signalled")
        os.kill(self.server.pid, signal.SIGKILL)
        suite.end(worker)
        self.start_next()
        killed = self.record("killed", worker.pid)
        self.assertEqual((killed["verdict"], killed.get("cancelled")), ("dead", ["epoch"]))
        self.assertEqual(self.records("left_open", worker.pid), [])

    def test_a_worker_of_another_pid_namespace_has_the_pid_that_the_server_saw(self):
        words = ("unshare", "--pid", "--fork", "--kill-child")
        if not shutil.which("unshare") or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("unshare(1) makes no pid namespace here")
        worker = self.start_worker("with filetimer.expires(60): say('in'), time.sleep(60)", prefix=words)
        worker.stdout.readline()
        self.client("ping")
        pid = json.loads(self.client("list", "--json"))["pid"]
        os.kill(self.server.pid, signal.SIGKILL)
        suite.end(worker)
        suite.wait_until(lambda: suite.state_of(pid) == "")
        self.start_next()
        self.assertEqual(self.record("left_open")["pid"], pid)


if __name__ == "__main__":
    suite.main()
