# SPDX-License-Identifier: MIT
"""Control requests, and filetimer.Server."""
import asyncio
import contextlib
import copy
import ctypes
import json
import math
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings

import filetimer
import suite
from filetimer import _ask, _native, _server, _stacks, admin, errors
from harness import BOUND_S, CLIENT, FAR_S, SERVER, ConfiguredCase, ServerCase, run_python
from suite import state_of, wait_until


def is_alive(pid):
    return state_of(pid) not in ("", "Z")


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")


class Questions(ConfiguredCase):
    def test_status_has_the_state_of_the_server(self):
        self.client("ping", "--rpc-timeout", "1us", "--rpc-timeout", "inf")  # the last one counts
        with filetimer.expires(FAR_S):
            status = admin.status()
        self.assertEqual(status.server_pid, self.server.pid)
        self.assertEqual((status.dir, status.open_scopes, status.announcement),
                         (self.dir, 1, "none"))
        self.assertIsInstance(status.uptime, float)
        self.assertAlmostEqual(status.descriptors, len(os.listdir(f"/proc/{self.server.pid}/fd")), delta=8)
        self.assertIn(f"server_pid={self.server.pid}", repr(status))
        self.assertEqual(status, status)

    def test_status_counts_what_the_server_has_done(self):
        killed = self.start_worker("with filetimer.expires(0.05): time.sleep(60)")
        stubborn = self.start_worker("""
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with filetimer.expires(0.05, signal=signal.SIGTERM, grace=60):
                time.sleep(60)
            """)
        self.record("killed", killed.pid)
        wait_until(lambda: self.records("expired", stubborn.pid))
        with filetimer.expires(0.05, signal=0):
            self.record("killed", os.getpid())
            status = admin.status()
        self.assertEqual((status.expired, status.killed, status.kills_under_way, status.unkillable), (3, 1, 1, 0))
        self.assertTrue(0 < status.uptime < suite.BOUND_S, status.json)
        self.assertGreaterEqual(status.requests, 3)  # one for each page

    def test_status_counts_the_clients_that_wait(self):
        rank = subprocess.Popen([CLIENT, "rendezvous", "--rank", "0", "--world", "2", "--timeout", "60s",
                                 "--dir", self.dir])
        self.addCleanup(suite.end, rank)
        wait_until(lambda: admin.status().askers == 1)

    def test_status_says_why_the_log_cannot_be_written(self):
        with filetimer.Server("--log", "/dev/full", dir=self.folder + "/full") as server, \
                filetimer.Client(server.dir) as client:
            wait_until(lambda: "No space left" in admin.status(client=client).log_trouble)

    def test_a_dump_has_the_age_of_a_scope_from_when_the_scope_was_read(self):
        began = time.monotonic()
        with filetimer.expires(FAR_S):
            [worker] = json.loads(self.client("dump", "--json"))["workers"]
            passed = time.monotonic() - began
        self.assertLess(worker["open_scopes"][0]["elapsed_s"], passed - worker["gathered_ms"] / 1000)

    def test_a_rendezvous_names_the_missing_ranks(self):
        met = admin.rendezvous(0, 1, 10)
        self.assertEqual((met.round, met.joined), (1, {0: os.getpid()}))
        with self.assertRaises(TimeoutError) as caught:
            admin.rendezvous(1, 3, 0.2, "epoch")
        error = caught.exception
        self.assertIsInstance(error, errors.RendezvousTimeoutError)
        self.assertEqual((error.name, error.joined, error.missing, error.left),
                         ("epoch", [1], [0, 2], []))
        self.assertRegex(str(error), "^rendezvous 'epoch': .*; missing: 0, 2$")

    def test_the_reason_of_a_failed_rendezvous_names_32_ranks(self):
        with self.assertRaises(errors.RendezvousTimeoutError):
            admin.rendezvous(0, 40, 0.1)
        self.assertRegex(self.record("rendezvous_timeout")["reason"], "; missing: 1, 2, .*, 31, 32 and 7 more$")

    def test_ranks_that_have_come_while_the_server_could_not_run_have_joined(self):
        met = []
        thread = threading.Thread(target=lambda: met.append(admin.rendezvous(0, 4, 2)))
        other = filetimer.Client(self.dir)
        with contextlib.ExitStack() as late:
            thread.start()
            wait_until(lambda: admin.status(client=other).askers == 1)
            stop(self.server.pid)
            for rank in 1, 2, 3:
                one = late.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                one.connect(self.dir + "/control")
                one.send(json.dumps({"version": 1, "request": "rendezvous", "name": "default", "rank": rank, "world": 4,
                                     "wait_s": 60}).encode())
            time.sleep(2.1)  # the first rank has waited long enough
            os.kill(self.server.pid, signal.SIGCONT)
            thread.join(BOUND_S)
        self.assertEqual(sorted(met[0].joined), [0, 1, 2, 3])

    def test_new_scopes_during_a_drain_run_unwatched(self):
        with filetimer.expires(FAR_S, "old"):
            self.assertEqual(admin.drain(), 1)
            with filetimer.expires(0.01, "new") as scope:
                self.assertFalse(scope.is_open)
                self.assertFalse(scope.renew())
                with filetimer.heartbeat(0.01) as heart:
                    self.assertFalse(heart.beat())
            admin.drain(False)
        with filetimer.expires(FAR_S, "after") as scope:
            self.assertTrue(scope.is_open)

    def test_a_worker_in_a_scope_that_a_drain_leaves_unwatched_is_not_idle(self):
        self.run_worker("""
            filetimer.configure(idle_timeout=0.5)
            old = filetimer.Scope(60, "old")
            old.acquire()
            filetimer.admin.drain()
            with filetimer.expires(60, "new"):
                old.release()  # as another thread may
                time.sleep(2)
            """)

    def run_worker_with_rejected_line(self, deadline, status):
        """Runs a worker that leaves its scope after a drain has rejected its line, and sleeps."""
        self.run_worker(f"""
            import json
            filetimer.configure(idle_timeout=0.5)
            old = filetimer.Scope(60, "old")
            old.acquire()
            filetimer.admin.drain()
            with open(os.environ["FILETIMER_DIR"] + "/requests", "w") as pipe:
                json.dump({{"version": 1, "pid": os.getpid(), "scope_id": "new", "signal": 9,
                            "expiration_time": {deadline}}}, pipe)
                pipe.write("\\n")
            while not filetimer.admin.status().rejected:
                time.sleep(0.01)
            old.release()
            time.sleep(60 if {status} else 2)
            """, status=status)

    def test_a_worker_in_a_scope_whose_line_a_drain_rejects_is_not_idle(self):
        self.run_worker_with_rejected_line("time.time() + 60", 0)

    def test_a_worker_whose_line_without_a_deadline_a_drain_rejects_is_idle_afterwards(self):
        self.run_worker_with_rejected_line('float("inf")', -signal.SIGKILL)
        self.assertEqual(self.record("expired")["scope"], "(idle)")

    def test_a_rank_that_comes_during_a_shutdown_is_told_so(self):
        with filetimer.expires(FAR_S):
            shutdown = subprocess.Popen([CLIENT, "shutdown", "--dir", self.dir], stderr=subprocess.DEVNULL)
            self.addCleanup(suite.end, shutdown)
            wait_until(lambda: admin.status().announcement == "shutdown")
            with self.assertRaisesRegex(errors.ServerBusy, "shutting down"):
                admin.rendezvous(0, 1, FAR_S)

    def test_the_descriptors_of_status_are_those_that_the_server_holds_beside_the_connection(self):
        def is_exact():
            time.sleep(0.1)  # the connection of the request before is closed by then
            held = len(os.listdir(f"/proc/{self.server.pid}/fd"))
            return admin.status().descriptors == held + 1
        wait_until(is_exact)

    def test_a_shutdown_is_refused_while_scopes_are_open_unless_it_is_forced(self):
        with filetimer.expires(FAR_S, "x"):
            with self.assertRaises(errors.ServerBusy) as caught:
                admin.shutdown("if_idle")
            error = caught.exception
            self.assertEqual((error.timed_out, error.open_scope_count), (False, 1))
            self.assertEqual(error.open_scopes[0]["scope"], "x")
            self.assertIn("; open: 'x' of pid", str(error))
            self.assertEqual(error.open_scopes[0]["rank"], None)
            self.assertAlmostEqual(error.open_scopes[0]["remaining"], FAR_S, delta=60)
            self.assertEqual(error.open_scopes[0]["pid"], os.getpid())
            with self.assertRaises(errors.ServerBusy) as caught:
                admin.shutdown(timeout=0.1)
            self.assertTrue(caught.exception.timed_out)
            self.assertEqual(admin.shutdown("now"), 1)
        [left] = self.record("server_stopped")["left"]
        self.assertEqual((left["pid"], left["scope"], left["elapsed_s"] < BOUND_S), (os.getpid(), "x", True))
        self.assertFalse(self.configured.is_watched)
        with self.assertRaises(filetimer.ServerUnavailable):
            admin.status()

    def test_a_shutdown_that_waits_for_workers_names_them_and_does_not_wait_for_the_one_that_asks(self):
        worker = self.start_worker("with filetimer.expires(9): say('in')\ntime.sleep(60)")
        self.assertEqual(worker.stdout.readline(), "in\n")
        with self.assertRaisesRegex(errors.ServerBusy, rf"; alive: .*\(pid {worker.pid}\)"):
            admin.shutdown("workers", timeout=0.1)
        worker.kill()
        worker.wait(timeout=BOUND_S)
        self.assertEqual(admin.shutdown("workers", timeout=5), 0)

    def test_a_server_that_does_not_answer_is_an_error_in_time_also_in_that_of_a_client(self):
        client = filetimer.configure(self.dir, rpc_timeout=0.1)
        with admin.rpc_timeout(BOUND_S):
            admin.ping()
        stop(self.server.pid)
        try:
            with admin.rpc_timeout(math.inf), admin.rpc_timeout(0.1):
                with self.assertRaises(TimeoutError) as caught:
                    admin.ping()
            with self.assertRaises(errors.RpcTimeoutError) as of_client:
                admin.status(client=client)
        finally:
            os.kill(self.server.pid, signal.SIGCONT)
        error = caught.exception
        self.assertIsInstance(error, errors.RpcTimeoutError)
        self.assertEqual(error.request, "ping")
        self.assertGreater(error.waited, 0.09)
        self.assertIn("stopped", str(error))
        self.assertLess(of_client.exception.waited, BOUND_S)
        with admin.rpc_timeout(BOUND_S):
            admin.ping()

    def test_a_wrong_timeout_of_the_environment_is_an_error_of_requests_alone(self):
        with unittest.mock.patch.dict(os.environ, FILETIMER_RPC_TIMEOUT="soon"):
            with filetimer.Client(self.dir).expires(FAR_S, "x") as scope:
                self.assertTrue(scope.is_open)
            with self.assertRaisesRegex(errors.InvalidArgument, "FILETIMER_RPC_TIMEOUT: 'soon'"):
                admin.ping()

    def test_the_environment_may_say_that_requests_have_no_timeout(self):
        for endless in "inf", "-1":
            with unittest.mock.patch.dict(os.environ, FILETIMER_RPC_TIMEOUT=endless):
                self.assertEqual(_native._rpc_timeout_of_environment(), math.inf)
                admin.ping()

    def test_a_client_that_is_switched_off_asks_no_server(self):
        with unittest.mock.patch.dict(os.environ, FILETIMER="off"):
            client = filetimer.Client(self.dir)
        client.start()
        with self.assertRaisesRegex(filetimer.ServerUnavailable, "FILETIMER is off"):
            admin.ping(client=client)

    def test_a_handler_may_ask_and_fork_during_a_request(self):
        def handle(*_):
            admin.ping()
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handle))
        with _ask._lock:
            signal.raise_signal(signal.SIGUSR1)
        admin.ping()

    def test_a_child_that_is_forked_during_a_request_does_not_keep_it(self):
        worker = self.start_worker("""
            threading.Thread(target=filetimer.admin.rendezvous, args=(0, 2, 60), daemon=True).start()
            while not filetimer.admin.status().askers:
                time.sleep(0.01)
            if os.fork() == 0:
                sys.stdin.read()
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
            """)
        worker.wait(timeout=BOUND_S)
        wait_until(lambda: admin.status().askers == 0)
        worker.stdin.close()

    def test_one_rpc_timeout_serves_several_tasks(self):
        shared = admin.rpc_timeout(FAR_S)

        async def ask(entered, other):
            with shared:
                entered.set()
                await other.wait()  # each task is inside while the other enters and leaves
                admin.ping()

        async def ask_in_two_tasks():
            one, two = asyncio.Event(), asyncio.Event()
            await asyncio.gather(ask(one, two), ask(two, one))
        asyncio.run(ask_in_two_tasks())


