# SPDX-License-Identifier: MIT
"""Child processes and the ends of processes: each child is a separate worker, or none."""
import contextlib
import fcntl
import importlib.util
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import termios
import time
import unittest
import unittest.mock

import filetimer
import suite
from harness import CLIENT, SERVER, ServerCase, worker_test
from records import wait_for_record

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Functions for children: one hangs in its own scope.
CHILD = """
import multiprocessing
def hang_in_scope():
    with filetimer.expires(0.3, "child"):
        time.sleep(60)
def work(number):
    with filetimer.expires(60, "work"):
        return number * number
def configured_work(number):
    filetimer.configure()
    return work(number)
"""


def with_slow(calls, how, us):
    """Returns the words before a program that make these calls slow."""
    if shutil.which("strace") is None:
        raise unittest.SkipTest("no strace")
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{how}={us}")


class Forks(ServerCase):
    def test_a_child_has_no_scope_of_its_parent_and_the_parent_keeps_its_scopes(self):
        self.run_worker("""
            filetimer.configure()
            step = filetimer.Scope(60, "step")
            with filetimer.expires(60, "outer"), step, filetimer.paused("pause"):
                pid = os.fork()
                if pid == 0:
                    # The parent's scopes are not open in the child, which may enter all of them.
                    assert not step.is_open and step.remaining is None
                    in_thread(filetimer.admin.ping)
                    with step:
                        assert step.is_open
                        with filetimer.expires(60, "mine"):
                            pass
                    assert not step.is_open
            step.__exit__(None, None, None)
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            with filetimer.expires(60, "after"):
                pass
            say("fine")
            """, says="fine\n")
        self.assertEqual(self.records("expired"), [])
        self.assertEqual(self.records("left_open"), [])

    test_the_first_scope_of_a_name_has_longer_in_a_child_too = worker_test("""
        scope = filetimer.Scope(10, "x", first_timeout=3600)
        def remaining():
            with scope:
                return scope.remaining
        assert remaining() > 3000 and remaining() < 11
        assert in_child(lambda: os._exit(remaining() < 3000 or remaining() > 11)) == 0
        """)

    test_children_that_ignore_or_close_the_client_exit_normally = worker_test("""
        client = filetimer.configure()
        for end in (lambda: os._exit(0), client.close, filetimer.close, sys.exit):
            assert in_child(end) == 0
        with filetimer.expires(60):
            pass
        """)

    # A thread that holds the interpreter's lock holds the library's lock across a fork.
    test_forks_beside_busy_threads_do_not_hang = worker_test("""
        import warnings
        warnings.simplefilter("ignore")  # 3.12 and later warn of such a fork
        filetimer.configure()
        sys.setswitchinterval(1e-5)
        is_running = True
        def work(number):
            i = 0
            while is_running:
                i += 1
                with filetimer.expires(60, f"{number} {i % 50}"):  # takes the lock
                    pass
                filetimer.heartbeat(60, f"{i % 30}").beat()
                if i % 50 == 0:
                    filetimer.admin.ping()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        def child():
            for j in range(20):
                with filetimer.expires(60, f"{j}"), filetimer.paused():
                    pass
            filetimer.admin.ping()
        def fork_all():
            for i in range(30):
                assert in_child(child) == 0
        forker = threading.Thread(target=fork_all)
        forker.start()
        fork_all()
        forker.join()
        is_running = False
        for thread in threads:
            thread.join()
        say("fine")
        """, says="fine\n")

    def test_forks_beside_a_thread_that_connects_and_asks_for_the_first_time_do_not_hang(self):
        # The calls that are slow are those of a thread that connects: so children are forked between all of them.
        calls = "madvise,openat,readlink,fallocate,rename,fcntl,mkdir,mknodat,mknod"
        self.run_worker("""
            import warnings
            warnings.simplefilter("ignore")  # 3.12 and later warn of such a fork
            children = []
            def use():
                filetimer.configure()
                with filetimer.expires(60):
                    filetimer.admin.ping()
            thread = threading.Thread(target=use)
            thread.start()
            while thread.is_alive() and len(children) < 20:
                child = os.fork()
                if child == 0:
                    use()
                    os._exit(0)
                children.append(child)
                time.sleep(0.02)
            end = time.monotonic() + 10
            while children and time.monotonic() < end:
                children = [each for each in children if os.waitpid(each, os.WNOHANG)[0] == 0]
                time.sleep(0.02)
            for child in children:
                os.kill(child, 9)
            assert not children, f"{len(children)} children never return"
            """, prefix=with_slow(calls, "delay_enter", 20_000))

    @unittest.skipUnless(os.uname().machine == "x86_64", "the filter has the numbers of x86-64")
    def test_forks_are_noticed_on_a_kernel_without_madv_wipeonfork(self):
        self.run_worker("""
            import ctypes, struct
            if len(sys.argv) == 1:
                # madvise(_, _, MADV_WIPEONFORK) is EINVAL from here on, in the program that is executed, too.
                code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in (
                    (0x20, 0, 0, 0), (0x15, 0, 3, 28), (0x20, 0, 0, 32), (0x15, 0, 1, 18), (6, 0, 0, 0x50016),
                    (6, 0, 0, 0x7fff0000))))
                program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 6, ctypes.addressof(code)))
                prctl = ctypes.CDLL(None).prctl
                assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0
                os.execv(sys.executable, [sys.executable, __file__, "again"])
            filetimer.configure()
            with filetimer.expires(60, "outer") as outer:
                if os.fork() == 0:
                    with filetimer.expires(60, "mine") as mine:
                        say(mine.is_open and not outer.is_open)
                    os._exit(0)
                assert os.wait()[1] == 0 and outer.is_open
            """, says="True\n")

    def test_a_child_that_cannot_have_a_page_continues(self):
        for limit, reason in (("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "Too many open files"),
                              ("resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", "File too large"),
                              ("os.rename(folder, folder + '.moved')", None)):
            with self.subTest(limit):
                worker = self.start_worker(f"""
                    import resource
                    filetimer.configure()
                    folder = os.environ["FILETIMER_DIR"]
                    def child():
                        {limit}
                        with filetimer.expires(60, "x"), filetimer.paused():
                            filetimer.heartbeat(60).beat()
                        list(filetimer.each("ab", 60))
                        say("fine")
                    assert in_child(child) == 0
                    """)
                out, err = worker.communicate(timeout=suite.BOUND_S)
                self.assertEqual((out, worker.returncode), ("fine\n", 0))
                self.assertRegex(err, f"^filetimer.*no scope page.*: {reason}\n$" if reason else "^$")
        with contextlib.suppress(OSError):  # a sweep of the server may have made it again
            os.rename(self.dir + ".moved", self.dir)

    def test_a_subprocess_is_no_worker(self):
        self.run_worker("""
            import subprocess
            filetimer.configure()
            with filetimer.expires(60, "parent"):
                subprocess.run([sys.executable, "-c", "pass"], check=True)
                subprocess.run(["true"], check=True, close_fds=False)
                with filetimer.expires(60, "still watched"):
                    assert filetimer.admin.status().open_scopes == 2
            """)
        self.assertEqual(self.records("left_open"), [])


class Restarts(ServerCase):
    waits = ("--evidence-timeout", "60s", "--evidence-command",  # signals wait for that
             'while ! [ -e "$FILETIMER_DIR/go" ] && [ -d "$FILETIMER_DIR" ]; do sleep 0.05; done')

    def start_next(self):
        self.server.close()
        self.server = filetimer.Server(dir=self.dir)
        self.addCleanup(self.server.close)

    def wait_for_stage(self, stage):
        kills = pathlib.Path(self.dir, "kills")
        suite.wait_until(lambda: any(stage in each.read_text() for each in kills.glob("*")))

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
        worker = self.start_worker("""
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))  # the kill waits for its end
            with filetimer.expires(60, "epoch"), filetimer.expires(0.3, signal=signal.SIGCONT, grace=60):
                time.sleep(60)
            """)
        left = int(worker.stdout.readline())
        self.wait_for_stage("signalled")
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
        worker = self.start_worker("""
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))
            with filetimer.expires(60, "epoch"), filetimer.expires(0.3, signal=signal.SIGCONT, grace=60):
                time.sleep(60)
            """)
        child = int(worker.stdout.readline())
        self.wait_for_stage("signalled")
        slow = subprocess.Popen([*with_slow("poll", "delay_exit", 400_000), "-p", str(self.server.pid)],
                                stderr=subprocess.DEVNULL)
        self.addCleanup(suite.end, slow)
        status = pathlib.Path(f"/proc/{self.server.pid}/status")
        suite.wait_until(lambda: slow.poll() is not None or "\nTracerPid:\t0\n" not in status.read_text())
        if slow.poll() is not None:
            self.skipTest("strace may not trace the server")
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
        worker = self.start_worker("""
            say(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60"))  # the kill waits for its end
            with filetimer.expires(60, "epoch"), filetimer.expires(0.3, signal=signal.SIGCONT, grace=60):
                time.sleep(60)
            """)
        left = int(worker.stdout.readline())
        self.wait_for_stage("signalled")
        for _ in range(2):
            os.kill(self.server.pid, signal.SIGKILL)
            suite.end(worker)
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
        self.server = filetimer.Server(*self.waits, dir=self.dir)
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
        self.server = filetimer.Server(*self.waits, dir=self.dir)
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


class Releases(ServerCase):
    options = ("--evidence", "none")

    def test_one_that_comes_while_targets_are_waited_for_spares_the_worker(self):
        for number in range(20):  # a slow machine may send the signal first
            worker = self.start_worker("""
                import subprocess
                os.mkfifo(sys.argv[1])
                # A process that waits for its vfork() may be inside a fork(): the server waits before the signal.
                spawn = ("import os, sys; os.posix_spawn('/bin/true', ['true'], {}, "
                         "file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])")
                waits = subprocess.Popen([sys.executable, "-c", spawn, sys.argv[1]])
                while open(f"/proc/{waits.pid}/stat").read().split()[2] != "D":
                    time.sleep(0.01)
                scope = filetimer.Scope(0.3, signal=signal.SIGTERM, grace=1)
                scope.acquire()
                time.sleep(0.31)
                scope.release()
                os.close(os.open(sys.argv[1], os.O_WRONLY))
                waits.wait()
                """, f"{self.folder}/fifo{number}")
            if worker.wait(suite.BOUND_S) == 0:
                break
        self.assertEqual(worker.returncode, 0)
        killed = self.record("killed", worker.pid)
        self.assertEqual((killed["verdict"], killed["reason"]), ("spared", "released late, but before the signal"))


    def test_none_is_written_to_the_pipe_of_a_server_that_reads_it_no_more(self):
        reading, writing = os.pipe()
        for each in reading, writing:
            self.addCleanup(os.close, each)
        room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(room))  # the server's last message waits for 0.2 s
        self.server.close()
        server = subprocess.Popen([SERVER, "--dir", self.dir, "--log-level", "debug"], stdout=subprocess.PIPE,
                                  stderr=writing)
        self.addCleanup(suite.end, server)
        server.stdout.readline()  # it is ready
        with open(self.server.fifo, "wb", buffering=0) as pipe:
            server.terminate()
            suite.wait_until(lambda: not os.path.exists(self.server.fifo))
            time.sleep(0.1)
            with self.assertRaises(BrokenPipeError):
                pipe.write(b'{"version": 1, "pid": 1, "scope_id": "x", "expiration_time": -1, "signal": 0}\n')


