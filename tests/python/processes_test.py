# SPDX-License-Identifier: MIT
"""Child processes and the ends of processes: each child is a separate worker, or none."""
import contextlib
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import unittest

import filetimer
import suite
from harness import CLIENT, ServerCase, run_python, worker_test, with_slow
from records import records

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

    def test_a_child_has_the_rank_and_job_that_it_has_set_itself(self):
        worker = self.start_worker("""
            filetimer.configure()
            pid = os.fork()
            if pid == 0:
                os.environ.update(RANK="5", LOCAL_RANK="1", SLURM_JOB_ID="8812")
                with filetimer.expires(0.3, "child"):
                    time.sleep(60)
            os.waitpid(pid, 0)
            say(pid)
            """, RANK="0", LOCAL_RANK="0")
        expired = self.record("expired", int(worker.stdout.readline()))
        self.assertEqual([expired.get(key) for key in ("rank", "local_rank", "job_id")], [5, 1, "8812"])

    @unittest.skipUnless(platform.machine() == "x86_64", "the filter has a number of x86-64")
    def test_a_worker_in_a_sandbox_that_refuses_to_look_at_files_continues(self):
        self.run_worker("""
            import ctypes, struct
            # newfstatat: EPERM; any other call is allowed.
            code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in (
                (0x20, 0, 0, 0), (0x15, 0, 1, 262), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000))))
            prctl = ctypes.CDLL(None).prctl
            prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
            prctl(38, 1, None, 0, 0)
            prctl(22, 2, struct.pack("HxxxxxxP", 4, ctypes.addressof(code)), 0, 0)
            with filetimer.expires(60, "x"):
                say("fine")
            """, says="fine\n", FILETIMER_LOG_LEVEL="error")

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

    def test_a_worker_that_has_started_another_program_is_recorded_as_that(self):
        shell = f"'{CLIENT}' acquire --scope a --timeout 1h; read _; SLURM_STEP_ID=4 exec \"$@\""
        worker = self.start_worker("""
            with filetimer.expires(0.3):
                time.sleep(60)
            """, prefix=("sh", "-c", shell, "sh"))
        suite.wait_until(lambda: self.open_scopes(worker.pid) == ["a"])
        print(file=worker.stdin, flush=True)
        record = self.record("killed", worker.pid)
        self.assertEqual([record["comm"], record["cmdline"].split()[0], record["step_id"]],
                         [os.path.basename(sys.executable), sys.executable, "4"])

    def test_the_statistics_of_a_worker_say_whether_it_lives_on_in_another_program(self):
        worker = self.start_worker("""
            with filetimer.expires(60):
                filetimer.admin.ping()  # the server has read the page
            if "again" not in sys.argv:
                os.execv(sys.executable, [sys.executable, __file__, "again"])
            sys.stdin.readline()
            """)
        self.record("worker_ended", worker.pid)
        worker.communicate("\n", timeout=suite.BOUND_S)
        suite.wait_until(lambda: len(self.records("worker_ended", worker.pid)) == 2)
        first, last = self.records("worker_ended", worker.pid)
        self.assertTrue(first["alive"])
        self.assertNotIn("alive", last)


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

    def test_one_without_a_lock_is_rejected_once_while_its_worker_lives(self):
        metrics = self.folder + "/metrics"
        server = filetimer.Server("--max-interval", "50ms", "--metrics", metrics, dir=self.folder + "/swept")
        self.addCleanup(server.close)
        worker = subprocess.Popen([os.path.join(os.environ["FILETIMER_BIN_DIR"], "page_worker")],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(suite.end, worker)
        worker.stdout.readline()
        os.kill(server.pid, signal.SIGSTOP)  # a sweep must not find the page while it has its lock
        for words in f"make {server.dir} p-1", "unlock":
            print(words, file=worker.stdin, flush=True)
            worker.stdout.readline()
        os.kill(server.pid, signal.SIGCONT)
        suite.wait_until(lambda: records([server.log], "rejected"))
        for _ in range(3):  # each sweep replaces them
            os.remove(metrics)
            suite.wait_until(lambda: os.path.exists(metrics))
        server.close()
        self.assertEqual(records([server.log], "server_stopped")[0]["rejected"], 1)

    def test_a_metrics_file_is_not_where_a_rotation_puts_the_log(self):  # each sweep would replace its records
        log = self.folder + "/log.jsonl"
        for option in "--metrics", "--fifo":
            done = subprocess.run([os.environ["FILETIMER_SERVER"], "--dir", self.folder + "/other", "--log", log,
                                   option, log + ".1"], stderr=subprocess.PIPE, universal_newlines=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{option}: '{log}.1' is the log: expected another path\n", done.stderr)

    def test_those_of_workers_that_have_ended_before_the_server_looks_are_not_rejected(self):
        self.configure()
        os.kill(self.server.pid, signal.SIGSTOP)
        self.run_worker("with filetimer.expires(5, 'short'): pass")
        os.kill(self.server.pid, signal.SIGCONT)
        suite.wait_until(lambda: filetimer.admin.status().requests > 1, "the wake-up message is not read")
        self.assertEqual(filetimer.admin.status().rejected, 0)


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

    def test_the_package_works_where_python_has_made_its_native_module_before(self):
        # As Python 3.13 does in the main interpreter where a subinterpreter is the first to import the package.
        done = run_python("if True:" """
            import sys
            from importlib import util
            util.module_from_spec(util.spec_from_file_location("filetimer._native", sys.argv[1]))
            import filetimer
            with filetimer.configure(sys.argv[2]) as client, filetimer.Scope(60, "x", client=client) as scope:
                assert scope.is_open
            """, filetimer._native.__file__, self.dir)
        self.assertEqual(done.returncode, 0)

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

    test_a_destructor_at_the_interpreters_end_may_enter_the_first_scope_of_its_process = worker_test("""
        class Closed:
            scope = filetimer.Scope(60, "close")
            def __init__(self, end):
                self.end = end
            def __del__(self, scope=scope, write=os.write):
                with scope:
                    write(1, self.end)
        closed = Closed(b"parent")  # in which no scope has made a client
        if os.fork():
            os.wait()
        else:
            filetimer.configure()
            closed.end = b"child "
            if os.fork():
                os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
        """, says="child parent")


if __name__ == "__main__":
    suite.main()
