// SPDX-License-Identifier: MIT
#include "timer_server/evidence/proc_evidence.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/limits.hpp"
#include "tests/support/bound.hpp"
#include "tests/support/kernel_stacks.hpp"
#include "tests/support/mounts.hpp"
#include "tests/support/skip.hpp"
#include "tests/timer_server/process_of.hpp"

using namespace filetimer;

TEST_CASE("A blocked read is listed with the file that it reads from") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  constexpr int kTwoDigits = 0x1f;  // of the hexadecimal number in /proc/PID/syscall
  const Child reader([&] { ::dup2(ends[0], kTwoDigits); },
                     [] {
                       char byte = 0;
                       (void)!::read(kTwoDigits, &byte, 1);
                     });
  const Process process = process_of(reader);
  Evidence evidence;
  REQUIRE(testing::wait_until([&] {
    evidence = read_proc_evidence(process.pid, process.start_time);
    return !evidence.threads.empty() && evidence.threads[0].syscall == "read" &&
           evidence.threads[0].state == 'S';
  }));
  CHECK(evidence.threads[0].tid == process.pid);
  CHECK(evidence.threads[0].syscall_fd.find("pipe:[") == 0);
  CHECK(evidence.rss_bytes > 0);
  CHECK(evidence.threads[0].stack.empty() == !testing::can_read_kernel_stacks());
  ::close(ends[1]);
  ::close(ends[0]);
}

TEST_CASE("The accelerators and network adapters that a process has open are listed, each once") {
  // The child has a /dev of its own. The server looks at names only, so regular files will do.
  SteppedChild worker({
      [] { return testing::enter_mount_namespace() && testing::mount_tmpfs("/dev", ""); },
      [] {
        for (const char* folder : {"/dev/dri", "/dev/infiniband"}) {
          ::mkdir(folder, 0700);
        }
        for (const char* device :
             {"/dev/nvidia1", "/dev/nvidia0", "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128",
              "/dev/accel0", "/dev/infiniband/uverbs0", "/dev/null", "/dev/kfd.log"}) {
          if (::open(device, O_RDWR | O_CREAT, 0600) < 0) {
            return false;
          }
        }
        return true;
      },
  });
  FILETIMER_SKIP_IF(!worker.next(), testing::kNoMounts);
  REQUIRE(worker.next());
  const Process process = process_of(worker);
  CHECK(read_proc_evidence(process.pid, process.start_time).devices ==
        std::vector<std::string>{"/dev/accel0", "/dev/dri/renderD128", "/dev/infiniband/uverbs0",
                                 "/dev/kfd", "/dev/nvidia0", "/dev/nvidia1"});
}

TEST_CASE("Another process with the pid of the worker gives no evidence") {
  Child worker;
  const Process process = process_of(worker);
  const Evidence evidence = read_proc_evidence(process.pid, process.start_time + 1);
  CHECK(evidence.threads.empty());
  CHECK(evidence.missing == "the process had ended");
}

TEST_CASE("Of many threads 64 are read first, and each of the others once, up to a number") {
  std::promise<void> done;
  const std::shared_future<void> wait = done.get_future().share();
  std::vector<std::jthread> others;
  for (std::size_t i = 0; i < kMaxEvidenceThreads; ++i) {
    others.emplace_back([wait] { wait.wait(); });
  }
  const Process self = std::move(*open_process(::getpid()));
  Evidence evidence = read_proc_evidence(self.pid, self.start_time);
  const std::size_t first = evidence.threads.size();
  const std::size_t left_out = evidence.threads_omitted;
  read_other_threads(self.pid, self.start_time, evidence);
  done.set_value();
  others.clear();  // waits for their ends
  CHECK(first == kThreadsReadFirst);
  CHECK(first + left_out >= kMaxEvidenceThreads + 1);  // a sanitizer may have a thread of its own
  CHECK(evidence.threads.size() == kMaxEvidenceThreads);
  CHECK(evidence.threads.size() + evidence.threads_omitted == first + left_out);
  std::ranges::sort(evidence.threads, {}, &ThreadEvidence::tid);
  CHECK(std::ranges::adjacent_find(evidence.threads, {}, &ThreadEvidence::tid) ==
        evidence.threads.end());
}

TEST_CASE("A CPU sample differs between a spinning process and a waiting one") {
  Child waiting;
  waiting.wait_until_asleep();
  const Process sleeper = process_of(waiting);
  const Child spinner([] {},
                      [] {
                        static std::atomic<unsigned> turns{0};
                        turns.fetch_add(1, std::memory_order_relaxed);
                      });
  const Process process = process_of(spinner);
  // On a busy machine the spinner may get no CPU during a sample; then another one is taken.
  REQUIRE(testing::wait_until([&] {
    Evidence evidence = read_proc_evidence(process.pid, process.start_time);
    std::this_thread::sleep_for(kCpuSample);
    finish_cpu_sample(process.pid, evidence);
    REQUIRE(!evidence.threads.empty());
    const double percent = evidence.threads[0].cpu_percent.value_or(0);
    CHECK(percent <= 100);
    CHECK(evidence.cpu_user_s < 60);
    return percent >= 10 && evidence.cpu_user_s >= 0.05;
  }));
  // A sample from before the deadline need not be waited for.
  const CpuSample early = read_cpu_sample(process.pid);
  std::this_thread::sleep_for(kCpuSample);
  Evidence spinning = read_proc_evidence(process.pid, process.start_time);
  const Instant read = spinning.threads.at(0).sampled;
  CHECK(spinning.threads[0].cpu_s > 0.03);
  begin_cpu_sample(early, spinning);
  CHECK(spinning.threads[0].sampled <= read + -kCpuSample);
  CHECK(spinning.threads[0].cpu_ns == early.threads.at(0).cpu_ns);
  CpuSample old = early;
  old.threads[0].sampled = read + -CpuSample::kLife;
  CpuSample of_another = early;
  of_another.threads[0].tid = ::getpid();
  for (const CpuSample& useless : {old, of_another}) {
    spinning = read_proc_evidence(process.pid, process.start_time);
    const Instant sampled = spinning.threads.at(0).sampled;
    begin_cpu_sample(useless, spinning);
    CHECK(spinning.threads[0].sampled == sampled);
  }
  Evidence evidence = read_proc_evidence(sleeper.pid, sleeper.start_time);
  finish_cpu_sample(sleeper.pid, evidence);
  CHECK(evidence.threads[0].cpu_percent.value_or(100) < 5);
}