class FullDisk(ServerCase):
    def test_a_kill_whose_end_cannot_be_noted_is_not_continued(self):
        self.server.close()
        server = subprocess.Popen([SERVER, "--dir", self.dir, "--evidence", "none"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, server)
        server.stdout.readline()  # it is ready
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(0.3, signal=signal.SIGTERM, grace=2):
                time.sleep(60)
            """)
        kills = pathlib.Path(self.dir, "kills")
        suite.wait_until(lambda: any("signalled" in each.read_text() for each in kills.glob("*")))
        [kill] = kills.iterdir()
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (kill.stat().st_size + 8, limits[1]))
        worker.wait(timeout=suite.BOUND_S)
        suite.wait_until(lambda: not kill.exists())
        self.assertEqual(self.records("killed"), [])
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        self.record("killed", worker.pid)
        server.terminate()
        said = server.communicate(timeout=suite.BOUND_S)[1]
        self.assertEqual(said.count(f"cannot write '{kill}'"), 1, said)
        self.assertIn(f"cannot write '{kill}': No space left on device", said)
        self.assertRegex(said, f"'{self.server.log}': [\\w ]+; records wait in memory and kills continue\n")
        self.assertIn(f"the log '{self.server.log}' can be written again\n", said)


class SeveralScopes(ServerCase):
    """Scopes that expire together, or while a kill of their worker waits for evidence."""
    options = ("--max-interval", "1h", *Restarts.waits)
    wait_for_stage = Restarts.wait_for_stage

    def write(self, worker, *scopes):
        """Writes lines at once, so that one look finds all scopes that are due: (name, seconds from now, more)."""
        lines = ({"version": 1, "pid": worker.pid, "scope_id": name, "signal": int(signal.SIGTERM),
                  "expiration_time": time.time() + after_s, **more} for name, after_s, more in scopes)
        pathlib.Path(self.server.fifo).write_text("".join(json.dumps(each) + "\n" for each in lines))
        self.client("ping")

    def wait_for_both(self, worker):
        suite.wait_until(lambda: len(self.records("expired", worker.pid)) == 2)

    def release(self, worker, scope):
        self.write(worker, (scope, -time.time() - 1, {}))
        self.record("released_late", worker.pid)

    def go(self):
        pathlib.Path(self.dir, "go").touch()

    def killed(self, worker, scope):
        return suite.wait_until(lambda: [each for each in self.records("killed", worker.pid)
                                         if each["scope"] == scope])[0]

    def start(self, *words):
        worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, worker)
        time.sleep(0.2)  # a line with a deadline before the start is not for the worker
        return worker

    def start_page_worker(self, page):
        """Returns a worker, and a function that has it do what a line says. The server knows the page."""
        worker = self.start(os.path.join(os.environ["FILETIMER_BIN_DIR"], "page_worker"))
        worker.stdout.readline()

        def tell(line):
            print(line, file=worker.stdin, flush=True)
            worker.stdout.readline()
        tell(f"make {self.dir} {page}")
        tell("hint")
        self.client("ping")
        return worker, tell

    def test_a_worker_that_starts_another_program_is_spared_also_if_a_scope_of_the_pipe_has_expired(self):
        for number in range(10):
            worker, tell = self.start_page_worker(f"p-{number}")
            tell("open 0 page 1")
            time.sleep(0.01)  # its deadline passes, and no message has said so
            self.write(worker, ("line", -0.1, {}))
            suite.wait_until(lambda: self.records("expired", worker.pid))
            if len(self.records("expired", worker.pid)) == 2:
                break  # in one look, so that the kill is for both
        print("exec sleep 60", file=worker.stdin, flush=True)
        suite.wait_until(lambda: pathlib.Path(f"/proc/{worker.pid}/comm").read_text() == "sleep\n")
        self.go()
        for scope in "page", "line":
            self.assertEqual(self.killed(worker, scope)["reason"],
                             "the worker started another program inside the scope")
        self.assertIsNone(worker.poll())

    def test_a_worker_that_has_left_the_only_scope_with_a_signal_is_spared_for_that(self):
        worker = self.start("sleep", "60")
        self.write(worker, ("left", -0.1, {}), ("silent", -0.1, {"signal": 0}))
        self.wait_for_both(worker)
        self.release(worker, "left")
        self.go()
        self.assertEqual(self.killed(worker, "silent")["reason"], "released late, but before the signal")

    def test_a_scope_for_the_worker_alone_that_is_left_over_has_no_other_process_signalled(self):
        worker = self.start("sh", "-c", "sleep 60 & echo $!; wait")
        self.addCleanup(os.kill, int(worker.stdout.readline()), signal.SIGKILL)
        self.write(worker, ("alone", -0.1, {"x_signal_first": True, "x_grace_s": math.inf}),
                   ("all", -0.1, {"x_grace_s": 60}))
        self.wait_for_both(worker)
        self.release(worker, "all")
        self.go()
        self.assertEqual([each["pids"] for each in self.killed(worker, "alone")["signals"]], [[worker.pid]])

    def test_a_signal_that_comes_late_for_another_scope_leaves_the_worker_time_to_die(self):
        worker = self.start("sleep", "60")
        self.write(worker, ("first", -0.1, {}))
        self.wait_for_stage("recorded")
        self.write(worker, ("second", -0.1, {"signal": 9}))
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGTERM)
        self.assertEqual(self.killed(worker, "first")["verdict"], "dead")
        self.assertEqual([each["scope"] for each in self.records("expired", worker.pid)], ["first"])

    def test_a_stopped_worker_is_not_signalled_for_a_scope_that_is_signalled_first(self):
        worker, tell = self.start_page_worker("p-1")
        tell(f"open 0 step 1 {int(signal.SIGURG)} 60000 64")
        worker.send_signal(signal.SIGSTOP)
        suite.wait_until(lambda: suite.state_of(worker.pid) == "T")
        pathlib.Path(self.server.fifo).write_text("no request\n")  # has the server read all pages
        self.assertEqual(self.record("deferred", worker.pid)["scope"], "step")
        self.assertEqual(self.records("warned"), [])

    def test_an_idle_timeout_does_not_wait_long_for_a_kill_without_sigkill(self):
        self.go()
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            filetimer.configure(idle_timeout=3)
            with filetimer.expires(60):
                pass
            say("idle")
            time.sleep(60)
            """)
        worker.stdout.readline()
        self.write(worker, ("job", -0.001, {"x_whole_process": True}))
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        self.assertEqual(self.killed(worker, "job")["reason"], "the worker survived SIGTERM, and another scope expired")
        self.assertEqual(self.killed(worker, "(idle)")["verdict"], "dead")