class Shutdowns(ServerCase):
    def test_one_for_workers_waits_for_a_worker_that_has_asked_for_it_and_hung_up(self):
        request = '{"version":1,"request":"shutdown","graceful":"workers","wait_s":60}'
        other = self.start_worker("with filetimer.expires(60): say('in')\ntime.sleep(60)")
        other.stdout.readline()
        asker = self.start_worker("""
            import socket
            with filetimer.expires(60), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
                control.connect(os.environ["FILETIMER_DIR"] + "/control")
                control.send(sys.argv[1].encode())
                control.recv(4096)
            say("asked")
            time.sleep(60)
            """, request)
        asker.stdout.readline()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.connect(self.dir + "/control")
            control.send(request.encode())
            other.kill()
            wait_until(lambda: [each["pid"] for each in json.loads(control.recv(65536)).get("workers", [])] ==
                       [asker.pid])
            asker.kill()
            self.assertEqual(self.record("server_stopped")["reason"], "shutdown: workers")


class Interrupted(ServerCase):
    def assert_interrupted(self, script):
        worker = self.start_worker(script)
        self.assertEqual(worker.stdout.readline(), "now\n")
        time.sleep(0.2)  # usually interrupts the wait; before the wait the outcome is the same
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=BOUND_S)
        self.assertIn("KeyboardInterrupt", err)

    def test_ctrl_c_ends_a_wait_for_a_server(self):
        self.assert_interrupted("""
            say("now")
            filetimer.configure(os.environ["FILETIMER_DIR"] + "/none", missing="wait",
                                timeout=float("inf"))
            """)

    def test_ctrl_c_withdraws_the_request(self):
        self.assert_interrupted("""
            filetimer.configure()
            say("now")
            try:
                filetimer.admin.rendezvous(0, 2, 60)
            except KeyboardInterrupt:
                with filetimer.admin.rpc_timeout(60):
                    while filetimer.admin.status().askers:
                        time.sleep(0.01)
                raise
            """)

    def test_a_handler_that_raises_nothing_does_not_end_the_wait(self):
        worker = self.start_worker("""
            filetimer.configure()
            signal.signal(signal.SIGUSR1, lambda *_: say("handled"))
            say("now")
            filetimer.admin.rendezvous(0, 2, 60)
            say("met")
            """)
        self.assertEqual(worker.stdout.readline(), "now\n")
        other = filetimer.Client(self.dir)
        wait_until(lambda: admin.status(client=other).askers == 1)
        worker.send_signal(signal.SIGUSR1)
        self.assertEqual(worker.stdout.readline(), "handled\n")
        admin.rendezvous(1, 2, BOUND_S, client=other)
        self.assertEqual(worker.stdout.readline(), "met\n")


