# SPDX-License-Identifier: MIT
"""timer_client and timer_server as a person uses them: at a terminal, in a shell with job control, and
below a caller that ignores signals.
"""
import contextlib
import json
import os
import pathlib
import pty
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import filetimer
import suite
from harness import CLIENT, SERVER, ServerCase, with_slow
from suite import BOUND_S, state_of, wait_until

# Says each SIGINT that it gets, and ends with 5 at a SIGUSR1, with 6 at a SIGHUP.
COMMAND = """
import os, signal, sys
wanted = [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print(f"pid {os.getpid()}.", flush=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
count = 0
while True:
    number = signal.sigwait(wanted)
    if number == signal.SIGINT:
        count += 1
        print(f"INT {count}", flush=True)
    elif number == signal.SIGUSR1:
        os._exit(5)
    else:
        os.unlink(sys.argv[1])
        os._exit(6)
"""

SOMEBODY = 65_532  # a user without processes
AS_SOMEBODY = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}


class Terminal:
    """A process that leads the session of a new terminal."""

    def __init__(self, case, *words, **environment):
        self.case = case
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(words[0], words, {**os.environ, "FILETIMER_DIR": case.dir, "TERM": "xterm",
                                            "PS1": "", **environment})
            finally:
                os._exit(99)
        self.status = None
        case.addCleanup(self.close)

    def type(self, text):
        os.write(self.fd, text.encode())

    def read_until(self, wanted):
        """Returns what was written up to and with `wanted`."""
        end = time.monotonic() + BOUND_S
        while wanted not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(end - time.monotonic(), 0))
            self.case.assertTrue(ready, f"no '{wanted}' in '{self.text}'")
            try:
                self.text += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:  # all that had the terminal open have ended
                self.case.fail(f"ended without '{wanted}': '{self.text}'")
        before, _, self.text = self.text.partition(wanted)
        return before + wanted

    def exit_status(self):
        """Waits for the end of the process."""
        end = time.monotonic() + BOUND_S
        while self.status is None:
            self.case.assertLess(time.monotonic(), end, "it does not end")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            elif self.fd >= 0 and select.select([self.fd], [], [], 0.01)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    time.sleep(0.01)
        return os.waitstatus_to_exitcode(self.status)

    def hang_up(self):
        os.close(self.fd)
        self.fd = -1

    def close(self):
        if self.fd >= 0:
            self.hang_up()
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class TerminalCase(ServerCase):
    def setUp(self):
        super().setUp()
        self.pid_file = os.path.join(self.folder, "command")
        self.addCleanup(self.end_command)

    def end_command(self):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(self.pid_file) as file:
                os.kill(int(file.read()), signal.SIGKILL)

    @property
    def command(self):
        return (sys.executable, "-c", COMMAND, self.pid_file)

    def start(self, *words):
        """Returns the terminal and COMMAND's pid, once COMMAND runs."""
        terminal = Terminal(self, *words, *self.command)
        return terminal, self.command_pid(terminal)

    def command_pid(self, terminal):
        """Waits until COMMAND has written all that it writes at its start."""
        terminal.read_until("pid ")
        pid = int(terminal.read_until(".")[:-1])
        wait_until(lambda: os.path.exists(self.pid_file))
        return pid


