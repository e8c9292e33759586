# SPDX-License-Identifier: MIT
"""The Python stacks of a worker that has expired, in the server's evidence and in `show`."""
import json
import os
import pathlib
import resource
import signal
import subprocess
import time

import filetimer
import suite
from filetimer import _stacks
from harness import BOUND_S, CLIENT, NATIVE_HANDLER, ServerCase, with_slow, worker_test

HANG = """
def hang_in_thread():
    threading.Event().wait()
def hang():
    time.sleep(60)
def expire(name="x"):
    with filetimer.expires(0.3, name):
        hang()
"""


TRIES = 5  # a slow machine may read the stacks before the worker hangs, or not within their second


class Stacks(ServerCase):
    def functions(self, record):
        """Returns the functions of the worker's file by thread, the innermost first."""
        return [[frame.rpartition(" in ")[2] for frame in thread["frames"] if "worker" in frame]
                for thread in record.get("python_threads", [])
                for _ in (thread, *thread.get("same_stack", []))]

    def is_of_hang(self, evidence, function="hang"):
        """Whether it is whole, and its stacks, if it has any, are those of a worker in this function."""
        stacks = self.functions(evidence)
        return "Python" not in evidence.get("missing", "") and (
            not stacks or (all(stacks) and any(function in stack for stack in stacks)))

    def evidence(self, script, *args, function="hang", is_first=False):
        """Returns the evidence of a worker that hangs, or of the process whose pid it says first. is_first: the
        server starts after that.
        """
        for _ in range(TRIES):
            if is_first:
                self.server.close()
            self.worker = self.start_worker(HANG + script, *args)
            said = self.worker.stdout.readline()
            if is_first:
                self.server = filetimer.Server(dir=self.dir)
                self.addCleanup(self.server.close)
            if not said:
                self.assertEqual(self.worker.wait(timeout=30), -signal.SIGKILL)
            evidence = self.record("evidence", int(said or self.worker.pid))
            if self.is_of_hang(evidence, function):
                break
        return evidence

    def test_each_dump_is_appended_to_the_file_which_the_server_may_have_cut(self):
        file, _ = _stacks._offered[self.configure()._stacks_file()]
        os.lseek(file, 1 << 20, os.SEEK_SET)  # as after many dumps

        def has_stacks():
            [worker] = json.loads(self.client("dump", "--json"))["workers"]
            return "python_threads" in worker
        with filetimer.expires(600, "x"):
            suite.wait_until(has_stacks)

    test_a_worker_at_its_limit_of_file_sizes_survives_a_dump = worker_test("""
        import resource, subprocess
        filetimer.configure()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with filetimer.expires(600, "x"):
            subprocess.run([os.environ["FILETIMER_CLIENT"], "dump"], stdout=subprocess.DEVNULL, check=True)
            time.sleep(0.1)
        assert signal.SIGXFSZ not in signal.sigpending()
        """)

    def test_show_has_the_stack_of_every_thread(self):
        evidence = self.evidence("""
filetimer.configure()
for _ in range(3):
    threading.Thread(target=hang_in_thread, daemon=True).start()
expire()
""")
        stacks = self.functions(evidence)
        self.assertEqual(len(stacks), 4)
        self.assertEqual(stacks.count(["hang_in_thread"]), 3)
        self.assertIn(["hang", "expire", "<module>"], stacks)
        shown = " ".join(self.client("show", evidence["id"]).split())  # without line breaks
        self.assertIn("in hang_in_thread", shown)
        self.assertIn("in expire", shown)

    def test_a_worker_that_started_before_its_server_has_them_too(self):
        evidence = self.evidence("""
filetimer.configure()
say(os.getpid())
expire()
""", is_first=True)
        self.assertEqual(self.functions(evidence), [["hang", "expire", "<module>"]])
        later = self.evidence("""
filetimer.configure()
expire()
""")
        # A busy machine leaves the native stacks too little time, and "missing" says so.
        self.assertEqual(set(evidence) - {"missing", "held_ms"}, set(later) - {"missing", "held_ms"})
        if evidence.get("missing") == later.get("missing"):
            self.assertEqual("native_stack" in evidence["threads"][0],
                             "native_stack" in later["threads"][0])

    def test_a_worker_that_holds_the_interpreters_lock_has_them_too(self):
        evidence = self.evidence("""
filetimer.configure()
import ctypes
def hold():
    while True:  # the signal for the stacks ends a sleep
        ctypes.PyDLL(None).sleep(60)
with filetimer.expires(0.3, "x"):
    hold()
""", function="hold")
        self.assertEqual(self.functions(evidence), [["hold", "<module>"]])

    def test_a_worker_that_cannot_be_stopped_was_not_held(self):
        worker = self.start_worker("""
            filetimer.configure()
            os.mkfifo(sys.argv[1])  # until it has a writer the child executes nothing, and its parent sleeps in vfork()
            action = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
            with filetimer.expires(0.3, "x"):
                os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])
            """, os.path.join(self.folder, "fifo"))
        evidence = self.record("evidence", worker.pid)
        if "it did not stop" not in evidence["missing"]:
            self.skipTest("no process can be traced here")
        self.assertNotIn("held_ms", evidence)

    def test_a_forked_child_has_its_own_stacks(self):
        for who in ("heartbeat", "job", "scope", "parent"):
            evidence = self.evidence("""
client = filetimer.configure()
pid = os.fork()
if pid == 0:
    # The first scope of any kind makes the child's page and offers its stacks.
    if sys.argv[1] == "heartbeat":
        heart = filetimer.heartbeat(0.3, "child")
        hang()
    if sys.argv[1] == "job":
        client.start(0.3)
        hang()
    with filetimer.paused():
        pass
    expire("child")
if sys.argv[1] != "parent":
    say(pid)
os.waitpid(pid, 0)
expire("parent")
""", who)
            callers = ["<module>"] if who in ("heartbeat", "job") else ["expire", "<module>"]
            self.assertEqual(self.functions(evidence), [["hang", *callers]])

    def test_a_child_of_a_child_and_a_second_client_have_them_too(self):
        evidence = self.evidence("""
filetimer.configure()
filetimer.configure()
other = filetimer.Client()
if os.fork() == 0:
    with filetimer.expires(60):
        pass
    if os.fork() == 0:
        say(os.getpid())
        expire("grandchild")
    os.wait()
    os._exit(0)
os.wait()
""")
        self.assertEqual(self.functions(evidence), [["hang", "expire", "<module>"]])
        self.assertEqual(self.worker.wait(timeout=30), 0)

    test_a_child_offers_them_to_each_server_whose_client_does = worker_test("""
        from filetimer import _stacks
        server = filetimer.Server()
        other = filetimer.Client(server.dir)
        mine = filetimer.configure()
        if os.fork() == 0:
            for client in filetimer.configure(stacks=False), other, mine:
                with client.paused():
                    say(len(_stacks._offered))
            os._exit(0)
        os.wait()
        """, says="0\n1\n2\n")

    test_a_child_offers_them_with_its_first_scope_that_is_watched = worker_test("""
        from filetimer import _stacks
        filetimer.configure()
        def child():
            for is_drained in True, False:
                filetimer.admin.drain(is_drained)
                with filetimer.expires(60):
                    say(len(_stacks._offered))
        assert in_child(child) == 0
        """, says="0\n1\n")

    test_a_handler_that_raises_while_a_child_offers_them_leaves_no_scope_open = worker_test("""
        from filetimer import _stacks
        filetimer.configure()
        def child():
            def offer(client):
                raise TimeoutError
            _stacks.offer = offer
            scope = filetimer.Scope(60)
            try:
                scope.acquire()
            except TimeoutError:
                os._exit(scope.is_open)
            os._exit(2)
        assert in_child(child) == 0
        """)

    test_a_worker_that_is_to_get_no_signal_gets_none_for_them = worker_test("""
        filetimer.configure()
        log = filetimer.admin.status().log
        def wait_for(event):
            while f'"event":"{event}"' not in open(log).read():
                time.sleep(0.01)
        with filetimer.expires(60, warn_after=0.1):
            wait_for("warned")
        with filetimer.expires(0.1, signal=0):
            wait_for("killed")
        folder = os.environ["FILETIMER_DIR"] + "/scopes/.stacks/"
        say([os.path.getsize(folder + each) for each in os.listdir(folder)])
        """, says="[0]\n")

    def test_a_client_without_stacks_offers_none(self):
        evidence = self.evidence("filetimer.configure(stacks=False)\nexpire()\n")
        self.assertNotIn("python_threads", evidence)
        self.assertNotIn("Python", evidence.get("missing", ""))

    def test_the_handler_and_the_file_stay_for_the_life_of_the_process(self):
        evidence = self.evidence("""
import gc
filetimer.configure().close()
filetimer.configure()
gc.collect()
expire()
""")
        self.assertEqual(self.functions(evidence), [["hang", "expire", "<module>"]])

    test_the_users_faulthandler_is_not_changed = worker_test("""
        import faulthandler
        faulthandler.enable()
        with open(os.environ["FILETIMER_DIR"] + "/mine", "w") as mine:
            faulthandler.register(signal.SIGUSR2, file=mine)
            filetimer.configure()
            os.kill(os.getpid(), signal.SIGUSR2)
            filetimer.close()
            assert faulthandler.is_enabled()
        assert "worker" in open(mine.name).read()
        """)

    def test_a_child_whose_descriptors_were_closed_closes_no_other_files(self):
        # As a daemon does, before or after its fork. Files that it opens then have the numbers of the package's.
        for is_before, count in ((False, 0), (False, 90), (True, 90)):
            self.run_worker(f"""
                filetimer.configure()
                def reopen():
                    os.closerange(3, 200)
                    return [os.open("/dev/null", os.O_RDONLY) for _ in range({count})]
                mine = reopen() if {is_before} else None
                if os.fork() == 0:
                    mine = mine or reopen()
                    with filetimer.expires(60, "child"), filetimer.paused():
                        say([os.readlink(f"/proc/self/fd/{{number}}") for number in mine]
                            == ["/dev/null"] * len(mine))
                    os._exit(0)
                os.wait()
                """, says="True\n")

    test_a_child_of_a_child_keeps_the_files_of_the_program = worker_test("""
        filetimer.configure()
        def child():
            mine = os.open("/dev/null", os.O_RDONLY)  # has the number of the parent's file of stacks
            with filetimer.expires(60):
                assert in_child(lambda: os.fstat(mine)) == 0
        assert in_child(child) == 0
        """)

    # One that has closed all descriptors may have a file of the package's number.
    test_they_are_written_to_no_file_of_the_program = worker_test("""
        from filetimer import _stacks
        filetimer.configure()
        before = os.listdir("/proc/self/fd")
        filetimer.configure()
        assert os.listdir("/proc/self/fd") == before
        [(file, number)] = _stacks._offered.values()
        assert number == signal.SIGRTMIN + 12
        signal.pthread_kill(threading.get_ident(), number)
        assert os.fstat(file).st_size > 0
        mine = os.open(os.environ["FILETIMER_DIR"] + "/mine", os.O_RDWR | os.O_CREAT)
        os.dup2(mine, file)
        signal.pthread_kill(threading.get_ident(), number)
        assert os.fstat(mine).st_size == 0
        """)

    # A thread that runs meanwhile may free what faulthandler reads. Here a file's name is where no memory is.
    test_a_fault_of_faulthandler_does_not_end_the_worker = worker_test("""
        import ctypes
        from filetimer import _stacks
        def caught():
            return [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
        filetimer.configure()
        [(file, number)] = _stacks._offered.values()
        before = caught()
        def dump():
            words[place] = 8
            signal.pthread_kill(threading.get_ident(), number)
            words[place] = id(name)
        name = dump.__code__.co_filename
        words = (ctypes.c_size_t * (dump.__code__.__sizeof__() // 8)).from_address(id(dump.__code__))
        place = list(words).index(id(name))
        dump()
        assert os.fstat(file).st_size > 0 and caught() == before
        with filetimer.expires(60):
            pass
        """)

    def test_a_fault_that_the_program_handles_meanwhile_is_handled(self):
        # A runtime may handle faults of its own. Here a handler returns until the memory can be read.
        self.run_worker("""
            import ctypes, mmap
            from filetimer import _stacks
            filetimer.configure()
            [(_, number)] = _stacks._offered.values()
            libc, page, into = ctypes.CDLL(None), mmap.mmap(-1, mmap.PAGESIZE), ctypes.create_string_buffer(8)
            start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
            libc.mprotect(start, mmap.PAGESIZE, 0)
            signal.signal(signal.SIGSEGV, lambda *_: None)
            thread = threading.Thread(target=libc.memcpy, args=(into, start, 8))
            thread.start()
            time.sleep(0.1)
            signal.pthread_kill(threading.get_ident(), number)
            libc.mprotect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
            thread.join()
            """, prefix=with_slow("rt_sigaction", "delay_exit", 10_000))

    def test_pages_and_stacks_of_a_process_that_closed_its_descriptors_are_in_no_file_of_the_program(self):
        self.server.close()
        worker = self.start_worker("""
            filetimer.configure()
            os.closerange(3, 200)
            paths = [os.path.join(sys.argv[1], str(number)) for number in range(20)]
            files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
            scopes = [filetimer.Scope(60, f"name{number}") for number in range(40)]  # its page has to grow
            for scope in scopes:
                scope.acquire()
            say("open")
            sys.stdin.readline()
            for file, path in zip(files, paths):
                assert os.path.samestat(os.fstat(file), os.stat(path)) and os.stat(path).st_size == 0
            """, self.folder)
        self.assertEqual(worker.stdout.readline(), "open\n")
        with filetimer.Server(dir=self.dir):
            self.assertEqual(json.loads(self.client("status", "--json"))["open_scopes"], 40)
            self.assertIn("name39", self.client("dump"))
            _, said = worker.communicate("\n", timeout=BOUND_S)
        self.assertEqual(worker.returncode, 0, said)

    test_a_child_has_its_parents_handler_and_file_no_more = worker_test("""
        from filetimer import _stacks
        filetimer.configure()
        [(file, number)] = _stacks._offered.values()
        def child():
            assert not os.path.exists(f"/proc/self/fd/{file}")
            os.kill(os.getpid(), number)
        assert in_child(child) == -number
        """)

    test_a_child_has_no_file_of_a_page_that_its_parent_made_anew = worker_test("""
        import glob
        from filetimer import _stacks
        filetimer.configure()
        [(file, number)] = _stacks._offered.values()
        first = os.fstat(file).st_ino
        [page] = glob.glob(os.environ["FILETIMER_DIR"] + "/scopes/*-*")
        os.remove(page)
        while os.fstat(file).st_ino == first:
            with filetimer.expires(60):
                pass
        assert in_child(lambda: os._exit(os.path.exists(f"/proc/self/fd/{file}"))) == 0
        """)

    def test_no_file_or_pipe_of_the_package_is_standard_output_of_a_daemon(self):
        for taken in range(3):
            self.run_worker(f"""
                os.closerange(0, 3)
                mine = [os.open("/dev/null", os.O_RDWR) for _ in range({taken})]
                filetimer.configure()
                filetimer.Scope(60).acquire()
                server = filetimer.Server()
                os._exit(sum(os.path.exists(f"/proc/self/fd/{{number}}") for number in range(3)) - {taken})
                """)

    test_a_handler_that_the_program_has_installed_since_gets_no_signal = worker_test("""
        import subprocess
        from filetimer import _stacks
        filetimer.configure()
        [(_, number)] = _stacks._offered.values()
        mine = []
        signal.signal(number, lambda *_: mine.append(1))
        with filetimer.expires(60):
            subprocess.run([os.environ["FILETIMER_CLIENT"], "dump"], stdout=subprocess.DEVNULL, check=True)
        assert not mine
        """)

    test_an_offer_that_fails_leaves_no_descriptor_behind = worker_test("""
        from filetimer import _stacks
        class Client:
            def _stacks_file(self):
                return os.environ["FILETIMER_DIR"] + "/stacks"
            def _offer_stacks(self, number, file):
                raise filetimer.TimerError
        before = os.listdir("/proc/self/fd")
        _stacks.offer(Client())
        assert os.path.exists(Client()._stacks_file()) and not _stacks._offered
        assert os.listdir("/proc/self/fd") == before
        """)

    test_signals_that_a_native_library_handles_are_left_to_it_and_stacks_are_missing = worker_test(
        NATIVE_HANDLER + """
from filetimer import _stacks
numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
for number in numbers:
    handle(number)
filetimer.configure()
assert not _stacks._offered and all(map(is_handled, numbers))
with filetimer.expires(60):
    pass
try:
    filetimer.expires(60, on_expiry="raise")
    assert False
except filetimer.TimerError as error:
    assert "no real-time signal is free" in str(error)
""")