class MadeUpServer(unittest.TestCase):
    """Answers of a server that the test makes up, in a folder whose name is long."""

    def setUp(self):
        folder = suite.folder_of(self, "python")
        self.dir = os.path.join(folder, "d" * 200)
        os.mkdir(self.dir)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.listener.close)
        opened = os.open(self.dir, os.O_PATH)
        self.listener.bind(f"/proc/self/fd/{opened}/control")
        os.close(opened)
        self.listener.listen(0)
        self.listener.settimeout(BOUND_S)

    def ask(self, *packets, patience=BOUND_S, **fields):
        """Returns the answer to a request. The server sends the packets, where a number is a pause,
        and hangs up.
        """
        def serve():
            with contextlib.suppress(OSError), self.listener.accept()[0] as client:
                client.recv(4096, socket.MSG_PEEK)  # what is unread resets the connection
                for each in packets:
                    client.send(each) if isinstance(each, bytes) else time.sleep(each)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return _ask.ask(os.path.join(self.dir, "requests"), {"request": "ping", **fields},
                            patience)
        finally:
            thread.join()

    def request(self, what):
        """Returns a request that is connected and waits for nothing, and the server's end."""
        request = _ask.Request(os.path.join(self.dir, "requests"), what, 0)
        self.addCleanup(request.close)
        request._connect()
        request._connect = lambda: None
        client = self.listener.accept()[0]
        self.addCleanup(client.close)
        return request, client

    def timer_client(self, *words):
        """Starts timer_client, which asks this server."""
        client = subprocess.Popen([CLIENT, *words, "--dir", self.dir], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL)
        self.addCleanup(suite.end, client)
        return client

    def test_an_answer_may_come_in_parts_after_one_that_is_not_known(self):
        before = os.listdir("/proc/self/fd")
        self.assertEqual(self.ask(b'{"answer":"new"}\n{"answer":', b'"done","x":1}\n'),
                         ({"answer": "done", "x": 1}, '{"answer":"done","x":1}'))
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_what_a_client_prints_never_goes_to_it(self):
        client = subprocess.Popen(["sh", "-c", '"$0" shutdown --dir "$1" <&- 2>&-', CLIENT, self.dir])
        with self.listener.accept()[0] as server:
            server.recv(4096)
            server.send(b'{"answer":"waiting","open_scopes":[{"scope":"x","pid":1}],"open_scope_count":1}\n')
            server.send(b'{"answer":"done"}\n')
            server.shutdown(socket.SHUT_WR)
            self.assertEqual(server.recv(4096), b"")  # it has hung up
        self.assertEqual(client.wait(BOUND_S), 0)
        script = ("import os\nfrom filetimer import _ask\nos.closerange(0, 3)\n"
                  "os._exit(_ask.Request('/x/requests', 'ping', 0)._kept.number <= 2)")
        self.assertEqual(run_python(script).returncode, 0)

    def test_no_answer_and_what_is_none_are_errors(self):
        with self.assertRaisesRegex(filetimer.ServerUnavailable,
                                    "ended before it answered 'ping'"):
            self.ask()
        for wrong, shown in ((b"?", "?"), (b"[1]", "[1]"), (b"[" * 50_000, "[" * 100),
                             (b"\x1b" + b"x" * 200, r"\x1b" + "x" * 99)):
            with self.assertRaises(filetimer.TimerError) as caught:
                self.ask(wrong + b"\n")
            self.assertEqual(str(caught.exception), f"the server at '{self.dir}/requests' answered '{shown}': "
                                                    "expected a JSON object")
        with self.assertRaisesRegex(filetimer.TimerError, "longer than 4194304 bytes"):
            self.ask(*[b" " * 65536] * 65)
        self.assertEqual(self.ask(*[b" " * 65536] * 64, b'{"answer":"done"}\n')[0], {"answer": "done"})

    def test_the_last_answer_ends_a_request_and_the_end_of_the_server_a_shutdown(self):
        for what, answer in (("ping", "done"), ("shutdown", "refused")):
            request, client = self.request(what)
            client.send(b'{"answer":"%s"}\n' % answer.encode())
            self.assertEqual(request.ask(b"?")[0], {"answer": answer})  # the server has not hung up yet
        request, client = self.request("shutdown")
        client.send(b'{"answer":"done"}\n')
        with self.assertRaisesRegex(errors.RpcTimeoutError,
                                    "it announced its end, and still runs; its process is alive"):
            request.ask(b"?")

    def test_the_end_of_a_request_hangs_up_although_a_process_has_a_copy_of_its_socket(self):
        request, client = self.request("ping")
        with request._socket.dup():
            request.close()
            self.assertEqual(client.recv(1, socket.MSG_DONTWAIT), b"")
        self.assertEqual(request._socket.fileno(), -1)
        client = self.timer_client("ping", "--rpc-timeout", f"{BOUND_S}s")
        with self.listener.accept()[0] as server:
            server.recv(4096)
            number = next(each for each in os.listdir(f"/proc/{client.pid}/fd")
                          if os.readlink(f"/proc/{client.pid}/fd/{each}").startswith("socket:"))
            pidfd = os.pidfd_open(client.pid)
            duplicate = ctypes.CDLL(None).syscall(438, pidfd, int(number), 0)  # pidfd_getfd()
            os.close(pidfd)
            if duplicate < 0:
                self.skipTest("no process may have a copy of another one's descriptor here")
            self.addCleanup(os.close, duplicate)
            server.send(b'{"answer":"done"}\n')
            self.assertEqual(client.wait(BOUND_S), 0)
            self.assertEqual(server.recv(1, socket.MSG_DONTWAIT), b"")

    def test_a_socket_of_the_program_that_has_the_number_of_a_request_is_not_read(self):
        request, _ = self.request("ping")
        mine, other = socket.socketpair()
        with mine, other:
            number = os.dup2(mine.fileno(), request._socket.fileno())
            other.send(b"mine")
            with self.assertRaisesRegex(filetimer.TimerError, "^this process has no connection"):
                request.ask(b"?")
            request.close()
            self.assertEqual(os.read(number, 9), b"mine")
            os.close(number)

    def test_a_wait_that_the_server_grants_is_added_to_the_patience(self):
        self.assertEqual(self.ask(b'{"answer":"granted"}\n', 2.5, b'{"answer":"done"}\n',
                                  patience=2)[0], {"answer": "done"})
        with self.assertRaisesRegex(errors.RpcTimeoutError, "the wait that it granted is over; "
                                                            "its process is alive") as caught:
            self.ask(b'{"answer":"granted","wait_s":0.5}\n', 4, patience=1)
        self.assertGreaterEqual(caught.exception.waited, 1.5)
        client = self.timer_client("ping", "--rpc-timeout", f"{BOUND_S}s")
        with self.listener.accept()[0] as server:
            server.send(b'{"answer":"granted","wait_s":0.1}\n')
            time.sleep(1)
            server.send(b'{"answer":"done"}\n')
            self.assertEqual(client.wait(BOUND_S), 0)

    def test_a_connection_that_takes_long_leaves_less_time_for_the_answer(self):
        request, _ = self.request("ping")
        granted = request._deadline
        with self.assertRaises(errors.RpcTimeoutError):
            request.ask(b"?")
        self.assertEqual(request._deadline, granted)

    def test_a_server_that_accepts_no_connection_is_waited_for(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            opened = os.open(self.dir, os.O_PATH)
            other.connect(f"/proc/self/fd/{opened}/control")
            os.close(opened)
            pipe = os.path.join(self.dir, "requests")
            with self.assertRaisesRegex(errors.RpcTimeoutError, "it accepts no connection"):
                _ask.ask(pipe, {"request": "ping"}, 0.1)
            def handle(*_):
                raise TimeoutError("of the program")
            self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handle))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with self.assertRaisesRegex(TimeoutError, "^of the program$"):
                _ask.ask(pipe, {"request": "ping"}, BOUND_S)
            timer = threading.Timer(0.2, lambda: self.listener.accept()[0].close())
            timer.start()
            with self.assertRaisesRegex(errors.RpcTimeoutError, "it did not react"):
                _ask.ask(pipe, {"request": "ping"}, 2)
            timer.join()

    def test_an_error_of_a_handler_that_looks_like_a_sockets_ends_the_wait(self):
        def handle(*_):
            raise TimeoutError("timed out")
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handle))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaisesRegex(TimeoutError, "^timed out$"):
            self.ask(1)
        request, _ = self.request("ping")
        client = unittest.mock.Mock(**{"_stacks_file.return_value": "/none/stacks"})
        for where, call, use in ((socket, "socket", lambda: _ask.Request("/none/requests", "ping", 0)),
                                 (socket.socket, "send", lambda: request.ask(b"")),
                                 (socket.socket, "getsockopt", request._no_answer),
                                 (subprocess, "Popen", lambda: filetimer.Server(dir="/none", executable=SERVER)),
                                 (os, "fstat", request._kept.is_same),
                                 (os, "open", lambda: _stacks.offer(client)),
                                 (socket.socket, "shutdown", request.close)):
            with unittest.mock.patch.object(where, call, side_effect=TimeoutError("of a handler")), \
                    self.assertRaisesRegex(TimeoutError, "^of a handler$"):
                use()

    def test_a_handler_that_raises_an_os_error_ends_the_wait(self):
        # As that of the example in the documentation of the module signal.
        def handle(*_):
            raise OSError("of a handler")
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handle))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaisesRegex(OSError, "^of a handler$"):
            self.ask(1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            opened = os.open(self.dir, os.O_PATH)
            self.addCleanup(os.close, opened)
            other.connect(f"/proc/self/fd/{opened}/control")  # the server accepts no further one
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with self.assertRaisesRegex(OSError, "^of a handler$"):
                _ask.ask(os.path.join(self.dir, "requests"), {"request": "ping"}, BOUND_S)

    def test_a_request_has_a_size(self):
        room = 4096 - len('{"version": 1, "request": "ping", "name": ""}')
        for size, message in ((room, "no timer server at '/none/requests': no process listens on '/none/control'"),
                              (room + 1, "the request has 4097 bytes: expected at most 4096")):
            with self.assertRaisesRegex(filetimer.TimerError, f"^{message}$"):
                _ask.ask("/none/requests", {"request": "ping", "name": "n" * size}, BOUND_S)

    def test_a_system_call_that_fails_is_an_error_with_the_reason(self):
        for where, call, message in ((socket, "socket", "cannot make a socket: no"),
                                     (_ask.Request, "_connect_to", "cannot connect to '/none/control': no")):
            with unittest.mock.patch.object(where, call, side_effect=PermissionError(1, "no")):
                with self.assertRaisesRegex(filetimer.TimerError, f"^{message}$"):
                    _ask.ask("/none/requests", {"request": "ping"}, BOUND_S)
        request = _ask.Request("/none/requests", "ping", 0)  # of a server whose process is not visible here
        self.addCleanup(request.close)
        self.assertIn("its process is alive", str(request._no_answer()))


class Realtime(ServerCase):
    options = ("--realtime",)

    def test_its_threads_for_evidence_have_the_priority_too(self):
        pid = self.server.pid
        if os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK != os.SCHED_RR:
            self.skipTest("real-time scheduling is not allowed here")
        self.configure().start(FAR_S)
        def threads():
            return [int(each) for each in os.listdir(f"/proc/{pid}/task")
                    if os.sched_getscheduler(int(each)) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR]
        wait_until(lambda: len(threads()) > 1)

    def test_command_and_hooks_have_the_timer_slack_of_the_servers_caller(self):
        def slack(path="/proc/self/timerslack_ns"):
            with open(path, encoding="ascii") as file:
                return file.read()
        hook = self.folder + "/hook"
        ended = subprocess.run([SERVER, "--realtime", "--dir", self.folder + "/own", "--on-expiry",
                                f"cat /proc/self/timerslack_ns > '{hook}'", "--", "sh", "-c",
                                f"cat /proc/self/timerslack_ns; '{CLIENT}' run --timeout 50ms -- sleep 60"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, check=False)
        self.assertEqual((ended.stdout, slack(hook)), (slack(), slack()))


class OwnServer(unittest.TestCase):
    def test_it_watches_its_own_process_and_removes_its_folder(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            server = filetimer.Server()
        self.assertEqual(caught, [])  # a child process that is not reaped causes a warning
        with server:
            with filetimer.Client(server.dir) as client, client.expires(FAR_S):
                self.assertEqual(admin.status(client=client).open_scopes, 1)
            self.assertTrue(is_alive(server.pid))
            self.assertIn(str(server.pid), repr(server))
            self.assertTrue(os.path.exists(server.log))
            self.assertTrue(os.path.samefile(server.fifo, os.path.join(server.dir, "requests")))
            self.assertNotEqual(os.getsid(server.pid), os.getsid(0))  # Ctrl-C does not end it
            self.assertEqual(server.dir.startswith("/dev/shm/"), os.access("/dev/shm", os.W_OK))
        self.assertFalse(is_alive(server.pid))
        self.assertFalse(os.path.exists(server.dir))
        self.assertIn("ended", repr(server))
        server.close()

    def test_its_folder_is_removed_also_where_the_path_names_no_commands(self):
        with unittest.mock.patch.dict(os.environ, PATH="/none"), filetimer.Server() as server:
            folder = os.path.dirname(server.dir)
        wait_until(lambda: not os.path.exists(folder))

    def test_one_that_was_killed_with_its_shell_can_be_closed(self):
        server = filetimer.Server()
        with open(f"/proc/{server.pid}/stat", encoding="utf-8") as file:
            shell = int(file.read().rpartition(")")[2].split()[1])
        for pid in shell, server.pid:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(shell))
        server.close()
        wait_until(lambda: not os.path.exists(server.dir))

    def test_one_that_does_not_end_is_an_error(self):
        server = filetimer.Server()
        self.addCleanup(os.kill, server.pid, signal.SIGCONT)
        stop(server.pid)
        self.addCleanup(setattr, _server, "_STOP_S", _server._STOP_S)
        _server._STOP_S = 0.01
        with self.assertRaisesRegex(filetimer.TimerError, f"'{server.dir}' has not ended in 0.01 s"):
            server.close()

    def test_its_folder_is_the_same_from_every_working_directory(self):
        folder = suite.folder_of(self, "python")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder)
        with filetimer.Server(dir="run") as server:
            os.chdir("/")
            with filetimer.Client(server.dir, missing="raise") as client:
                self.assertTrue(client.is_watched)

    def test_its_log_may_have_any_name(self):
        name = os.path.join(suite.folder_of(self, "python"), os.fsdecode(b"a\nb\xff.jsonl"))
        with filetimer.Server("--log", name) as server:
            self.assertEqual(server.log, name)

    def test_its_own_user_may_search_its_folder_whatever_the_umask_is(self):
        self.addCleanup(os.umask, os.umask(0o177))
        with filetimer.Server() as server:
            self.assertEqual(os.stat(os.path.dirname(server.dir)).st_mode & 0o777, 0o700)

    def test_that_of_a_command_is_its_users_too_and_has_an_absolute_path(self):
        self.addCleanup(os.umask, os.umask(0o177))
        folder = suite.folder_of(self, "python")
        os.chmod(folder, 0o700)
        with open(folder + "/filetimer", "w"):  # so that there is no default directory
            pass
        os.mkdir(folder + "/relative")
        for temporary in folder, "relative":
            done = subprocess.run([SERVER, "--log", "log", "--", "sh", "-c", 'stat -c "%a %n" "$FILETIMER_DIR"'],
                                  cwd=folder, env={**os.environ, "XDG_RUNTIME_DIR": folder, "TMPDIR": temporary},
                                  stdout=subprocess.PIPE, text=True, timeout=BOUND_S)
            self.assertRegex(done.stdout, "^700 /")

    def test_it_ends_with_its_object_whatever_its_options_say(self):
        for options in (), ("--detach",):
            with self.subTest(options):
                server = filetimer.Server(*options)
                pid = server.pid
                self.assertTrue(os.path.exists(server.dir))
                del server
                wait_until(lambda: not is_alive(pid))

    def test_it_ends_although_a_hook_has_left_a_process_behind(self):
        left = os.path.join(suite.folder_of(self, "python"), "left")
        with filetimer.Server("--evidence", "none", "--on-expiry", f"sleep 60 & echo $! >'{left}'") as server:
            run_python("import filetimer, time\nwith filetimer.expires(0.1): time.sleep(60)",
                       env=dict(os.environ, FILETIMER_DIR=server.dir))
            wait_until(lambda: os.path.exists(left) and os.path.getsize(left))
            with open(left) as file:
                self.addCleanup(os.kill, int(file.read()), signal.SIGKILL)

    def test_what_an_evidence_command_has_left_behind_ends_with_it(self):
        left = os.path.join(suite.folder_of(self, "python"), "left")
        with filetimer.Server("--evidence-command", f"sleep 60 & echo $! >'{left}'") as server:
            run_python("import filetimer, time\nwith filetimer.expires(0.1): time.sleep(60)",
                       env=dict(os.environ, FILETIMER_DIR=server.dir))
            with open(left) as file:
                pid = int(file.read())
            wait_until(lambda: not is_alive(pid))

    def test_it_ends_although_its_caller_has_blocked_every_signal(self):
        script = ("import filetimer, os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
                  "server = filetimer.Server()\nserver.close()\n"
                  "assert not os.path.exists(os.path.dirname(server.dir))")
        self.assertEqual(run_python(script).returncode, 0)

    def test_it_ends_although_the_shells_of_its_caller_end_at_an_error(self):
        words = ["bash", "--posix", "-c", _server._KEEPER, "", SERVER, "--dir", suite.folder_of(self, "python") + "/run"]
        if not shutil.which(words[0]):
            self.skipTest("no bash")  # the sh of many systems
        keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "SHELLOPTS": "errexit"})
        with keeper:
            server = int(keeper.stdout.readline().rpartition("=")[2])
        wait_until(lambda: not is_alive(server))

    def test_no_process_gets_a_signal_that_has_the_pid_of_a_server_that_had_ended(self):
        note = os.path.join(suite.folder_of(self, "python"), "note")
        words = ["bash", "--posix", "-c", 'kill() { : >"$NOTE"; }; ' + _server._KEEPER, "", "sh", "-c", "echo $$"]
        if not shutil.which(words[0]):
            self.skipTest("no bash")  # the sh of many systems, which reaps it at once
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "NOTE": note}) as keeper:
            ended = int(keeper.stdout.readline())
            wait_until(lambda: not os.path.exists(f"/proc/{ended}"))
            keeper.stdin.close()
            self.assertEqual(keeper.stderr.read(), "")  # at the end of its shells
        self.assertFalse(os.path.exists(note))

    def test_one_that_was_closed_holds_no_descriptor(self):
        kept = []

        def use():
            server = filetimer.Server()
            server.close()
            kept.append(server)
            try:
                filetimer.Server(executable="/bin/false")
            except filetimer.ServerUnavailable as error:
                kept.append(error)  # with the frames, which assertRaises() would clear
            return len(os.listdir("/proc/self/fd"))
        before = use()
        for _ in range(3):
            self.assertEqual(use(), before)

    def test_one_whose_descriptors_were_closed_closes_no_other_files(self):
        for count in (0, 90):
            script = ("import filetimer, os\nserver = filetimer.Server()\nos.closerange(3, 100)\n"
                      f"mine = [os.open('/dev/null', os.O_RDONLY) for _ in range({count})]\nserver.close()\n"
                      "for number in mine:\n    os.fstat(number)")
            self.assertEqual(run_python(script).returncode, 0)

    def test_a_child_of_a_process_whose_descriptors_were_closed_during_a_request_closes_no_other_files(self):
        script = """
import filetimer, os, sys, threading, time
server = filetimer.Server()
filetimer.configure(server.dir)
def ask():
    try:
        filetimer.admin.rendezvous(0, 2, 15)
    except filetimer.TimerError:
        pass
thread = threading.Thread(target=ask)
thread.start()
while not filetimer.admin.status().askers:
    time.sleep(0.01)
# The request looks at the server now and then, and has a descriptor of its own meanwhile.
while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] != "S":
    pass
os.closerange(3, 1000)
mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
if os.fork() == 0:
    for number in mine:
        os.fstat(number)
    os._exit(0)
_, status = os.wait()
thread.join()
server.close()
for number in mine:
    os.fstat(number)
sys.exit(status)
"""
        self.assertEqual(run_python(script).returncode, 0)

    def test_it_starts_and_ends_in_a_process_with_many_open_files(self):
        script = ("import filetimer, os, resource\n_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
                  "resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))\n"
                  "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]\nfiletimer.Server().close()")
        self.assertEqual(run_python(script).returncode, 0)

    def test_it_ends_with_its_process_however_that_ends(self):
        for end in ("sys.exit()", "os._exit(0)", "os.kill(os.getpid(), 9)",
                    "os.fork() or time.sleep(0.2)"):
            with self.subTest(end):
                done = run_python("import filetimer, os, sys, time\nserver = filetimer.Server()\n"
                                  "print(server.pid, server.dir, flush=True)\n" + end, stdout=subprocess.PIPE)
                pid, folder = done.stdout.decode().split()[:2]
                wait_until(lambda: not is_alive(int(pid)))
                wait_until(lambda: not os.path.exists(os.path.dirname(folder)))

    def test_a_child_that_outlives_its_parent_does_not_keep_it(self):
        worker = subprocess.Popen(
            [sys.executable, "-c", "import filetimer, os, sys\nserver = filetimer.Server()\n"
             "print(server.pid, flush=True)\n"
             "os.fork() or (print(server, flush=True), os.close(1), sys.stdin.read())"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with worker:  # its end ends the child, too
            pid, state = worker.stdout.read().decode().splitlines()
            self.assertIn(f"pid {pid}>", state)
            pid = int(pid)
            wait_until(lambda: not is_alive(pid))

    def test_a_child_that_c_code_forks_does_not_end_it(self):
        # The hooks that Python calls at its own forks are not called.
        script = ("import ctypes, filetimer, os\nserver = filetimer.Server()\n"
                  "child = ctypes.PyDLL(None).fork()\n"
                  "if child == 0:\n    server.close()\n    os._exit(0)\n"
                  "assert os.waitpid(child, 0)[1] == 0\n"
                  "filetimer.admin.status(client=filetimer.Client(server.dir))")
        self.assertEqual(run_python(script).returncode, 0)

    def test_a_copy_does_not_end_it(self):
        with filetimer.Server() as server:
            for copied in (copy.copy(server), copy.deepcopy([server])[0], pickle.loads(pickle.dumps(server))):
                self.assertEqual(copied.dir, server.dir)
                copied.close()
            self.assertTrue(is_alive(server.pid))

    def test_it_ends_although_a_child_that_c_code_has_forked_lives(self):
        script = ("import ctypes, filetimer, os, signal\nserver = filetimer.Server()\n"
                  "child = ctypes.PyDLL(None).fork()\n"
                  "if child == 0:\n    signal.pause()\n"
                  "try:\n    server.close()\nfinally:\n    os.kill(child, signal.SIGKILL)")
        self.assertEqual(run_python(script).returncode, 0)

    def test_it_ends_although_a_child_lives_that_was_forked_during_its_start(self):
        script = ("import filetimer, os, signal\nfrom filetimer import _server\n"
                  "start = _server.subprocess.Popen\n"
                  "def fork_and_start(*args, **options):\n"
                  "    global child\n"
                  "    child = os.fork()  # as another thread may\n"
                  "    return start(*args, **options) if child else signal.pause()\n"
                  "_server.subprocess.Popen = fork_and_start\nserver = filetimer.Server()\n"
                  "try:\n    server.close()\nfinally:\n    os.kill(child, signal.SIGKILL)")
        self.assertEqual(run_python(script).returncode, 0)

    def test_it_kills_the_process_that_started_it(self):
        script = ("import filetimer, time\nserver = filetimer.Server()\n"
                  "filetimer.configure(server.dir)\nwith filetimer.expires(0.2): time.sleep(60)")
        self.assertEqual(run_python(script, stderr=subprocess.PIPE).returncode, -signal.SIGKILL)

    def test_a_server_that_cannot_be_started_is_an_error(self):
        with self.assertRaisesRegex(filetimer.ServerUnavailable, "did not start"):
            filetimer.Server(executable="/bin/false")
        with self.assertRaisesRegex(filetimer.ServerUnavailable, "did not start"):
            filetimer.Server("--bogus", executable=SERVER)
        made = os.path.join(suite.folder_of(self, "python"), "made")
        with self.assertRaisesRegex(filetimer.ServerUnavailable, "cannot run '/bin/sh': Argument list too long"), \
                unittest.mock.patch.object(_server.tempfile, "mkdtemp", lambda **_: os.mkdir(made) or made):
            filetimer.Server("-" * 200_000, executable=SERVER)
        self.assertFalse(os.path.exists(made))
        ends = os.pipe()
        with self.assertRaisesRegex(filetimer.ServerUnavailable, "Too many open files"), \
                unittest.mock.patch.object(_server.tempfile, "mkdtemp", lambda **_: os.mkdir(made) or made), \
                unittest.mock.patch.object(_server.os, "pipe", side_effect=[ends, OSError(0, "Too many open files")]):
            filetimer.Server()
        self.assertFalse(os.path.exists(made))
        for number in ends:
            self.assertRaises(OSError, os.fstat, number)
        with self.assertRaises(errors.InvalidArgument):
            filetimer.Server(3)
        environment = dict(os.environ, PATH="/nowhere")
        del environment["FILETIMER_SERVER"]
        folder = suite.folder_of(self, "python")
        script = ("import sys, sysconfig\nsysconfig.get_path = lambda _: sys.argv[1]\n"
                  "import filetimer\nfiletimer.Server()")
        done = run_python(script, folder, env=environment, stderr=subprocess.PIPE)
        self.assertIn(b"timer_server is neither beside this Python nor in $PATH", done.stderr)
        self.assertNotIn(b"Exception ignored", done.stderr)
        # A virtual environment that is not activated has it beside its python3.
        os.symlink(SERVER, os.path.join(folder, "timer_server"))
        other = suite.folder_of(self, "python")
        os.symlink("/bin/false", os.path.join(other, "timer_server"))
        for beside, path in ((folder, f"{other}:{os.environ['PATH']}"), ("/nowhere", f"{folder}:{os.environ['PATH']}")):
            environment["PATH"] = path
            done = run_python(script, beside, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    suite.main()