class Sessions(ServerCase):
    def test_a_kill_spares_what_the_server_shares_a_session_with(self):
        script = '(sleep 60 & echo $!); ("$0" --dir "$1" --evidence none &); read end'
        dir = os.path.join(self.folder, "other")
        leader = subprocess.Popen(["sh", "-c", script, SERVER, dir], start_new_session=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, leader)
        orphan = int(leader.stdout.readline())
        self.addCleanup(os.kill, orphan, signal.SIGKILL)
        server = int(leader.stdout.readline().rpartition("pid=")[2])
        self.addCleanup(os.kill, server, signal.SIGKILL)
        self.assertEqual(os.getsid(server), leader.pid)
        words = ("acquire", "--scope", "x", "--timeout", "100ms", "--pid", str(leader.pid), "--dir", dir)
        subprocess.run([CLIENT, *words], timeout=suite.BOUND_S, check=True)
        self.assertEqual(leader.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        killed = wait_for_record(self, f"{dir}/expired.jsonl", "killed")
        self.assertEqual([each["pids"] for each in killed["signals"]], [[leader.pid]])
        self.assertEqual(suite.state_of(orphan), "S")


class SeveralScopesOfADryRun(ServerCase):
    options = ("--dry-run", *Restarts.waits)

    def test_one_that_is_due_does_not_wait_long_for_the_evidence_of_another(self):
        self.start_worker("""
            with filetimer.expires(0.5, "second"), filetimer.expires(0.2, "first"):
                time.sleep(60)
            """)
        suite.wait_until(lambda: [each["scope"] for each in self.records("expired")] == ["first", "second"])


class Pauses(ServerCase):
    options = ("--kill-wait", "4s", "--evidence", "none")
    wait_for_stage = Restarts.wait_for_stage

    def test_a_wait_for_the_death_of_a_worker_is_longer_by_the_time_that_the_server_missed(self):
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(0.2, signal=signal.SIGTERM, grace=float("inf")):
                time.sleep(60)
            """)
        self.wait_for_stage("signalled")
        # The server looks once a second for that.
        line = {"version": 1, "pid": os.getpid(), "scope_id": "x", "signal": 0, "expiration_time": time.time() + 4}
        pathlib.Path(self.server.fifo).write_text(json.dumps(line) + "\n")
        self.client("ping")
        os.kill(self.server.pid, signal.SIGSTOP)
        time.sleep(4.2)
        os.kill(self.server.pid, signal.SIGCONT)
        self.client("ping")
        worker.kill()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "dead")


class StoppedWorkers(ServerCase):
    options = ("--stopped", "kill", "--max-interval", "50ms")

    def test_one_gets_no_time_back(self):
        worker = self.start_worker("with filetimer.expires(2): say('in'), time.sleep(60)")
        worker.stdout.readline()
        worker.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        worker.send_signal(signal.SIGCONT)
        expired = self.record("expired", worker.pid)
        if not self.records("deferred"):  # the server could run all the time
            self.assertEqual(expired["deadline_mono_ns"] - expired["acquired_mono_ns"], 2_000_000_000)


class Pages(ServerCase):
    def test_a_name_that_leads_elsewhere_is_refused(self):
        pathlib.Path(self.server.fifo).write_text('{"version": 1, "x_page": "../kills/page"}\n')
        self.assertRegex(self.record("rejected")["reason"], "^x_page is not a page name: expected letters")


class RemovedPages(ServerCase):
    def test_one_with_an_open_scope_makes_no_room_for_another(self):
        worker = subprocess.Popen([os.path.join(os.environ["FILETIMER_BIN_DIR"], "page_worker")],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, worker)
        worker.stdout.readline()
        for number in range(10):  # a worker may have eight
            for words in f"make {self.dir} p-{number}", *["open 0 inside 3600000"] * (number == 0), "hint":
                print(words, file=worker.stdin, flush=True)
                worker.stdout.readline()
            self.client("ping")
            os.remove(f"{self.dir}/scopes/p-{number}")
        worker.kill()
        self.assertEqual(self.record("left_open", worker.pid)["scope"], "inside")

    def test_those_of_workers_that_have_ended_before_the_server_looks_are_not_rejected(self):
        self.configure()
        os.kill(self.server.pid, signal.SIGSTOP)
        self.run_worker("with filetimer.expires(5, 'short'): pass")
        os.kill(self.server.pid, signal.SIGCONT)
        suite.wait_until(lambda: filetimer.admin.status().requests > 1, "the wake-up message is not read")
        self.assertEqual(filetimer.admin.status().rejected, 0)


class SlowEvidence(ServerCase):
    options = ("--evidence-command", "sleep 300", "--evidence-timeout", "300")

    def test_the_signal_of_a_scope_that_expires_while_the_server_stops_does_not_wait_long(self):
        hung = self.start_worker("with filetimer.expires(0.1): time.sleep(60)")
        self.record("expired", hung.pid)  # the stop gives its kill 500 ms
        worker = self.start_worker("with filetimer.expires(0.7): say('in'), time.sleep(60)")
        worker.stdout.readline()
        time.sleep(0.5)
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)


class LinkToTheLog(ServerCase):
    def server_with(self, log, name):
        server = filetimer.Server("--log", log, "--max-interval", "100ms", dir=os.path.join(self.folder, name))
        self.addCleanup(server.close)
        return os.path.join(server.dir, "log_link")

    def test_it_names_the_log_also_if_that_is_a_link_and_is_made_again_with_the_directory(self):
        log = os.path.join(self.folder, "current.jsonl")
        os.symlink(os.path.join(self.folder, "target.jsonl"), log)
        link = self.server_with(log, "linked")
        self.assertEqual(os.readlink(link), log)
        # In one step, because a sweep may come at any moment.
        os.rename(os.path.dirname(link), os.path.join(self.folder, "removed"))
        suite.wait_until(lambda: os.path.islink(link) and os.readlink(link) == log)

    def test_there_is_none_to_a_log_that_each_process_has_anew(self):
        self.assertFalse(os.path.lexists(self.server_with("/dev/stderr", "unlinked")))


class WithoutMemory(ServerCase):
    """A server that is refused memory for a while, as on a host that does not overcommit."""
    options = ("--evidence", "none", "--max-interval", "100ms")
    over = 0  # bytes: larger blocks are refused

    def setUp(self):
        folder = suite.folder_of(self, "memory")
        library = os.path.join(os.environ["FILETIMER_BIN_DIR"], "../tests/process/libfiletimer_no_memory.so")
        self.flag = pathlib.Path(folder, "flag")
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=os.path.abspath(library), NO_MEMORY=str(self.flag),
                                      NO_MEMORY_OVER=str(self.over)):
            super().setUp()

    def write(self, pipe, worker, scope, after_s, **more):
        print(json.dumps({"version": 1, "pid": worker.pid, "scope_id": scope, "signal": 9,
                          "expiration_time": time.time() + after_s, **more}), file=pipe, flush=True)

    def sleeps_of_server(self):
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


class Lines(WithoutMemory):
    def test_a_release_and_a_renewal_are_carried_out(self):
        released, renewed = (self.start_worker("time.sleep(600)") for _ in range(2))
        with open(self.server.fifo, "w") as pipe:
            for worker in released, renewed:
                self.write(pipe, worker, "contextlib.py#137", 5)
            self.client("ping")
            self.flag.touch()
            pipe.write("no request\n")
            self.write(pipe, released, "contextlib.py#137", -time.time() - 1)
            self.write(pipe, renewed, "contextlib.py#137", 600)
            suite.wait_until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4), "lines are unread")
        self.flag.unlink()
        suite.wait_until(lambda: [each["remaining_s"] > 60 for each in self.listed_scopes(renewed.pid)] == [True])
        self.assertEqual(self.listed_scopes(released.pid), [])
        self.assertEqual(self.records("expired"), [])


class NewScopes(WithoutMemory):
    over = 220  # less than the name has, and more than of its line is recorded

    def test_those_that_cannot_be_opened_take_no_room_from_others(self):
        worker = self.start_worker("time.sleep(600)")
        with open(self.server.fifo, "w") as pipe:
            for number in range(1000):
                self.write(pipe, worker, str(number), 600)
            pipe.write("no request\n")
            pipe.flush()
            self.record("rejected")  # the next one comes a second later, with all that follow
            self.flag.touch()
            for _ in range(24):
                self.write(pipe, worker, "x" * 250, 600)
            suite.wait_until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4), "lines are unread")
            self.flag.unlink()
            self.write(pipe, worker, "last", 600)
        suite.wait_until(lambda: "last" in self.open_scopes(worker.pid))


class NewWorkers(WithoutMemory):
    over = 900  # less than the server needs for a new worker

    def test_a_scope_is_opened_when_there_is_memory(self):
        worker = self.start_worker("time.sleep(600)")
        with open(self.server.fifo, "w") as pipe:
            self.flag.touch()
            self.write(pipe, worker, "step", 0.5)
            self.record("rejected")
            self.flag.unlink()
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)


class Outcomes(WithoutMemory):
    over = 900  # less than a record has
    options = (*WithoutMemory.options, "--kill", "process")

    def test_a_kill_whose_outcome_cannot_be_recorded_holds_up_no_other(self):
        hung = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("ready")
            time.sleep(600)
            """)
        ended = self.start_worker("""
            def end(*_):
                time.sleep(0.3)
                open(sys.argv[1], "w").close()
                os._exit(0)
            signal.signal(signal.SIGTERM, end)
            say("ready")
            time.sleep(600)
            """, str(self.flag))
        self.addCleanup(self.flag.unlink)
        for worker in hung, ended:
            worker.stdout.readline()
        with open(self.server.fifo, "w") as pipe:
            self.write(pipe, hung, "step", 0.5, signal=15, x_grace_s=2)
            self.write(pipe, ended, "step", 0.5, signal=15, x_grace_s=600)
        self.assertEqual(hung.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        self.assertTrue(self.flag.exists())

    def test_the_outcome_of_a_kill_is_recorded_when_there_is_memory(self):
        worker = self.start_worker("""
            def end(*_):
                open(sys.argv[1], "w").close()
                os._exit(0)
            signal.signal(signal.SIGTERM, end)
            say("ready")
            time.sleep(600)
            """, str(self.flag))
        worker.stdout.readline()
        with open(self.server.fifo, "w") as pipe:
            self.write(pipe, worker, "step", 1, signal=15, x_grace_s=600)
        worker.wait(timeout=suite.BOUND_S)
        begun = self.sleeps_of_server()
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 1)  # it has looked at the end of the worker
        self.flag.unlink()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "dead")


    def test_the_outcome_of_a_kill_that_the_stop_ends_is_recorded_when_there_is_memory(self):
        worker = self.start_worker("""
            signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], "w").close())
            say("ready")
            while True:
                time.sleep(600)
            """, str(self.flag))
        worker.stdout.readline()
        with open(self.server.fifo, "w") as pipe:
            self.write(pipe, worker, "step", 0.5, signal=15)
        suite.wait_until(self.flag.exists)
        os.kill(self.server.pid, signal.SIGTERM)
        time.sleep(3)  # the stop gives kills 2 s
        self.flag.unlink()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "spared")


