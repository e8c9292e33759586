# SPDX-License-Identifier: MIT
"""Kills with several scopes, releases or halts beside them, and a server without disk or memory."""
import contextlib
import ctypes
import fcntl
import json
import math
import os
import pathlib
import resource
import signal
import subprocess
import sys
import termios
import time
import unittest
import unittest.mock

import filetimer
import suite
from harness import CLIENT, SERVER, SIGNALS_WAIT, ServerCase
from records import records, wait_for_record


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
        self.slow_server("sendto,sendmsg", "delay_enter", 5_000_000)  # what comes after the last reading
        with open(self.server.fifo, "wb", buffering=0) as pipe, self.assertRaises(BrokenPipeError):
            self.addCleanup(suite.end, subprocess.Popen([CLIENT, "shutdown", "--dir", self.dir]))
            while True:
                pipe.write(b'{"version": 1, "pid": 1, "scope_id": "x", "expiration_time": -1, "signal": 0}\n')
                time.sleep(0.01)
        time.sleep(1)  # a server that keeps the pipe to its end has ended by then
        self.assertNotIn(suite.state_of(self.server.pid), ("", "Z"))


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
        self.wait_for_stage("signalled")
        [kill] = pathlib.Path(self.dir, "kills").iterdir()
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (kill.stat().st_size + 8, limits[1]))
        worker.wait(timeout=suite.BOUND_S)
        suite.wait_until(lambda: not kill.exists())
        suite.wait_until(lambda: "log_trouble" in self.client("status", "--json"))
        self.assertEqual(self.records("killed"), [])
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        self.record("killed", worker.pid)
        server.terminate()
        said = server.communicate(timeout=suite.BOUND_S)[1]
        self.assertIn(": to be sent SIGTERM (", said)
        self.assertEqual(said.count(f"cannot write '{kill}'"), 1, said)
        self.assertIn(f"cannot write '{kill}': No space left on device", said)
        self.assertRegex(said, f"'{self.server.log}': [\\w ]+; records wait in memory and kills continue\n")
        self.assertIn(f"the log '{self.server.log}' can be written again\n", said)


class SeveralScopes(ServerCase):
    """Scopes that expire together, or while a kill of their worker waits for evidence."""
    options = ("--max-interval", "1h", *SIGNALS_WAIT)
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

    def test_the_first_record_of_an_outcome_alone_lists_the_scopes_that_the_kill_has_cancelled(self):
        worker = self.start("sleep", "60")
        self.write(worker, ("one", -0.1, {}), ("two", -0.05, {}), ("far", 3600, {}))
        self.go()
        both = suite.wait_until(lambda: (found := self.records("killed", worker.pid))[1:] and found)
        self.assertEqual([(each["scope"], each.get("cancelled")) for each in both], [("one", ["far"]), ("two", None)])

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


class PipeTakenOver(ServerCase):
    options = ("--max-interval", "20ms", *SIGNALS_WAIT)

    def test_the_scopes_of_a_worker_with_a_kill_stay_until_its_signal_which_cancels_them(self):
        workers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        for worker in workers:
            self.addCleanup(suite.end, worker)
            self.client("acquire", "--scope", "far", "--timeout", "1h", "--pid", str(worker.pid))
        self.client("acquire", "--scope", "step", "--timeout", "200ms", "--pid", str(workers[0].pid))
        self.wait_for_stage("recorded")
        other = f"{self.folder}/pipe"
        os.mkfifo(other, 0o600)
        self.addCleanup(os.close, os.open(other, os.O_RDONLY | os.O_NONBLOCK))
        os.rename(other, self.server.fifo)
        suite.wait_until(lambda: not self.open_scopes(workers[1].pid))
        pathlib.Path(self.dir, "go").touch()
        self.assertEqual(self.record("killed", workers[0].pid).get("cancelled"), ["far"])


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
    options = ("--dry-run", *SIGNALS_WAIT)

    def test_one_that_is_due_does_not_wait_long_for_the_evidence_of_another(self):
        self.start_worker("""
            with filetimer.expires(0.5, "second"), filetimer.expires(0.2, "first"):
                time.sleep(60)
            """)
        suite.wait_until(lambda: [each["scope"] for each in self.records("expired")] == ["first", "second"])