class Run(TerminalCase):
    def test_ctrl_c_reaches_command_once(self):
        terminal, pid = self.start(CLIENT, "run", "--timeout", "1h", "--")
        for count in range(1, 6):
            terminal.type("\x03")
            terminal.read_until(f"INT {count}")
        os.kill(pid, signal.SIGUSR1)
        self.assertEqual(terminal.exit_status(), 5)
        self.assertNotIn("INT", terminal.text)
        self.assertEqual(self.records("expired"), [])

    def test_ctrl_c_reaches_a_command_that_has_left_the_group(self):
        terminal, pid = self.start(CLIENT, "run", "--", "setsid")
        terminal.type("\x03")
        terminal.read_until("INT 1")
        os.kill(pid, signal.SIGUSR1)
        self.assertEqual(terminal.exit_status(), 5)

    def test_a_signal_to_run_alone_reaches_command(self):
        terminal, _ = self.start(CLIENT, "run", "--")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.read_until("INT 1")
        os.kill(terminal.pid, signal.SIGUSR1)
        self.assertEqual(terminal.exit_status(), 5)

    def test_command_ends_when_the_terminal_hangs_up(self):
        terminal, _ = self.start(CLIENT, "run", "--")
        terminal.hang_up()  # of the session the kernel tells the leader only, which is run
        self.assertEqual(terminal.exit_status(), 6)
        self.assertFalse(os.path.exists(self.pid_file))

    def test_ctrl_backslash_ends_command_and_its_exit_says_so(self):
        terminal, _ = self.start(CLIENT, "run", "--")
        terminal.type("\x1c")
        self.assertEqual(terminal.exit_status(), 128 + signal.SIGQUIT)

    def test_the_exit_is_commands_where_the_caller_ignores_sigchld(self):
        for program in (CLIENT, "run"), (SERVER, "--dir", os.path.join(self.folder, "other")):
            done = subprocess.run(
                [*program, "--", "sh", "-c", "exit 7"], stdout=subprocess.PIPE, timeout=BOUND_S,
                env={**os.environ, "FILETIMER_DIR": self.dir},
                preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
            self.assertEqual(done.returncode, 7, program)

    def test_command_ignores_what_the_caller_ignores(self):
        done = subprocess.run(
            [CLIENT, "run", "--", "grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE,
            env={**os.environ, "FILETIMER_DIR": self.dir}, timeout=BOUND_S,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        ignored = int(done.stdout.split()[1], 16)
        self.assertTrue(ignored >> (signal.SIGHUP - 1) & 1)
        self.assertFalse(ignored >> (signal.SIGCHLD - 1) & 1)

    def test_a_command_waits_for_a_server_that_is_being_started(self):
        dir = os.path.join(self.folder, "later")
        run = subprocess.Popen([CLIENT, "run", "--dir", dir, "--", "sh", "-c", "exit 7"],
                               env={**os.environ, "FILETIMER_MISSING": "wait"})
        self.addCleanup(suite.end, run)
        with self.assertRaises(subprocess.TimeoutExpired):  # it waits
            run.wait(timeout=0.2)
        with filetimer.Server(dir=dir):
            self.assertEqual(run.wait(timeout=BOUND_S), 7)

    def test_a_server_that_is_there_later_is_asked_for_the_rest_of_the_timeout(self):
        pipe = os.path.join(self.folder, "requests")
        os.mkfifo(pipe)
        run = subprocess.Popen([CLIENT, "run", "--dir", self.folder, "--timeout", "1h", "--", "sleep", "60"],
                               stderr=subprocess.PIPE, text=True, env={**os.environ, "FILETIMER_MISSING": "ignore"})
        self.addCleanup(suite.end, run)
        run.stderr.readline()  # no server
        self.assertIn("is watched once", run.stderr.readline())
        latest = time.time() + 3600
        with open(pipe, encoding="utf-8") as requests:
            self.assertLess(json.loads(requests.readline())["expiration_time"], latest)

    def test_a_command_for_which_there_is_no_process_exits_125(self):
        if os.geteuid() != 0:  # no limit of processes binds root
            self.skipTest("no process of another user can be started here")
        folder = suite.folder_of(self, "python", "/tmp")
        os.chmod(folder, 0o755)
        os.mkdir(folder + "/own")
        os.chown(folder + "/own", SOMEBODY, SOMEBODY)
        for program, words in (CLIENT, ("run",)), (SERVER, ("--dir", folder + "/own/run")):
            copy = shutil.copy(program, folder)
            os.chmod(copy, 0o755)  # the umask of the build may forbid others to execute it
            said = b""
            for count in range(1, 30):
                done = subprocess.run(
                    [copy, *words, "--", "true"], stderr=subprocess.PIPE, timeout=BOUND_S,
                    env={**os.environ, "FILETIMER": "off"}, **AS_SOMEBODY,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (count, count)))
                if done.returncode == 0:
                    break
                self.assertEqual(done.returncode, 125, done.stderr)
                said += done.stderr
            self.assertIn(b"cannot run 'true': Resource temporarily unavailable", said)


class Logs(ServerCase):
    def test_what_is_expected_where_no_log_is_known_is_what_the_command_takes(self):
        os.chmod(self.folder, 0o700)
        for command in "log", "show", "report", "suggest":
            done = subprocess.run([CLIENT, command], env={"XDG_RUNTIME_DIR": self.folder}, stderr=subprocess.PIPE,
                                  text=True, cwd=self.folder, timeout=BOUND_S)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr.splitlines()[0], "timer_client: no log is known: expected FILE, --dir, "
                             "$FILETIMER_DIR, $XDG_STATE_HOME or $HOME")

    def test_show_prints_an_expiry_whose_host_name_has_a_newline(self):
        log = '{"schema":1,"event":"expired","host":"a\\nb","id":"x-1","pid":4711,"scope":"step"}\n'
        for words in ("last",), ("x-1",):
            done = subprocess.run([CLIENT, "show", *words, "-"], input=log, stdout=subprocess.PIPE, text=True,
                                  timeout=BOUND_S)
            self.assertIn("pid 4711 hung in `step`", done.stdout)

    def test_an_empty_word_names_no_expiry(self):
        log = '{"schema":1,"event":"expired","id":"x-1","pid":4711,"scope":"step"}\n'
        for command in "show", "report":
            done = subprocess.run([CLIENT, command, "", "-"], input=log, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, cwd=self.folder, timeout=BOUND_S)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (2, "", f"timer_client: {command}: ID: '': expected a name\n"))

    def test_the_pipe_of_the_default_directory_names_no_other_log(self):
        os.mkdir(self.folder + "/filetimer", 0o700)
        for fifo in (), ("--fifo", self.folder + "/filetimer/requests"):
            done = subprocess.run([CLIENT, "log", *fifo], stderr=subprocess.PIPE, text=True, timeout=BOUND_S,
                                  env={"XDG_RUNTIME_DIR": self.folder, "XDG_STATE_HOME": self.folder})
            self.assertIn(" (the default place: no FILE, no --dir, no $FILETIMER_DIR)", done.stderr)

    def test_files_that_are_named_need_no_server(self):
        log = '{"schema":1,"event":"expired","id":"x-1","pid":4711,"scope":"step"}\n'
        for words in ("show", "-"), ("show", "x-1", "-"), ("report", "last", "-", "-o", "-"), ("log", "-"):
            done = subprocess.run([CLIENT, *words, "--fifo", "/none"], input=log, stdout=subprocess.PIPE, text=True,
                                  timeout=BOUND_S)
            self.assertIn("4711", done.stdout)

    def test_a_followed_log_loses_nothing_that_is_written_just_before_its_rename(self):
        log = pathlib.Path(self.folder, "log")
        log.write_text('{"schema":1,"event":"x"}\n')
        # At the end of the file it looks, half a second later, whether another one has the name.
        follow = subprocess.Popen([*with_slow("newfstatat", "delay_enter", 250_000), CLIENT, "log", "--follow",
                                   "--json", log], stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, follow)
        follow.stdout.readline()
        for last, first in ("a", "b"), ("c", "d"), ("e", "f"):
            time.sleep(0.1)
            with log.open("a") as file:
                file.write(f'{{"schema":1,"event":"{last}"}}\n')
            log.rename(log.with_suffix(".1"))
            log.write_text(f'{{"schema":1,"event":"{first}"}}\n')
            for event in last, first:
                self.assertEqual(json.loads(follow.stdout.readline())["event"], event)

    def test_files_may_follow_two_dashes(self):
        with open(os.path.join(self.folder, "-x"), "w") as file:
            file.write('{"schema":1,"event":"expired","id":"x-1","pid":4711,"scope":"step"}\n')
        for words in ("show", "last", "--", "-x"), ("log", "/dev/null", "--", "-x"), (
                "show", "--", "last", "-x"), ("report", "-o", "-", "x-1", "--", "-x"):
            done = subprocess.run([CLIENT, *words], stdout=subprocess.PIPE, text=True, cwd=self.folder, timeout=BOUND_S)
            self.assertIn("4711", done.stdout)