class EndsBeforeTheSignal(WithoutMemory):
    over = 900  # less than a record has
    options = (*WithoutMemory.options, "--kill", "process", "--kill-wait", "300ms")

    def test_such_an_end_is_recorded_when_there_is_memory(self):
        worker = self.start_worker("time.sleep(600)")
        slow = subprocess.Popen([*with_slow("pidfd_send_signal", "delay_enter", 500_000), "-p", str(self.server.pid)],
                                stderr=subprocess.DEVNULL)
        self.addCleanup(suite.end, slow)
        status = pathlib.Path(f"/proc/{self.server.pid}/status")
        suite.wait_until(lambda: slow.poll() is not None or "\nTracerPid:\t0\n" not in status.read_text())
        if slow.poll() is not None:
            self.skipTest("strace may not trace the server")
        time.sleep(0.3)  # so that the deadline is not before the start of the worker
        with open(self.server.fifo, "w") as pipe:
            self.write(pipe, worker, "step", -0.1, signal=15)
            kills = pathlib.Path(self.dir, "kills")
            suite.wait_until(lambda: any("judged" in each.read_text() for each in kills.glob("*")))
            self.flag.touch()
            worker.kill()
            worker.wait()
            time.sleep(2.5)  # longer than the signals take, and the wait for a death
        self.flag.unlink()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "already_gone")