class WithoutDescriptors(ServerCase):
    options = ("--stopped", "kill", "--evidence", "proc")

    def test_the_evidence_says_that_the_server_had_none(self):
        worker = self.start_worker("""
            filetimer.configure()
            with filetimer.expires(2, "x"):
                say("in")
                time.sleep(60)
            """)
        worker.stdout.readline()
        self.client("ping")
        limits = resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE)
        used = {int(number) for number in os.listdir(f"/proc/{self.server.pid}/fd")}
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, (min(set(range(4096)) - used), limits[1]))
        self.assertIn("Too many open files", self.record("evidence", worker.pid)["missing"])
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, limits)
        self.assertEqual(worker.wait(BOUND_S), -signal.SIGKILL)


class Sweeps(ServerCase):
    options = ("--max-interval", "20ms")

    def test_the_folder_of_the_stacks_is_made_again(self):
        folder = os.path.join(self.dir, "scopes", ".stacks")
        os.rmdir(folder)
        suite.wait_until(lambda: os.path.isdir(folder))

    def test_a_page_without_a_lock_whose_worker_the_server_has_no_descriptor_to_open_is_kept(self):
        worker = self.start_worker("""
            sys.stdin.readline()
            with filetimer.expires(60):
                os.closerange(3, 64)  # and with them the lock of the page
                say("in")
                time.sleep(60)
            """)
        os.kill(self.server.pid, signal.SIGSTOP)
        limits = resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE)
        used = set(map(int, os.listdir(f"/proc/{self.server.pid}/fd")))
        # The descriptor that is left is for the page.
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, (sorted({*range(4096)} - used)[1], limits[1]))
        print(file=worker.stdin, flush=True)
        worker.stdout.readline()
        [page] = pathlib.Path(self.dir, "scopes").glob(f"{worker.pid}-*")
        os.kill(self.server.pid, signal.SIGCONT)
        suite.wait_until(lambda: self.records("rejected") or not page.exists())
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, limits)
        self.assertEqual((page.exists(), self.records("left_open")), (True, []))
        self.assertIn("Too many open files", self.records("rejected")[0]["reason"])


class OtherPrograms(ServerCase):
    options = ("--evidence-timeout", "20s")

    def test_a_worker_that_starts_one_before_the_signal_lives_on(self):
        worker = self.start_worker("""
            filetimer.configure()
            with filetimer.expires(60):
                say("inside")
                sys.stdin.readline()
                os.execlp("sleep", "sleep", "60")
            """)
        worker.stdout.readline()
        [stacks] = pathlib.Path(self.dir, "scopes/.stacks").iterdir()
        self.slow_server("openat", "delay_exit", 3_000_000, stacks)
        dump = subprocess.Popen([CLIENT, "dump", "--dir", self.dir], stdout=subprocess.PIPE, text=True)
        time.sleep(1.5)  # the server has begun to open the file of the stacks
        print(file=worker.stdin, flush=True)
        said = dump.communicate(timeout=BOUND_S)[0]
        self.assertIsNone(worker.poll(), said)


if __name__ == "__main__":
    suite.main()