class Pauses(ServerCase):
    options = ("--kill-wait", "4s", "--evidence", "none")
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


class LogInAPipe(unittest.TestCase):
    def setUp(self):
        self.folder = suite.folder_of(self, "python")
        self.log = self.folder + "/log"
        os.mkfifo(self.log)
        self.pipe = os.open(self.log, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, self.pipe)
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, 4096)

    def start(self, *options):
        server = filetimer.Server("--log", self.log, *options, dir=self.folder + "/run")
        self.addCleanup(server.close)
        self.client = filetimer.Client(server.dir)
        self.addCleanup(self.client.close)
        return server

    def wait_for_trouble(self, trouble):
        suite.wait_until(lambda: trouble in filetimer.admin.status(client=self.client).json)

    def test_sighup_opens_the_file_that_has_replaced_a_full_one(self):
        os.write(self.pipe, b"x" * 4095 + b"\n")
        server = self.start()
        self.wait_for_trouble("does not answer")
        os.rename(self.log, self.log + ".old")
        os.kill(server.pid, signal.SIGHUP)
        suite.wait_until(lambda: os.path.exists(self.log) and records([self.log], "server_started"))

    def test_half_a_record_in_one_that_sighup_opens_again_spoils_no_other(self):
        server = self.start("--evidence-command", "head -c 30000 /dev/zero | tr '\\0' x")
        worker = subprocess.Popen([sys.executable, "-c", "import filetimer, time\nwith filetimer.expires(0.1): "
                                   "time.sleep(60)"], env={**os.environ, "FILETIMER_DIR": server.dir})
        self.addCleanup(suite.end, worker)
        text = b""

        def is_written(event):
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += os.read(self.pipe, 4096)
            return b'"event":"%s"' % event in text

        suite.wait_until(lambda: is_written(b"evidence_command"))
        os.kill(server.pid, signal.SIGHUP)
        self.wait_for_trouble("cannot write")
        suite.wait_until(lambda: is_written(b"killed"))
        whole = [line for line in text.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
        self.assertEqual([json.loads(line)["event"] for line in whole].count("evidence_command"), 1)


class Pages(ServerCase):
    def test_a_name_that_leads_elsewhere_is_refused(self):
        pathlib.Path(self.server.fifo).write_text('{"version": 1, "x_page": "../kills/page"}\n')
        self.assertRegex(self.record("rejected")["reason"], "^x_page is not a page name: expected letters")


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

    def test_it_is_removed_by_a_server_whose_log_is_in_the_directory(self):
        dir = os.path.join(self.folder, "moved")
        for log, is_linked in (self.folder + "/elsewhere", True), (dir + "/expired.jsonl", False):
            with filetimer.Server("--log", log, dir=dir):
                self.assertEqual(os.path.lexists(dir + "/log_link"), is_linked)

    def test_there_is_none_to_a_log_that_each_process_has_anew(self):
        self.assertFalse(os.path.lexists(self.server_with("/dev/stderr", "unlinked")))


class WithoutMemory(ServerCase):
    """A server that is refused memory for a while, as on a host that does not overcommit."""
    options = ("--evidence", "none", "--max-interval", "100ms")
    over = 0  # bytes: larger blocks are refused

    def setUp(self):
        folder = suite.folder_of(self, "memory")
        library = suite.library_to_preload(self, "libfiletimer_no_memory.so")
        self.flag = pathlib.Path(folder, "flag")
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=library, NO_MEMORY=str(self.flag),
                                      NO_MEMORY_OVER=str(self.over)):
            super().setUp()
        self.record("server_started")  # which takes more than is left to some tests

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