class Messages(ServerCase):
    def test_each_of_many_is_written_when_the_reader_of_standard_error_reads_again(self):
        self.check_messages(is_blocking=True)

    def test_each_of_many_is_written_to_a_pipe_that_another_process_has_made_non_blocking(self):
        self.check_messages(is_blocking=False)

    def check_messages(self, is_blocking):
        dir = os.path.join(self.folder, "other")
        for folder in dir, dir + "/kills":
            os.mkdir(folder, 0o700)
        for number in range(600):
            pathlib.Path(f"{dir}/kills/{number}").write_text('{"stage":"judged","version":9}\n')
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writing, is_blocking)
        server = subprocess.Popen([SERVER, "--dir", dir], stdout=subprocess.PIPE, stderr=writing)
        self.addCleanup(suite.end, server)
        os.close(writing)
        server.stdout.readline()  # it is ready
        os.set_blocking(reading, False)
        said = b""

        def are_all_there():
            nonlocal said
            with contextlib.suppress(BlockingIOError):
                said += os.read(reading, 4096)
            return said.count(b"is of version 9") == 600

        suite.wait_until(are_all_there, "messages are missing")


class Multiprocessing(ServerCase):
    def test_forked_workers_use_the_inherited_client_and_others_configure_themselves(self):
        for method, function in ("fork", "work"), ("spawn", "configured_work"), ("forkserver", "configured_work"):
            with self.subTest(method):
                self.run_worker(CHILD + f"""
if __name__ == "__main__":
    filetimer.configure()
    context = multiprocessing.get_context("{method}")
    with filetimer.expires(60, "parent"):
        with context.Pool(3) as pool:
            say(sum(pool.map({function}, range(30))))
        process = context.Process(target={function}, args=(3,))
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
""", says=f"{sum(i * i for i in range(30))}\n")
                self.assertEqual(self.records("expired"), [])

    def test_only_the_hung_worker_is_killed(self):
        for method, target in (("fork", "hang_in_scope"), ("spawn", "configured_hang"),
                               ("forkserver", "configured_hang")):
            with self.subTest(method):
                worker = self.start_worker(CHILD + f"""
def configured_hang():
    filetimer.configure()
    hang_in_scope()
if __name__ == "__main__":
    filetimer.configure()
    context = multiprocessing.get_context("{method}")
    with filetimer.expires(60, "parent"):
        process = context.Process(target={target})
        process.start()
        process.join()
        say(process.exitcode, process.pid)
""")
                code, pid = map(int, worker.stdout.readline().split())
                self.assertEqual(code, -signal.SIGKILL)
                self.assertEqual(worker.wait(timeout=30), 0)
                self.assertEqual(self.record("expired", pid)["scope"], "child")

    @unittest.skipUnless(HAS_TORCH, "no torch here")
    def test_workers_of_a_data_loader_are_separate_workers(self):
        script = CHILD + """
import torch, torch.utils.data
class Squares(torch.utils.data.Dataset):
    def __init__(self, hangs):
        self.hangs = hangs
    def __len__(self):
        return 64
    def __getitem__(self, i):
        with filetimer.expires(0.5 if self.hangs else 60, "item"):
            if self.hangs:
                time.sleep(60)
            return i * i
if __name__ == "__main__":
    filetimer.configure()
    next_batch = filetimer.Scope(60, "next batch")
    load = lambda hangs: torch.utils.data.DataLoader(Squares(hangs), batch_size=8, num_workers=2)
    total = 0
    batches = iter(load(False))
    while True:
        with next_batch:
            batch = next(batches, None)
        if batch is None:
            break
        total += int(batch.sum())
    say(total)
    try:
        with next_batch:
            next(iter(load(True)))
    except RuntimeError as error:
        # The messages of 1.13 with and without a SIGCHLD before.
        say("killed" if "killed by signal" in str(error) or "exited" in str(error) else error)
    say(os.getpid())
"""
        worker = self.start_worker(script)
        out, err = worker.communicate(timeout=60)
        self.assertEqual(out, f"{sum(i * i for i in range(64))}\nkilled\n{worker.pid}\n", err)
        self.server.close()  # the log is written to its end
        self.assertEqual({r["scope"] for r in self.records("expired")}, {"item"})
        self.assertEqual(self.records("expired", worker.pid), [])