class OtherUsers(TerminalCase):
    def test_no_process_of_another_user_is_asked_to_be_watched(self):
        if os.geteuid() != 0:
            self.skipTest("no process of another user can be started here")
        folder = suite.folder_of(self, "python", "/tmp")
        os.chmod(folder, 0o755)
        copy = shutil.copy(CLIENT, folder)
        os.chmod(copy, 0o755)
        done = subprocess.run([copy, "acquire", "--dir", folder, "--scope", "s", "--timeout", "1h", "--pid",
                               str(os.getpid())], stderr=subprocess.PIPE, text=True, timeout=BOUND_S, **AS_SOMEBODY)
        self.assertEqual(done.returncode, 6)
        self.assertIn(f"cannot watch process {os.getpid()}: Operation not permitted", done.stderr)

    def test_a_set_uid_program_is_a_process_of_the_user_that_it_runs_as(self):
        if os.geteuid() != 0:
            self.skipTest("no process of another user can be started here")
        folder = suite.folder_of(self, "python", "/tmp")
        os.chmod(folder, 0o755)
        program = shutil.copy(shutil.which("sleep"), folder)
        os.chmod(program, 0o4755)
        os.mkdir(folder + "/own")
        os.chown(folder + "/own", SOMEBODY, SOMEBODY)
        worker = subprocess.Popen([program, "60"], **AS_SOMEBODY)
        self.addCleanup(suite.end, worker)
        if f"\nUid:\t{SOMEBODY}\t0\t" not in pathlib.Path(f"/proc/{worker.pid}/status").read_text():
            self.skipTest("this machine does not allow a set-uid program in /tmp")
        copy = shutil.copy(SERVER, folder)
        os.chmod(copy, 0o755)
        server = subprocess.Popen([copy, "--dir", folder + "/own/run"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, **AS_SOMEBODY)
        self.addCleanup(suite.end, server)
        server.stdout.readline()
        with open(folder + "/own/run/requests", "w") as pipe:
            pipe.write('{"version": 1, "pid": %d, "scope_id": "x", "expiration_time": 1, "signal": 9}\n' % worker.pid)
        self.assertIn(f"pid {worker.pid} belongs to user 0: expected a process of user {SOMEBODY}", server.stderr.readline())


class PipeOfAnotherServer(ServerCase):
    def setUp(self):
        super().setUp()
        self.other = filetimer.Server(dir=os.path.join(self.folder, "other"))
        self.addCleanup(self.other.close)

    def run_client(self, *words, prefix=()):
        return subprocess.run([*prefix, CLIENT, words[0], "--fifo", self.other.fifo, *words[1:]],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=BOUND_S)

    def test_fifo_names_the_server_in_whose_directory_it_lies(self):
        run = self.run_client("run", "--dir", self.dir, "--timeout", "50ms", "--", "sleep", "60")
        self.assertEqual(run.returncode, 124)
        self.assertIn(f" --dir {self.other.dir}' says more\n", run.stderr)
        acquire = ("acquire", "--scope", "s", "--timeout", "1h", "--pid", str(os.getpid()))
        self.assertEqual(self.run_client(*acquire).returncode, 0)
        for place in (), ("--dir", self.dir):
            self.assertTrue(self.run_client("ping", *place).stdout.startswith(f"pid {self.other.pid} answered"))
            wait_until(lambda: f'"pid":{os.getpid()},' in self.run_client("list", "--json", *place).stdout)
            self.assertIn("hung in `sleep`", self.run_client("show", "last", *place).stdout)
        self.assertEqual(self.run_client("drain").returncode, 0)
        self.assertEqual(self.run_client(*acquire[:2], "new", *acquire[3:]).returncode, 6)
        self.assertEqual(self.open_scopes(), [])

    def test_no_pid_of_a_kernel_thread_is_sent_to_it(self):
        stat = pathlib.Path("/proc/2/stat")
        if os.geteuid() or not stat.exists() or not int(stat.read_text().rpartition(")")[2].split()[6]) & 0x200000:
            self.skipTest("no kernel thread of this user is in sight")
        acquire = self.run_client("acquire", "--scope", "s", "--timeout", "1h", "--pid", "2")
        self.assertEqual(acquire.returncode, 2)
        self.assertIn("pid 2 is not a process's own id (a thread's?): expected a process\n", acquire.stderr)
        line = '{"version":1,"pid":2,"scope_id":"s","expiration_time":0,"signal":0}\n'
        pathlib.Path(self.server.fifo).write_text(line)
        self.assertEqual(self.record("rejected")["reason"], "pid 2 is a thread of the kernel")

    def test_no_pid_of_another_namespace_is_sent_to_it(self):
        prefix = ("unshare", "--pid", "--fork", "--mount-proc")
        if not shutil.which("unshare") or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("unshare(1) makes no pid namespace here")
        run = self.run_client("run", "--timeout", "1h", "--", "true", prefix=prefix)
        self.assertEqual(run.returncode, 125)
        self.assertIn("lives in another pid namespace", run.stderr)

    def test_the_exit_of_a_command_that_expired_is_124_also_where_another_boot_id_is_seen(self):
        boot = os.path.join(self.folder, "boot")
        with open(boot, "w") as file:
            file.write("5d2c0a1e-7f57-4c4e-9a57-0b8f8f0c2a11\n")
        prefix = ("unshare", "--mount", "sh", "-c",
                  'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', boot)
        if not shutil.which("unshare") or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("unshare(1) makes no namespace here")
        run = self.run_client("run", "--timeout", "100ms", "--", "sleep", "60", prefix=prefix)
        self.assertEqual((run.returncode, run.stderr), (124, "timer_client: 'sleep' expired after 100ms\n"))


class ServerAroundCommand(TerminalCase):
    def start_server(self):
        return self.start(SERVER, "--dir", os.path.join(self.folder, "other"), "--")

    def test_ctrl_c_reaches_command_once(self):
        terminal, pid = self.start_server()
        terminal.type("\x03")
        terminal.read_until("INT 1")
        os.kill(pid, signal.SIGUSR1)
        self.assertEqual(terminal.exit_status(), 5)
        self.assertNotIn("INT", terminal.text)

    def test_command_ends_when_the_terminal_hangs_up(self):
        terminal, _ = self.start_server()
        terminal.hang_up()
        self.assertEqual(terminal.exit_status(), 6)
        self.assertFalse(os.path.exists(self.pid_file))

    def test_it_ends_with_command_also_if_sweeps_take_longer_than_their_interval(self):
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--max-interval", "1ms", "--", "sh", "-c",
             # Stopped, the server does not sweep 10,000 times meanwhile.
             "cd $FILETIMER_DIR/scopes && kill -STOP $PPID && seq -f .%.0f 10000 | xargs touch; kill -CONT $PPID"],
            stderr=subprocess.PIPE, timeout=BOUND_S)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_message_has_the_time_for_which_the_scope_was_open(self):
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--", CLIENT, "run", "--timeout", "200ms", "--",
             "sleep", "60"], stderr=subprocess.PIPE, timeout=BOUND_S)
        self.assertEqual(done.returncode, 124)
        self.assertRegex(done.stderr, br"expired in 'sleep' after ([2-9]\d\d ms|[\d.]+ s): to be sent SIGKILL")

    def test_what_it_runs_beside_command_reads_none_of_its_input(self):
        read = os.path.join(self.folder, "read")
        hook = f"cat >>'{read}'; echo . >>'{read}'"
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--on-expiry", hook, "--on-warning", hook,
             "--evidence-command", hook, "--", "sh", "-c",
             f"'{CLIENT}' run --timeout 200ms --warn-after 100ms -- sleep 60; cat"],
            input=b"mine", stdout=subprocess.PIPE, timeout=BOUND_S)
        self.assertEqual(done.stdout, b"mine")
        with open(read) as file:
            self.assertEqual(set(file.read()), set(".\n"))

    def test_a_kill_of_command_hits_what_its_orphans_have_started_behind_a_hook(self):
        hooked, child = (os.path.join(self.folder, name) for name in ("hooked", "child"))
        orphan = (f"until [ -e '{hooked}' ]; do sleep 0.01; done; sleep 60 & "
                  f"echo $! >'{child}.new'; mv '{child}.new' '{child}'; wait")
        command = (f"( ({orphan}) & ); '{CLIENT}' acquire --scope a --timeout 1h --warn-after 100ms; "
                   f"until [ -e '{child}' ]; do sleep 0.01; done; '{CLIENT}' acquire --scope b --timeout 1ms; sleep 60")
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--evidence", "none", "--on-warning",
             f"touch '{hooked}'", "--", "sh", "-c", command], timeout=BOUND_S)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL)
        pid = int(pathlib.Path(child).read_text())
        wait_until(lambda: state_of(pid) in ("", "Z"))

    def test_command_may_lock_as_much_memory_as_the_caller(self):
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--", "sh", "-c", "ulimit -l"],
            stdout=subprocess.PIPE, timeout=BOUND_S,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65_536, 65_536)))
        self.assertEqual(done.stdout, b"64\n")