class EvidenceOfOthers(WithoutMemory):
    over = 4096  # less than the environment of the command takes
    options = (*WithoutMemory.options, "--evidence-command", "true")

    def setUp(self):
        with unittest.mock.patch.dict(os.environ, {f"VARIABLE_{number}": "" for number in range(300)}):
            super().setUp()

    def test_an_incident_for_which_it_cannot_be_collected_is_recorded(self):
        worker = self.start_worker("""
            with filetimer.expires(60):
                pass
            say("ready")
            sys.stdin.readline()
            with filetimer.expires(0.3):
                time.sleep(60)
            """)
        worker.stdout.readline()
        self.client("ping")  # then the server has read its page
        self.flag.touch()
        self.addCleanup(self.flag.unlink, missing_ok=True)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        self.flag.unlink()
        self.assertEqual(self.record("incident")["workers"], 1)


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


class Begins(WithoutMemory):
    over = 4096  # less than the scopes take that a record of the verdict lists

    def test_kills_that_cannot_begin_hold_up_no_other(self):
        inside, hung = ([self.start_worker("time.sleep(600)") for _ in range(4)] for _ in range(2))
        due = time.time() + 2
        with open(self.server.fifo, "w") as pipe:
            for worker in inside:
                for number in range(100):
                    self.write(pipe, worker, f"far {number}", 600)
            for worker in inside + hung:
                self.write(pipe, worker, "step", 0, expiration_time=due)  # all of one scan
            self.client("ping")
            self.flag.touch()
            self.addCleanup(self.flag.unlink, missing_ok=True)
        for worker in hung:
            self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        begun = self.sleeps_of_server()
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 10)
        self.assertEqual([each.poll() for each in inside], [None] * 4)
        self.flag.unlink()
        for worker in inside:
            self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        suite.wait_until(lambda: len(self.records("killed")) == 8)
        self.assertEqual(len(self.records("expired")), 8)


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


class Ends(WithoutMemory):
    over = 4096  # less than a look at the scopes takes

    def test_each_scope_of_a_worker_that_ends_has_one_verdict(self):
        inside = """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            scopes = [filetimer.Scope(60, "far") for _ in range(300)]
            for each in scopes:
                each.acquire()
            """
        left = self.start_worker(inside + """
            say("inside")
            time.sleep(60)
            """)
        killed = self.start_worker(inside + """
            with filetimer.expires(0.3, "hung", signal=signal.SIGTERM, grace=60):
                time.sleep(60)
            """)
        left.stdout.readline()
        self.wait_for_stage("signalled")
        self.flag.touch()
        suite.end(left)
        suite.end(killed)
        begun = self.sleeps_of_server()
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 10)  # it has looked at the ends of both
        self.flag.unlink()
        suite.wait_until(lambda: len(self.records("left_open")) >= 300)
        self.assertEqual(self.record("killed", killed.pid)["cancelled"], ["far"] * 300)
        self.client("ping")
        self.assertEqual({(each["pid"], each["reason"]) for each in self.records("left_open")},
                         {(left.pid, "the worker ended inside the scope")})


class Hooks(WithoutMemory):
    over = 300  # less than the record of a hook has
    options = (*WithoutMemory.options, "--on-expiry",
               """exec env -u LD_PRELOAD sh -c 'touch "$FILETIMER_DIR/runs"; sleep 1; exit 7'""")

    def test_the_exit_status_of_a_hook_is_recorded_when_there_is_memory(self):
        self.start_worker("""
            with filetimer.expires(0.3):
                time.sleep(60)
            """)
        suite.wait_until(pathlib.Path(self.dir, "runs").exists)
        self.flag.touch()
        time.sleep(2)  # longer than the hook runs
        self.flag.unlink()
        self.assertEqual(self.record("hook").get("exit_status"), 7)


class EndsWithoutSweeps(WithoutMemory):
    over = 4096  # less than a look at the scopes takes
    options = ("--evidence", "none", "--max-interval", "1h")

    def test_the_scopes_that_a_worker_leaves_open_are_recorded_soon_when_there_is_memory(self):
        worker = self.start_worker("""
            scopes = [filetimer.Scope(3600, "far") for _ in range(300)]
            for each in scopes:
                each.acquire()
            say("inside")
            time.sleep(60)
            """)
        worker.stdout.readline()
        self.client("ping")  # then the server has read its page
        self.flag.touch()
        self.addCleanup(self.flag.unlink, missing_ok=True)
        begun = self.sleeps_of_server()
        suite.end(worker)
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 5)  # it looks at the end until it has memory
        self.flag.unlink()
        suite.wait_until(lambda: len(self.records("left_open")) == 300)


