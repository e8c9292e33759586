# SPDX-License-Identifier: MIT
"""Threads that enter and leave scopes in any order: no scope is lost, and no thread deadlocks."""
import gc
import os
import sys
import threading
import tracemalloc
import weakref

import filetimer
import suite
from filetimer import admin, errors
from harness import FAR_S, ConfiguredCase

THREADS = 8
ROUNDS = 5000


ROUNDS_OF_A_LEAK = 3


def least_growth(measured, work, rounds=ROUNDS_OF_A_LEAK):
    """Returns the least growth of measured() over one of several rounds of work(): a leak grows in
    each round.
    """
    growths = []
    for _ in range(rounds):
        gc.collect()
        before = measured()
        work()
        gc.collect()
        growths.append(measured() - before)
    return min(growths)


def resident_kb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Threads(ConfiguredCase):
    def setUp(self):
        super().setUp()
        switches = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # so that threads switch at any place
        self.addCleanup(sys.setswitchinterval, switches)

    def run_in_threads(self, work, count=THREADS):
        failures = []

        def run(number):
            try:
                work(number)
            except BaseException as error:
                failures.append(error)
                raise
        threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_eight_threads_lose_no_scope_also_of_one_that_they_share(self):
        shared = filetimer.Scope(FAR_S, "shared")

        def work(number):
            mine = filetimer.Scope(FAR_S, "mine")
            for i in range(ROUNDS):
                with mine, shared, filetimer.expires(FAR_S, "named"):
                    with filetimer.expires(FAR_S, f"thread {number}, {i % 20}"):
                        pass
                if i % 100 == 0:
                    with filetimer.paused("pause"):
                        filetimer.heartbeat(FAR_S, "heart").beat()
        self.run_in_threads(work)
        self.assertEqual(self.open_scopes(), [])
        counts = self.statistics()
        for name in "mine", "shared", "named":
            self.assertEqual(counts[name], THREADS * ROUNDS, name)
        self.assertEqual(sum(count for name, count in counts.items() if name.startswith("thread")),
                         THREADS * ROUNDS)

    def test_a_thread_that_ends_inside_a_scope_leaves_it_watched(self):
        scope = filetimer.Scope(FAR_S, "left")
        self.run_in_threads(lambda _: scope.acquire(), 1)
        self.assertEqual(self.open_scopes(), ["left"])
        scope.release()

    def test_clients_may_connect_and_close_during_requests_of_others(self):
        client = filetimer.Client(self.dir)

        def work(number):
            if number == 0:
                for _ in range(20):
                    filetimer.Client(self.dir).close()
                client.close()
                return
            try:
                while True:
                    admin.status(client=client)
                    with client.expires(FAR_S, "x"):
                        pass
            except filetimer.TimerError as error:
                if "is closed" not in str(error):
                    raise
        self.run_in_threads(work, 4)

    def test_requests_of_several_threads_wait_in_parallel(self):
        self.run_in_threads(lambda rank: admin.rendezvous(rank, THREADS, 20))

    def test_a_million_scopes_leak_nothing(self):
        scope = filetimer.Scope(FAR_S, "prepared")

        def work(count):
            for _ in range(count):
                with scope:
                    pass
                with filetimer.expires(FAR_S, "named", signal=15):
                    pass
                with filetimer.expires(FAR_S):
                    pass
                try:
                    filetimer.expires(-1)
                except ValueError:
                    pass
        work(1000)
        # Three allocations each, of at least 16 bytes: a leak of one of the three is 1,800 KiB.
        self.assertLess(least_growth(resident_kb, lambda: work(117_000)), 512)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        work(100)
        self.assertLess(least_growth(lambda: tracemalloc.get_traced_memory()[0],
                                     lambda: work(3_000)), 4096)

    def test_further_uses_of_a_scope_leak_nothing(self):
        scope = filetimer.Scope(FAR_S, "again")

        def renew():
            scope.renew()  # it looks for the one of its caller

        def work():
            for _ in range(10_000):
                scope.acquire()
                scope.release()
                with scope, scope:
                    renew()
        work()
        self.assertLess(least_growth(resident_kb, work), 512)  # an allocation each is over 600 KiB

    def test_a_client_that_keeps_its_own_scopes_is_collected(self):
        class Mine(filetimer.Client):
            pass
        for keep in (lambda client: filetimer.Scope(FAR_S, "x", client=client),
                     lambda client: client.heartbeat(FAR_S), lambda client: client.paused()):
            client = Mine(self.dir)
            client.kept = keep(client)
            known = weakref.ref(client)
            del client
            gc.collect()
            self.assertIsNone(known())
        self.assertEqual(self.open_scopes(), [])

    def test_requests_and_objects_leak_no_reference(self):
        def work():
            admin.status()
            filetimer.expires(FAR_S, "x")(lambda: 3)()
            scope = filetimer.Scope(FAR_S, "y", grace=3)
            with scope:
                repr(scope), scope.times(), scope.name, scope.elapsed, scope.remaining
            with filetimer.paused(), filetimer.heartbeat(FAR_S) as heart:
                heart.times()
            with filetimer.Client(self.dir):
                pass
            for _ in filetimer.each(range(3), FAR_S):
                pass
            try:
                admin.rendezvous(5, 1, 1)
            except errors.InvalidArgument:
                pass
        def work_often(times=100):
            for _ in range(times):
                work()
        work_often(20)
        # The interpreter's own caches grow by up to 96 blocks in each of the first three rounds.
        self.assertLess(least_growth(sys.getallocatedblocks, work_often, rounds=8), 50)


if __name__ == "__main__":
    suite.main()