class StandardError(ServerCase):
    def test_a_log_that_cannot_be_renamed_is_told_once(self):
        log = os.path.join(self.folder, "log")
        os.mkdir(log + ".1")
        line = '{"version": 1, "pid": %d, "scope_id": "%d", "expiration_time": 1, "signal": 0}\\n'
        command = f"for i in $(seq 30); do printf '{line}' $$ $i >$TORCHELASTIC_TIMER_FILE; sleep 0.01; done"
        done = subprocess.run(
            [SERVER, "--dir", os.path.join(self.folder, "other"), "--log", log, "--log-max", "4K", "--evidence",
             "none", "--", "sh", "-c", command], stderr=subprocess.PIPE, timeout=BOUND_S)
        self.assertEqual(done.stderr.count(f"cannot rename the log '{log}': Is a directory".encode()), 1)
        self.assertGreater(os.path.getsize(log), 8192)


class StandardOutput(ServerCase):
    def test_help_that_cannot_be_written_is_an_error(self):
        for program in CLIENT, SERVER:
            for word in "--help", "--version":
                with open("/dev/full", "w") as full:
                    done = subprocess.run([program, word], stdout=full, stderr=subprocess.PIPE, timeout=BOUND_S)
                self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), (program, word))
                self.assertIn(b"cannot write to standard output", done.stderr)