class Statistics(WithoutMemory):
    over = 16_000  # less than the record of 100 scopes has

    def test_the_statistics_of_a_worker_are_recorded_when_there_is_memory(self):
        worker = self.start_worker("""
            for number in range(100):
                with filetimer.expires(60, f"step {number}"):
                    pass
            say("done")
            time.sleep(60)
            """)
        worker.stdout.readline()
        self.client("ping")  # then the server has read its page
        self.flag.touch()
        self.addCleanup(self.flag.unlink, missing_ok=True)
        begun = self.sleeps_of_server()
        suite.end(worker)
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 5)
        self.flag.unlink()
        self.assertEqual(len(self.record("worker_ended")["scopes"]), 100)


class EvidenceCommands(WithoutMemory):
    over = 12_000  # less than the record of the command has
    options = (*WithoutMemory.options, "--evidence-timeout", "1s", "--evidence-command",
               "exec env -u LD_PRELOAD sh -c 'yes \"\" | head -c 8000'")  # a newline has two bytes in JSON

    def test_one_whose_record_has_no_memory_holds_up_no_kill(self):
        self.flag.touch()
        self.addCleanup(self.flag.unlink)
        worker = self.start_worker("""
            with filetimer.expires(0.3):
                time.sleep(60)
            """)
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)


class IncidentRecords(WithoutMemory):
    over = 4096  # less than the record has

    def test_one_lists_each_scope_that_has_ended_once(self):
        worker = self.start_worker("""
            for number in range(50):
                with filetimer.expires(60, f"step {number}"):
                    pass
            say("ready")
            sys.stdin.readline()
            with filetimer.expires(0.3, "hung"):
                time.sleep(60)
            """)
        worker.stdout.readline()
        self.client("ping")  # then the server has read its page
        self.flag.touch()
        self.addCleanup(self.flag.unlink, missing_ok=True)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        begun = self.sleeps_of_server()
        suite.wait_until(lambda: self.sleeps_of_server() > begun + 10)  # it has tried to make the record
        self.flag.unlink()
        incident = self.record("incident")
        self.assertEqual([len(each["ended"]) for each in incident["ended_scopes"]], [1] * 50)


