# SPDX-License-Identifier: MIT
"""What the server sees of a worker: its threads, files, times and children, its stacks within the time limit, and
the drop-ins of the tree.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest
import unittest.mock

import filetimer
import suite
from filetimer import _ask
from harness import CLIENT, SERVER, ServerCase, run_python
from records import judge_logs, records, wait_for_record

WAIT = """
with filetimer.expires(60):
    say("in")
    sys.stdin.read()
"""

# Threads that wait in a system call each, and where its descriptor leads.
CALLS = """
import ctypes, fcntl, json, select, socket
filetimer.configure()
waiting = {}
def wait(name, file, call, *args):
    waiting[name] = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    threading.Thread(target=call, args=args, daemon=True).start()
def full():
    sockets = socket.socketpair()
    sockets[0].setblocking(False)
    try:
        while True:
            sockets[0].send(bytes(4096))
    except BlockingIOError:
        sockets[0].setblocking(True)
    kept.append(sockets)
    return sockets[0]
def empty():
    kept.append(socket.socketpair())
    return kept[-1][0]
def locked():
    path = os.environ["FILETIMER_DIR"] + ".locked"
    kept.append(os.open(path, os.O_RDWR | os.O_CREAT))
    fcntl.flock(kept[-1], fcntl.LOCK_EX)
    return os.open(path, os.O_RDWR)
kept = []
for name in "read", "readv":
    one = empty()
    wait(name, one, getattr(os, name), one.fileno(), 1 if name == "read" else [bytearray(1)])
for name in "write", "writev":
    one = full()
    wait(name, one, getattr(os, name), one.fileno(), b"x" if name == "write" else [b"x"])
for name, one, call, *args in (("recvfrom", empty(), "recv", 1), ("recvmsg", empty(), "recvmsg", 1),
                               ("sendto", full(), "send", b"x"), ("sendmsg", full(), "sendmsg", [b"x"])):
    wait(name, one, getattr(one, call), *args)
for name in "accept4", "accept":
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind("")
    kept[-1].listen()
    call, args = (kept[-1].accept, ()) if name == "accept4" else (ctypes.CDLL(None).accept,
                                                                  (kept[-1].fileno(), None, None))
    wait(name, kept[-1], call, *args)
one = select.epoll()
wait("epoll_wait" if os.uname().machine == "x86_64" else "epoll_pwait", one, one.poll)
one = locked()
wait("flock", one, fcntl.flock, one, fcntl.LOCK_EX)
with filetimer.expires(3600):
    say(json.dumps(waiting))
    time.sleep(60)