class StandardError(ServerCase):
    def test_errors_that_cannot_be_written_change_no_exit_status(self):
        none = os.path.join(self.folder, "none")
        read, broken = os.pipe()
        os.close(read)
        with open("/dev/full", "w") as full, open(broken, "w") as broken:
            for stderr, script in ((full, 'exec "$@"'), (full, 'exec "$@" 2>&-'), (broken, 'exec "$@"')):
                for words, status in (((CLIENT, "ping", "--dir", none), 4), ((SERVER, "--no"), 2),
                                      ((CLIENT, "run", "--dir", none, "--", "true"), 125)):
                    with self.subTest(stderr=stderr.name, script=script, words=words):
                        if words[0] != SERVER or stderr is full:
                            done = subprocess.run(["sh", "-c", script, "sh", *words], stderr=stderr, timeout=BOUND_S)
                            self.assertEqual(done.returncode, status)


class Detached(TerminalCase):
    def test_it_does_not_hold_the_output_of_its_caller(self):
        done = subprocess.run([SERVER, "--dir", os.path.join(self.folder, "other"), "--detach"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOUND_S)
        pid = int(done.stdout.rpartition(b"pid=")[2])
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: state_of(pid) in ("", "Z"))

    def test_its_messages_go_to_the_system_log(self):
        dir, dev = os.path.join(self.folder, "other"), os.path.join(self.folder, "dev")
        os.mkdir(dev)
        log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(log.close)
        log.bind(dev + "/log")
        log.settimeout(BOUND_S)
        # Not a copy of /dev/null: no device can be opened below a /tmp that is mounted with nodev.
        with_log = ': >"$0/null" && mount --bind /dev/null "$0/null" && mount --rbind "$0" /dev && exec "$@"'
        words = ("unshare", "--mount", "sh", "-c", with_log, dev)
        if not shutil.which("unshare") or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this machine does not allow a new mount namespace")
        done = subprocess.run([*words, SERVER, "--dir", dir, "--detach"], stdout=subprocess.PIPE, timeout=BOUND_S)
        self.addCleanup(os.kill, int(done.stdout.rpartition(b"pid=")[2]), signal.SIGKILL)
        with open(dir + "/requests", "w") as pipe:
            pipe.write("rubbish\n")
        warning_of_a_daemon = 3 << 3 | 4
        self.assertRegex(log.recv(4096), b"^<%d>.* timer_server\\[\\d+\\]: 1 request rejected" % warning_of_a_daemon)

    def test_its_log_is_no_file_of_its_caller(self):
        for log in "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1":
            done = subprocess.run([SERVER, "--dir", os.path.join(self.folder, "other"), "--detach", "--log", log],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOUND_S)
            self.assertEqual((done.returncode, done.stdout), (2, b""))

    def start_that_waits(self):
        """Returns the caller of a server whose start waits, and the server's pid."""
        dir = os.path.join(self.folder, "other")
        os.mkdir(dir, 0o700)
        os.mkfifo(dir + "/requests", 0o600)
        reader = os.open(dir + "/requests", os.O_RDWR)  # for which a start waits
        self.addCleanup(os.close, reader)
        caller = subprocess.Popen([SERVER, "--dir", dir, "--detach"], stderr=subprocess.DEVNULL,
                                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(suite.end, caller)
        children = pathlib.Path(f"/proc/{caller.pid}/task/{caller.pid}/children")
        server = int(wait_until(children.read_text))
        os.kill(server, signal.SIGSTOP)  # it would wait for a second only
        return caller, server

    def test_ctrl_c_ends_the_wait_for_its_start(self):
        caller, server = self.start_that_waits()
        caller.send_signal(signal.SIGINT)
        self.assertEqual(caller.wait(timeout=BOUND_S), -signal.SIGINT)
        os.kill(server, signal.SIGKILL)

    def test_one_that_is_killed_before_it_is_ready_has_not_started(self):
        caller, server = self.start_that_waits()
        os.kill(server, signal.SIGKILL)
        self.assertEqual(caller.wait(timeout=BOUND_S), 1)


class Tables(TerminalCase):
    def test_no_line_is_wider_than_the_terminal(self):
        self.client("acquire", "--scope", "step", "--timeout", "1h", "--pid", str(os.getpid()))
        wait_until(lambda: self.open_scopes() == ["step"])
        for columns in range(20, 80, 5):
            terminal = Terminal(self, "/bin/sh", "-c", f"stty cols {columns}; '{CLIENT}' list; echo done.")
            lines = terminal.read_until("done.").split("\r\n")[:-1]
            self.assertEqual(len(lines), 2)
            self.assertLessEqual(max(map(len, lines)), columns, lines)


class Shell(TerminalCase):
    def setUp(self):
        bash = shutil.which("bash")
        if not bash:
            self.skipTest("no bash")
        super().setUp()
        self.shell = Terminal(self, bash, "--norc", "--noprofile", "-i")
        self.shell.type(f"stty -echo; t() {{ '{CLIENT}' \"$@\"; }}; echo READ''Y\n")
        self.shell.read_until("READY")

    def say(self, line, wanted):
        self.shell.type(line + "\n")
        return self.shell.read_until(wanted)

    def test_acquire_watches_the_shell_that_calls_it(self):
        self.say("t acquire --scope typed --timeout 1h; echo exit $?.", "exit 0.")
        self.say("(t acquire --scope below --timeout 1h; echo sub $BASHPID.; sleep 60) &", "sub ")
        below = int(self.shell.read_until(".")[:-1])
        wait_until(lambda: (
            self.open_scopes(self.shell.pid), self.open_scopes(below)) == (["typed"], ["below"]))
        self.say("kill %1; t release --scope typed; echo exit $?.", "exit 0.")
        wait_until(lambda: self.open_scopes(self.shell.pid) == []
                        and self.open_scopes(below) == [])

    def test_run_in_the_background_ends_as_command_does(self):
        self.say("t run --timeout 1h -- sh -c 'exit 9' & wait $!; echo exit $?.", "exit 9.")

    def test_run_ends_in_the_background_of_a_terminal_that_stops_writers(self):
        self.shell.type("stty tostop\n")
        self.say("t run --timeout 50ms -- sleep 60 & wait $!; echo exit $?.", "exit 124.")
        self.say("t drain; t run -- sh -c 'exit 9' & wait $!; echo exit $?.", "exit 9.")

    def test_run_stops_with_command_at_ctrl_z_and_goes_on_with_it(self):
        words = " ".join(f"'{word}'" for word in self.command)
        self.shell.type(f"t run --timeout 1h -- {words}\n")
        pid = self.command_pid(self.shell)
        wait_until(lambda: self.open_scopes(pid) != [])
        self.shell.type("\x1a")
        self.shell.read_until("Stopped")
        wait_until(lambda: state_of(pid) == "T")
        self.shell.type("fg\n")
        wait_until(lambda: state_of(pid) == "S")
        self.shell.type("\x03")
        self.shell.read_until("INT 1")
        os.kill(pid, signal.SIGUSR1)
        self.say("echo exit $?.", "exit 5.")

    def test_run_and_a_server_stop_with_a_command_that_sets_the_terminal_and_go_on_with_it(self):
        place = f"--dir '{os.path.join(self.folder, 'other')}'"
        for program in (f"'{CLIENT}' run --timeout 1h", f"'{SERVER}' {place}"):
            self.shell.type(f"{program} -- sh -c 'stty -echo; exit 5' &\n")
            wait_until(lambda: "Stopped" in self.say("jobs; echo list''ed.", "listed."))
            self.say("fg; echo exit $?.", "exit 5.")

    def test_a_hook_writes_to_a_terminal_that_stops_writers(self):
        place = f"--dir '{os.path.join(self.folder, 'other')}'"
        self.say(f"stty tostop; '{SERVER}' {place} --on-expiry 'echo hooked' &", "ready ")
        self.say(f"t run {place} --timeout 50ms -- sleep 60", "hooked")
        self.say("kill %1; wait; echo ended.", "ended.")

    def test_colours_are_for_terminals_only(self):
        self.record("server_started")  # a server is ready before its log is written
        colour = r"\x1b\[[0-9;]*m"
        self.assertRegex(self.say("t log; echo done.", "done."), colour)
        self.assertNotRegex(self.say("t log | cat; echo done.", "done."), colour)
        self.assertNotRegex(self.say("NO_COLOR=1 t log; echo done.", "done."), colour)


class StoppedCommand(ServerCase):
    def test_it_runs_on_and_ends_when_its_server_is_asked_to_end(self):
        for ask in (lambda: server.terminate(), lambda: self.client("shutdown")):
            self.server.close()
            server = subprocess.Popen([SERVER, "--dir", self.dir, "--", "sh", "-c", "echo $$; kill -STOP $$; sleep 60"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.addCleanup(suite.end, server)
            command = int(server.stdout.readline())
            wait_until(lambda: state_of(command) == "T")
            ask()
            self.assertEqual(server.wait(timeout=BOUND_S), 128 + signal.SIGTERM)


if __name__ == "__main__":
    suite.main()