class SavedScopes(WithoutMemory):
    over = 12_000  # less than 400 scopes of the pipe take, in a page and in a list

    def test_one_worker_whose_scopes_cannot_be_saved_holds_up_no_other(self):
        many = self.start_worker("time.sleep(600)")
        hung = self.start_worker("""
            sys.stdin.readline()
            with filetimer.expires(0.3):
                time.sleep(60)
            """)
        saved = pathlib.Path(self.dir, "scopes/server", str(many.pid))
        with open(self.server.fifo, "w") as pipe:
            for number in range(400):
                self.write(pipe, many, str(number), 600)
            suite.wait_until(saved.exists)
            self.client("ping")
            # From now on the server has memory for the time that each scope gets back.
            os.kill(self.server.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(self.server.pid, signal.SIGCONT)
            self.record("deferred")
            self.flag.touch()
            self.addCleanup(self.flag.unlink, missing_ok=True)
            self.write(pipe, many, "0", -time.time() - 1)  # a release
        suite.wait_until(lambda: not saved.exists(), "it has a scope that was left")
        print(file=hung.stdin, flush=True)
        self.assertEqual(hung.wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        self.flag.unlink()
        suite.wait_until(lambda: len(self.open_scopes(many.pid)) == 399)


class EndsBeforeTheSignal(WithoutMemory):
    over = 900  # less than a record has
    options = (*WithoutMemory.options, "--kill", "process", "--kill-wait", "300ms")

    def test_such_an_end_is_recorded_when_there_is_memory(self):
        worker = self.start_worker("time.sleep(600)")
        self.slow_server("pidfd_send_signal", "delay_enter", 500_000)
        time.sleep(0.3)  # so that the deadline is not before the start of the worker
        with open(self.server.fifo, "w") as pipe:
            self.write(pipe, worker, "step", -0.1, signal=15)
            self.wait_for_stage("judged")
            self.flag.touch()
            worker.kill()
            worker.wait()
            time.sleep(2.5)  # longer than the signals take, and the wait for a death
        self.flag.unlink()
        self.assertEqual(self.record("killed", worker.pid)["verdict"], "already_gone")


class StopSignals(unittest.TestCase):
    def test_another_one_that_comes_at_once_is_passed_on(self):
        script = ("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('in', flush=True)\n"
                  "time.sleep(60)")
        server = subprocess.Popen([SERVER, "--dir", os.path.join(suite.folder_of(self, "python"), "run"), "--",
                                   sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(suite.end, server)
        server.stdout.readline()
        for number in signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT:  # so it takes both at once
            server.send_signal(number)
        self.assertEqual(server.wait(timeout=suite.BOUND_S // 2), 128 + signal.SIGTERM)

    def test_the_record_of_the_stop_says_why_and_has_the_exit_status_of_command(self):
        for script, reason, status in (("exit 7", "COMMAND ended", 7), ("kill -9 $$", "COMMAND ended", 137),
                                       ("trap '' TERM; echo in; while :; do sleep 1; done", "forced", 137)):
            with self.subTest(script):
                dir = os.path.join(suite.folder_of(self, "python"), "run")
                server = subprocess.Popen([SERVER, "--dir", dir, "--", "sh", "-c", script], stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True)
                self.addCleanup(suite.end, server)
                if reason == "forced":
                    server.stdout.readline()
                    # Until one comes that counts as a second one.
                    suite.wait_until(lambda: server.poll() is not None or server.send_signal(signal.SIGTERM))
                said = server.communicate(timeout=suite.BOUND_S)[1]
                [stopped] = records([dir + "/expired.jsonl"], "server_stopped")
                self.assertEqual((stopped["reason"], stopped["command_status"], server.returncode),
                                 (reason, status, status))
                self.assertEqual("a second SIGTERM: killing COMMAND" in said, reason == "forced")

    def test_the_exit_status_is_that_of_a_kill_if_command_has_not_exited_when_the_server_ends(self):
        server = subprocess.Popen([SERVER, "--dir", os.path.join(suite.folder_of(self, "python"), "run"), "--", "sh",
                                   "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(suite.end, server)
        command = int(server.stdout.readline())
        # The server cannot reap it before this process, which traces it, has let it go.
        if ctypes.CDLL(None).ptrace(0x4206, command, None, None) != 0:  # PTRACE_SEIZE
            self.skipTest("no process can be traced here")
        self.addCleanup(os.waitpid, command, 0x40000000)  # __WALL
        suite.wait_until(lambda: server.poll() is not None or server.send_signal(signal.SIGTERM))
        self.assertEqual(suite.state_of(command), "Z")
        self.assertEqual(server.returncode, 128 + signal.SIGKILL)


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


class Halts(ServerCase):
    def test_a_time_in_which_neither_server_nor_worker_ran_is_given_back_once(self):
        worker = self.start_worker("""
            with filetimer.expires(10): say("in"), time.sleep(60)
            """)
        worker.stdout.readline()
        time.sleep(1)
        begun = time.monotonic()
        for number in signal.SIGSTOP, signal.SIGCONT:
            os.kill(self.server.pid, number)  # the server runs again first, and finds the worker stopped
            time.sleep(0.3)
            worker.send_signal(number)
            halted = time.monotonic() - begun
            time.sleep(6 if number == signal.SIGSTOP else 0)
        self.assertLess(self.record("expired", worker.pid)["elapsed_s"], 10 + halted + 3)


if __name__ == "__main__":
    suite.main()