class Halts(ServerCase):
    def test_a_time_in_which_neither_server_nor_worker_ran_is_given_back_once(self):
        worker = self.start_worker("""
            with filetimer.expires(10): say("in"), time.sleep(60)
            """)
        worker.stdout.readline()
        time.sleep(1)
        for number in signal.SIGSTOP, signal.SIGCONT:
            os.kill(self.server.pid, number)  # the server runs again first, and finds the worker stopped
            time.sleep(0.3)
            worker.send_signal(number)
            time.sleep(6)
        self.assertLess(self.record("expired", worker.pid)["elapsed_s"], 10 + 6 + 4)


class Ends(ServerCase):
    test_the_interpreter_exits_normally_with_scopes_open = worker_test("""
        filetimer.configure()
        client = filetimer.Client()
        scope = filetimer.Scope(60, "acquired")
        scope.acquire()
        entered = client.expires(60, "entered")
        entered.__enter__()
        pause = filetimer.paused()
        pause.__enter__()
        heart = filetimer.heartbeat(60)
        client.start(60)
        status = filetimer.admin.status()
        ring = [scope, heart, client]
        ring.append(ring)
        sys.scopes = [entered, pause]  # outlives the module
        say("fine")
        """, says="fine\n")

    test_a_daemon_thread_in_a_scope_does_not_block_the_exit = worker_test("""
        filetimer.configure()
        def work():
            while True:
                with filetimer.expires(60, "x"):
                    pass
        def ask():
            while True:
                filetimer.admin.ping()
        for each in (work, work, ask):
            threading.Thread(target=each, daemon=True).start()
        time.sleep(0.1)
        """)

    def test_threads_that_wait_for_a_server_and_for_an_answer_may_outlive_the_interpreter(self):
        # on_exit(sleep): sleep(1) is called after the interpreter's end, as the exit status is 1. The pauses of the
        # threads take 2 s longer, and end meanwhile; so does that sleep.
        self.run_worker("""
            import ctypes
            filetimer.configure()
            libc = ctypes.CDLL(None)
            libc.on_exit(libc.sleep, None)
            for call in (lambda: filetimer.Client(os.devnull, missing="wait", timeout=60),
                         lambda: filetimer.admin.rendezvous(0, 2, 60)):
                threading.Thread(target=call, daemon=True).start()
            threading.Event().wait(0.5)
            sys.exit(1)
            """, status=1, prefix=with_slow("clock_nanosleep,poll", "delay_exit", 2_000_000))

    def test_subinterpreters_that_are_refused_leave_the_main_one_watched(self):
        self.run_worker("""
            try:
                import _xxsubinterpreters as interpreters
            except ImportError:
                import _interpreters as interpreters
            # From Python 3.12 on an interpreter is isolated, and then takes no module that does not say so.
            how = ({} if sys.version_info < (3, 12) else
                   {"isolated": False} if sys.version_info < (3, 13) else {"config": "legacy"})
            script = "try: import filetimer\\nexcept ImportError: pass\\nelse: raise SystemError"
            filetimer.configure()
            with filetimer.expires(60, "main") as outer:
                for _ in range(3):
                    one = interpreters.create(**how)
                    if interpreters.run_string(one, script) is not None:  # before Python 3.13 it raises
                        sys.exit("an interpreter has imported the package")
                    interpreters.destroy(one)
                assert filetimer.admin.status().open_scopes == 1 and not outer.times().paused
                with filetimer.expires(0.2, "hung"):
                    time.sleep(60)
            """, status=-signal.SIGKILL)
        self.assertEqual(self.record("expired")["scope"], "hung")

    def test_a_hang_at_the_interpreters_end_is_still_watched(self):
        worker = self.start_worker("""
            import atexit
            filetimer.configure()
            scope = filetimer.Scope(0.5, "shutdown")
            scope.acquire()
            atexit.register(time.sleep, 60)
            """)
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)
        self.assertEqual(self.record("expired", worker.pid)["scope"], "shutdown")


if __name__ == "__main__":
    suite.main()