"""


class Seen(ServerCase):
    def dump(self, pid):
        [worker] = json.loads(self.client("dump", "--json", "--pid", str(pid)))["workers"]
        return worker

    def test_the_file_behind_the_call_of_each_thread(self):
        worker = self.start_worker(CALLS)
        waiting = json.loads(worker.stdout.readline())
        def missing():
            threads = self.dump(worker.pid)["threads"]
            return waiting.items() - {each["syscall"]: each.get("syscall_fd") for each in threads}.items()
        suite.wait_until(lambda: not missing(), "a thread with its call and file")

    def test_64_children(self):
        worker = self.start_worker("""
            filetimer.configure()
            for _ in range(70):
                if os.fork() == 0:
                    sys.stdin.read()
                    os._exit(0)
            with filetimer.expires(60):
                say(open("/proc/self/comm").read().strip())
                sys.stdin.read()
            """)
        comm = worker.stdout.readline().strip()
        suite.wait_until(lambda: [(each["comm"], each["state"]) for each in self.dump(worker.pid)["children"]]
                         == [(comm, "S")] * 64)

    def test_the_time_and_the_memory_that_a_worker_has_used(self):
        worker = self.start_worker("""
            filetimer.configure()
            zeroes = os.open("/dev/zero", os.O_RDONLY)  # the vDSO of Linux 6.11 makes random bytes in user time
            while os.times().system < os.times().user + 0.3:
                os.read(zeroes, 1 << 22)
            say(os.times().user, os.times().system, open("/proc/self/statm").read().split()[1])
            with filetimer.expires(0.1):
                time.sleep(60)
            """)
        user, system, pages = map(float, worker.stdout.readline().split())
        evidence = self.record("evidence", worker.pid)
        self.assertAlmostEqual(evidence["cpu_user_s"], user, delta=0.15)
        self.assertAlmostEqual(evidence["cpu_system_s"], system, delta=0.15)
        self.assertAlmostEqual(evidence["threads"][0]["cpu_s"], user + system, delta=0.15)
        self.assertAlmostEqual(evidence["rss_bytes"] / os.sysconf("SC_PAGE_SIZE"), pages, delta=pages / 2)

    def test_a_thread_that_runs_waits_in_no_function_of_the_kernel(self):
        worker = self.start_worker("""
            with filetimer.expires(0.2):
                while True:
                    pass
            """)
        evidence = self.record("evidence", worker.pid)
        self.assertNotEqual(evidence.get("wchan"), "0")

    def test_threads_that_have_ended_meanwhile_are_not_listed(self):
        workers = [self.start_worker("""
            import ctypes
            libc = ctypes.CDLL(None)
            def start_others():
                one = ctypes.c_ulong()
                while True:
                    if libc.pthread_create(ctypes.byref(one), None, libc.usleep, ctypes.c_void_p(3000)) == 0:
                        libc.pthread_detach(one)
            threading.Thread(target=start_others, daemon=True).start()
            with filetimer.expires(0.5):
                time.sleep(60)
            """) for _ in range(8)]
        for each in workers:
            each.wait(suite.BOUND_S)
            threads = self.record("evidence", each.pid)["threads"]
            self.assertEqual([thread for thread in threads if thread["state"] == "?"], [])

    def test_the_helpers_end_with_the_evidence(self):
        worker = self.start_worker("with filetimer.expires(0.1): time.sleep(60)")
        self.record("killed", worker.pid)
        children = pathlib.Path(f"/proc/{self.server.pid}/task").glob
        suite.wait_until(lambda: not any(each.read_text() for each in children("*/children")))

    def test_a_program_in_a_mount_namespace_of_its_own(self):
        program = os.path.join(os.environ["FILETIMER_BIN_DIR"], "stacks_worker")
        mount = f'mount -t tmpfs none "$0" && cp "{program}" "$0/mine" && '
        words = ("unshare", "--mount", "sh", "-c")
        folder = suite.folder_of(self, "python")
        if not shutil.which("unshare") or subprocess.run([*words, mount + "exit 0", folder],
                                                         stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this machine does not allow a new mount namespace")
        for execute, wanted in (('exec "$0/mine" hang 0', "'hang::in_read(int)+0x"),
                                ('exec 7<"$0/mine" && umount -l "$0" && exec /proc/self/fd/7 hang 0',
                                 "files of code that were not found: mine")):
            with self.subTest(wanted):
                worker = subprocess.Popen([*words, mount + execute, folder], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True)
                self.addCleanup(suite.end, worker)
                self.assertEqual(worker.stdout.readline(), "ready\n")
                self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", str(worker.pid))
                suite.wait_until(lambda: wanted in str(self.dump(worker.pid)))

    def test_the_place_in_a_function_is_where_it_goes_on(self):
        worker = self.start_worker("""
            import ctypes
            libc, frames = ctypes.CDLL(None), (ctypes.c_void_p * 99)()
            count = libc.backtrace(frames, 99)
            libc.backtrace_symbols.restype = ctypes.POINTER(ctypes.c_char_p)
            [main] = [each for each in libc.backtrace_symbols(frames, count)[:count] if b"__libc_start_main" in each]
            with filetimer.expires(60):
                say(main.decode().partition("(")[2].partition(")")[0])
                time.sleep(60)
            """)
        main = worker.stdout.readline().strip()
        suite.wait_until(lambda: f"'{main} (libc.so.6)'" in str(self.dump(worker.pid)["threads"]), main)

    def test_each_of_many_workers_that_hang_together_has_its_turn(self):
        workers = [subprocess.Popen(["sleep", "60"]) for _ in range(64)]
        for each in workers:
            self.addCleanup(suite.end, each)
        line = '{"version": 1, "pid": %d, "scope_id": "x", "expiration_time": %f, "signal": 9}\n'
        lines = [line % (each.pid, time.time() + 1) for each in workers]
        pathlib.Path(self.server.fifo).write_text("".join(lines))
        for each in workers:
            each.wait(timeout=suite.BOUND_S)
        self.server.close()  # the log is written to its end
        evidence = self.records("evidence")
        self.assertEqual(len(evidence), 64)
        self.assertNotIn("too many workers", str(evidence))

    def test_a_dump_has_the_job_of_a_worker(self):
        worker = self.start_worker(WAIT, SLURM_JOB_ID="8812")
        worker.stdout.readline()
        suite.wait_until(lambda: self.dump(worker.pid).get("job_id") == "8812")  # a thread of the server reads it


class ShortTime(ServerCase):
    options = ("--evidence-timeout", "800ms")
    dump = Seen.dump

    def test_it_is_shared_by_native_and_python_stacks(self):
        worker = self.start_worker(WAIT)
        worker.stdout.readline()
        def has_both():
            dump = self.dump(worker.pid)
            return "python_threads" in dump and "native_stack" in dump["threads"][0]
        suite.wait_until(has_both, "both stacks")


class LongTime(ServerCase):
    options = ("--evidence-timeout", "20s")

    def test_a_dump_has_the_evidence_of_every_worker(self):
        for _ in range(5):  # two at a time are looked at
            worker = subprocess.Popen(["sleep", "60"])
            self.addCleanup(suite.end, worker)
            self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", str(worker.pid))
        dump = json.loads(self.client("dump", "--json"))["workers"]
        self.assertEqual([len(each.get("threads", [])) for each in dump], [1] * 5)


    def test_a_dump_that_does_not_come_is_waited_for_a_second(self):
        worker = self.start_worker("""
            filetimer.configure()
            signal.pthread_sigmask(signal.SIG_BLOCK, range(46, 65))  # with that for the stacks
            with filetimer.expires(0.3):
                time.sleep(60)
            """)
        evidence = self.record("evidence", worker.pid)
        self.assertIn("no Python stacks: the signal reached no thread of the worker in time", evidence["missing"])
        self.assertLess(evidence["gathered_ms"], 15_000)


class WithoutStacks(ServerCase):
    options = ("--evidence", "proc")

    def test_a_worker_gets_no_signal_for_them(self):
        worker = self.start_worker("with filetimer.expires(0.3): time.sleep(60)")
        self.assertEqual(worker.wait(timeout=30), -signal.SIGKILL)
        evidence = self.record("evidence", worker.pid)
        self.assertNotIn("python_threads", evidence)
        self.assertNotIn("Python", evidence.get("missing", ""))


def server_with_hung_helper(test, *options):
    """Returns a server in the folder `run` beside a helper for native stacks that writes its variables and hangs."""
    folder = suite.folder_of(test, "python")
    helper = pathlib.Path(folder, "filetimer-stacks")
    helper.write_text('#!/bin/sh\nexport -p > "$0.variables"\nexec sleep 60\n')
    helper.chmod(0o755)
    server = filetimer.Server(*options, dir=folder + "/run", executable=shutil.copy(SERVER, folder))
    test.addCleanup(server.close)
    return server


def helper_that_waits(server):
    """Gives the server a helper for stacks that makes the first file returned, and ends once the second one exists."""
    begun, go = (pathlib.Path(os.path.dirname(server.dir), name) for name in ("begun", "go"))
    go.with_name("filetimer-stacks").write_text(f"#!/bin/sh\n: > {begun}\nuntil [ -e {go} ]; do sleep 0.01; done\n")
    return begun, go


class HungHelper(unittest.TestCase):
    def test_of_scopes_that_are_warned_about_together_the_first_open_one_has_the_evidence_and_one_hook_runs(self):
        server = server_with_hung_helper(self, "--on-warning", "true", "--evidence-timeout", "20s")
        begun, go = helper_that_waits(server)
        with filetimer.Client(server.dir) as client, client.expires(60, "known"):
            os.kill(server.pid, signal.SIGSTOP)  # so that one scan finds both
            left, inside = (filetimer.Scope(60, name, client=client, warn_after=0.02) for name in ("left", "inside"))
            left.acquire(), inside.acquire()
            time.sleep(0.05)
            os.kill(server.pid, signal.SIGCONT)
            suite.wait_until(begun.exists)
            left.release()
            go.touch()
            suite.wait_until(lambda: len(records([server.log], "warned")) == 2)
            server.close()
            inside.release()
        self.assertEqual([(each["scope"], "threads" in each) for each in records([server.log], "warned")],
                         [("left", False), ("inside", True)])
        self.assertEqual(len(records([server.log], "hook")), 1)

    def test_a_warning_waits_for_its_evidence_although_another_worker_ends(self):
        server = server_with_hung_helper(self, "--evidence-timeout", "20s")
        begun, go = helper_that_waits(server)
        with filetimer.Client(server.dir) as client, client.expires(60, warn_after=0.02):
            suite.wait_until(begun.exists)
            run_python("import filetimer\nwith filetimer.expires(60): pass",
                       env={**os.environ, "FILETIMER_DIR": server.dir})
            suite.wait_until(lambda: records([server.log], "worker_ended"))
            go.touch()
            suite.wait_until(lambda: records([server.log], "warned"))
        self.assertIn("threads", records([server.log], "warned")[0])

    def test_the_grace_period_begins_with_the_signal_behind_the_evidence(self):
        server = server_with_hung_helper(self, "--evidence-timeout", "250ms")
        run_python("import filetimer, signal, time\n"
                   "with filetimer.expires(0.2, on_expiry='raise', grace=1):\n"
                   "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
                   "    time.sleep(60)", env={**os.environ, "FILETIMER_DIR": server.dir})
        server.close()
        [warned], [expired] = (records([server.log], event) for event in ("warned", "expired"))
        self.assertIn("missing", warned)
        self.assertGreaterEqual(expired["mono_ns"] - warned["mono_ns"], 1_000_000_000)

    def check_dump(self, server, wait_s):
        with filetimer.Client(server.dir) as client, client.expires(60):
            [worker] = _ask.ask(server.fifo, {"request": "dump", "wait_s": wait_s}, suite.BOUND_S)[0]["workers"]
        self.assertIn("time was up", worker["missing"])
        self.assertLess(worker["gathered_ms"], 15_000)

    def test_a_dump_takes_no_longer_than_evidence_may(self):
        variables = {"LD_LIBRARY_PATH": "/none", "DEBUGINFOD_URLS": "/none", "FILETIMER_NONE": "/none"}
        with unittest.mock.patch.dict(os.environ, variables):
            server = server_with_hung_helper(self, "--evidence-timeout", "300ms")
        self.check_dump(server, 60)
        has = pathlib.Path(server.dir, "../filetimer-stacks.variables").read_text()
        self.assertEqual([name in has for name in variables], [True, False, False])

    def test_a_dump_takes_no_longer_than_its_client_waits(self):
        self.check_dump(server_with_hung_helper(self, "--evidence-timeout", "60s"), 0.5)


class Peers(unittest.TestCase):
    def start(self, count, job_of_last="8812"):
        self.workers = []
        for rank in range(count):
            job = job_of_last if rank == count - 1 else "8812"
            worker = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": str(rank), "SLURM_JOB_ID": job})
            self.addCleanup(suite.end, worker)
            self.workers.append(worker)
            self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", str(worker.pid))
        suite.wait_until(lambda: [json.loads(each).get("rank") is not None for each in
                                  self.client("list", "--json").splitlines()] == [True] * count)

    def client(self, *words):
        return subprocess.run([CLIENT, *words, "--dir", self.server.dir], stdout=subprocess.PIPE, text=True,
                              timeout=suite.BOUND_S, check=True).stdout

    def expire(self, rank, **more):
        line = {"version": 1, "pid": self.workers[rank].pid, "scope_id": "load", "signal": 9,
                "expiration_time": time.time(), **more}
        pathlib.Path(self.server.fifo).write_text(json.dumps(line) + "\n")
        wait_for_record(self, self.server.log, "expired", self.workers[rank].pid)
        self.client("ping")

    def peers(self):
        """Ends the server, and returns the ranks of peers whose evidence is recorded."""
        self.server.close()
        judge_logs(self, os.path.dirname(self.server.log))
        return sorted(each["rank"] for each in records([self.server.log], "peer_evidence"))

    def test_one_that_expires_before_its_evidence_is_begun_has_none_as_a_peer(self):
        self.server = server_with_hung_helper(self, "--evidence-timeout", "60s")
        self.start(6)
        for rank in 5, 0, 3:  # two peers are looked at together: 0 and 1
            self.expire(rank)
        self.assertEqual(self.peers(), [0, 1, 2, 4])

    def test_a_kill_does_not_wait_for_the_evidence_of_peers_of_another_job(self):
        self.server = server_with_hung_helper(self, "--evidence-timeout", "60s")
        helper = pathlib.Path(self.server.dir).with_name("filetimer-stacks")
        go = helper.with_name("go")
        helper.write_text(f'#!/bin/sh\n[ -e {go} ] && exit\nread pid rest\n: > "$0.$pid"\nexec sleep 60\n')
        self.start(3, job_of_last="8813")
        self.expire(0)
        suite.wait_until(lambda: all(pathlib.Path(f"{helper}.{each.pid}").exists() for each in self.workers[:2]))
        go.touch()
        self.expire(2)
        self.assertEqual(self.workers[2].wait(timeout=suite.BOUND_S), -signal.SIGKILL)
        self.assertIsNone(self.workers[0].poll())
        self.assertEqual(self.peers(), [1])

    def test_of_many_workers_a_dump_has_those_in_the_least_common_scopes_of_their_job(self):
        self.server = filetimer.Server("--evidence", "none", dir=suite.folder_of(self, "python") + "/run")
        self.addCleanup(self.server.close)
        lines = []
        for job, scope in ("a", "load"), ("b", "load"), ("c", "step"):
            for _ in range(17 if scope == "load" else 20):
                worker = subprocess.Popen(["sleep", "60"], env={**os.environ, "SLURM_JOB_ID": job})
                self.addCleanup(suite.end, worker)
                lines.append({"version": 1, "pid": worker.pid, "scope_id": scope, "signal": 9,
                              "expiration_time": time.time() + 3600})
        pathlib.Path(self.server.fifo).write_text("".join(json.dumps(each) + "\n" for each in lines))
        suite.wait_until(lambda: self.client("list", "--json").count('"job_id":') == len(lines))
        jobs = [each["job_id"] for each in json.loads(self.client("dump", "--json"))["workers"]]
        self.assertEqual([jobs.count(job) for job in "abc"], [17, 17, 14])  # 48 in all

    def test_a_kill_does_not_wait_for_the_evidence_command_of_another_incident(self):
        folder = suite.folder_of(self, "python")
        self.server = filetimer.Server("--evidence", "none", "--evidence-timeout", "60s", "--evidence-command",
                                       "mkdir $FILETIMER_DIR/../first && sleep 60", dir=folder + "/run")
        self.addCleanup(self.server.close)
        self.start(2)
        self.expire(0)
        time.sleep(2.1)
        self.expire(1)
        self.workers[1].wait(timeout=suite.BOUND_S)
        self.assertIsNone(self.workers[0].poll())

    def test_those_that_expire_together_are_no_peers_of_each_other(self):
        self.server = filetimer.Server("--evidence", "proc", "--evidence-timeout", "20s",
                                       dir=suite.folder_of(self, "python") + "/run")
        self.addCleanup(self.server.close)
        self.start(3)
        lines = [{"version": 1, "pid": each.pid, "scope_id": "load", "signal": 9, "expiration_time": time.time()}
                 for each in self.workers[:2]]
        pathlib.Path(self.server.fifo).write_text("".join(json.dumps(each) + "\n" for each in lines))
        for each in self.workers[:2]:
            each.wait(timeout=suite.BOUND_S)
        self.assertEqual(self.peers(), [2])

    def test_each_incident_has_their_evidence_and_that_of_the_drop_ins(self):
        folder = suite.folder_of(self, "python")
        drop_in = pathlib.Path(folder, "job")
        drop_in.write_text("#!/bin/sh\necho $FILETIMER_PIDS\n")
        drop_in.chmod(0o755)
        self.server = filetimer.Server("--evidence", "proc", "--evidence-timeout", "20s", "--evidence-dir", folder,
                                       dir=folder + "/run")
        self.addCleanup(self.server.close)
        self.start(3)
        self.expire(0, signal=int(signal.SIGCONT), x_grace_s=60)  # a worker in its grace period is no peer
        time.sleep(2.1)  # what expires in two seconds is of one incident
        self.expire(1)
        self.workers[1].wait(timeout=suite.BOUND_S)
        self.assertEqual(self.peers(), [1, 2, 2])
        said = [each["output"].split() for each in records([self.server.log], "evidence_command")]
        self.assertEqual(said, [[str(each.pid) for each in self.workers[first:]] for first in (0, 1)])


class DropIns(ServerCase):
    folder_of_them = pathlib.Path(__file__).resolve().parents[2] / "timer_server/evidence.d"
    options = ("--evidence-dir", str(folder_of_them), "--evidence", "proc", "--evidence-timeout", "20s")

    def setUp(self):
        programs = suite.folder_of(self, "python")
        py_spy = pathlib.Path(programs, "py-spy")
        py_spy.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
        py_spy.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}"):
            super().setUp()

    def hang(self, worker):
        """Lets the worker hang, when the server knows the job of each."""
        worker.stdout.readline()
        suite.wait_until(lambda: all("job_id" in each for each in json.loads(self.client("dump", "--json"))["workers"]))
        worker.stdin.close()
        worker.wait(timeout=suite.BOUND_S)

    def record_of(self, name, worker):
        [record] = suite.wait_until(lambda: [each for each in self.records("evidence_command", worker.pid)
                                             if each["drop_in"] == name])
        return record

    def test_py_spy_is_asked_for_the_python_workers_of_the_job(self):
        worker = self.start_worker("""
            with filetimer.expires(60):
                say("in")
                sys.stdin.read()
                with filetimer.expires(0.1):
                    time.sleep(60)
            """, SLURM_JOB_ID="8812")
        other = subprocess.Popen(["sleep", "60"], env={**os.environ, "SLURM_JOB_ID": "8812"})
        self.addCleanup(suite.end, other)
        self.client("acquire", "--scope", "x", "--timeout", "1h", "--pid", str(other.pid))
        self.hang(worker)
        record = self.record_of("py-spy", worker)
        self.assertEqual(record["output"], f"dump --nonblocking --subprocesses --pid {worker.pid}\n")
        self.assertEqual(record["exit_status"], 3)

    def test_the_flight_recorder_is_found_by_the_names_of_each_version(self):
        for job, (variable, dump) in enumerate((
                ("TORCH_FR_DUMP_TEMP_FILE=fr_", "fr_0"), ("XDG_CACHE_HOME=cache", "cache/torch/comm_lib_trace_rank_0"),
                ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE=old_", "old_0"),
                ("HOME=home", "home/.cache/torch/comm_lib_trace_rank_0"),
                ("HOME=home", "home/.cache/torch/nccl_trace_rank_0"))):
            with self.subTest(dump):
                folder = suite.folder_of(self, "python")
                worker = self.start_worker("""
                    pipe, dump = os.environ["TORCH_FR_DEBUG_INFO_PIPE_FILE"] + "0.pipe", sys.argv[1]
                    os.mkfifo(pipe)
                    os.makedirs(os.path.dirname(dump), exist_ok=True)
                    asked = os.open(pipe, os.O_RDWR)
                    def record():
                        os.read(asked, 1)
                        with open(dump, "w") as file:
                            file.write("7 bytes")
                    threading.Thread(target=record, daemon=True).start()
                    with filetimer.expires(60):
                        say("in")
                        sys.stdin.read()
                        with filetimer.expires(0.1):
                            time.sleep(60)
                    """, f"{folder}/{dump}", RANK="0", SLURM_JOB_ID=str(job), **{
                        "TORCH_FR_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_", "XDG_CACHE_HOME": "",
                        variable.partition("=")[0]: f"{folder}/{variable.partition('=')[2]}"})
                self.hang(worker)
                said = f"rank 0, pid {worker.pid}: "
                self.assertEqual(self.record_of("flight-recorder", worker)["output"],
                                 f"{said}asked by '{folder}/pipe_0.pipe'\n{said}{folder}/{dump}, 7 bytes\n")


class Helper(unittest.TestCase):
    program = os.path.join(os.environ["FILETIMER_BIN_DIR"], "filetimer-stacks")

    def request(self, server, limit_ms):
        return f"{os.getpid()} {suite.stat_of(os.getpid())[19]} {server} {limit_ms}\n"

    def test_it_ends_with_its_server_whoever_holds_its_pipe(self):
        fifo = os.path.join(suite.folder_of(self, "python"), "fifo")
        os.mkfifo(fifo)
        held = os.open(fifo, os.O_RDWR)
        self.addCleanup(os.close, held)
        server = subprocess.Popen(["sh", "-c", '"$0" <"$1" & echo $!; wait', self.program, fifo],
                                  stdout=subprocess.PIPE)
        self.addCleanup(suite.end, server)
        helper = int(server.stdout.readline())
        os.write(held, self.request(server.pid, 3_600_000).encode())
        suite.wait_until(lambda: pathlib.Path(f"/proc/{helper}/oom_score_adj").read_text() == "1000\n")
        server.kill()
        suite.wait_until(lambda: suite.state_of(helper) in ("", "Z"))

    def test_a_crash_leaves_no_core_file(self):
        def allow():
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        folder = suite.folder_of(self, "python")
        start = {"cwd": folder, "preexec_fn": allow, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        try:
            crashed = subprocess.Popen(["sh", "-c", "kill -SEGV $$"], **start)
        except subprocess.SubprocessError:
            self.skipTest("the limit of core files cannot be raised here")
        self.addCleanup(suite.end, crashed)
        if not os.WCOREDUMP(os.waitpid(crashed.pid, 0)[1]):
            self.skipTest("a crash leaves no core file here")
        helper = subprocess.Popen([self.program], **start)
        self.addCleanup(suite.end, helper)
        helper.stdin.write(self.request(os.getpid(), 20_000))
        helper.stdin.flush()
        limits = pathlib.Path(f"/proc/{helper.pid}/limits")
        suite.wait_until(lambda: re.search(r"Max data size +1073741824 ", limits.read_text()), "it is ready")
        helper.send_signal(signal.SIGSEGV)
        status = os.waitpid(helper.pid, 0)[1]
        self.assertEqual((os.WTERMSIG(status), os.WCOREDUMP(status)), (signal.SIGSEGV, False))

    def test_its_time_is_up_whatever_signals_the_servers_caller_ignores(self):
        def ignore():
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        helper = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  preexec_fn=ignore)
        self.addCleanup(suite.end, helper)
        helper.stdin.write(self.request(os.getpid(), 100))
        helper.stdin.flush()
        self.assertEqual(helper.wait(timeout=suite.BOUND_S), -signal.SIGALRM)


if __name__ == "__main__":
    suite.main()
