// Native stacks of a worker: their content, that reading them harms no process, and that a helper
// that fails costs only the stacks.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ptrace.h>

#include <random>
#include <thread>

#include "common/proc_files.hpp"
#include "common/sanitizers.hpp"
#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

Worker::Setup stacks_worker(const char* mode, int threads, const std::string& suffix = {}) {
  return {.program = {program_path("stacks_worker") + suffix, mode, std::to_string(threads)}};
}

std::vector<std::string> frames_of(simdjson::dom::element thread) {
  std::vector<std::string> frames;
  simdjson::dom::array array;
  if (thread["native_stack"].get(array) == simdjson::SUCCESS) {
    for (const auto frame : array) {
      frames.emplace_back(frame.get_string().value());
    }
  }
  return frames;
}

// Returns all threads of a record, sorted.
std::vector<pid_t> threads_in(const Record& evidence) {
  std::vector<pid_t> tids;
  for (const auto thread : evidence.array("threads")) {
    tids.push_back(static_cast<pid_t>(std::int64_t{thread["tid"]}));
    simdjson::dom::array same;
    if (thread["same_stack"].get(same) == simdjson::SUCCESS) {
      for (const auto others : same) {
        for (const std::int64_t tid : simdjson::dom::array{others["tids"]}) {
          tids.push_back(static_cast<pid_t>(tid));
        }
      }
    }
  }
  std::ranges::sort(tids);
  return tids;
}

bool has_frame(const std::vector<std::string>& frames, std::string_view begin) {
  return std::ranges::any_of(frames,
                             [&](const std::string& frame) { return frame.starts_with(begin); });
}

// Runs the helper as a server does, with a time limit of the test, on a process of the test.
class Helper : public Child {
 public:
  explicit Helper(pid_t pid, int limit_ms = 20'000)
      : Helper(pid, limit_ms, make_pipe(), make_pipe()) {}
  void go() {
    write_all(in_.get(), "go\n");
    in_.reset();  // there is no other worker
  }
  // Returns its output up to its end.
  std::string answer() {
    std::string all;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::read(out_.get(), bytes, sizeof bytes)) > 0;) {
      all.append(bytes, static_cast<std::size_t>(got));
    }
    CHECK(status() == exited(0));
    return all;
  }
  void kill() {
    signal(SIGKILL);
    status();
  }

 private:
  Helper(pid_t pid, int limit_ms, Pipe in, Pipe out)
      : Child(Launch{.argv = {program_path("filetimer-stacks")},
                     .in = in.read.get(),
                     .out_fd = out.write.get()}),
        in_(std::move(in.write)),
        out_(std::move(out.read)) {
    const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid));
    REQUIRE(stat);
    write_all(in_.get(), fmt::format("{} {} {} {}\n", pid, stat->start_time, ::getpid(), limit_ms));
  }

  filetimer::UniqueFd in_;
  filetimer::UniqueFd out_;
};

// Returns what a helper that is let do its work says.
std::string answer_about(pid_t pid) {
  Helper helper(pid);
  helper.go();
  return helper.answer();
}

pid_t tracer_of(const std::string& folder) {
  const auto status = filetimer::read_status(folder);
  return status ? status->tracer : 0;
}
pid_t tracer_of(pid_t pid) {
  return tracer_of(fmt::format("/proc/{}", pid));
}

// Returns whether every thread is neither traced nor stopped.
bool is_free(pid_t pid) {
  return std::ranges::all_of(filetimer::threads_of(pid), [&](pid_t tid) {
    const std::string folder = fmt::format("/proc/{}/task/{}", pid, tid);
    const auto stat = filetimer::read_stat(folder);
    return tracer_of(folder) == 0 && stat && stat->state != 't' && stat->state != 'T';
  });
}

void wait_until_asleep(pid_t pid, std::ptrdiff_t threads) {
  REQUIRE(wait_until([&] {
    return std::ranges::count_if(filetimer::threads_of(pid), [&](pid_t tid) {
             const auto stat = filetimer::read_stat(fmt::format("/proc/{}/task/{}", pid, tid));
             return stat && stat->state == 'S';
           }) == threads;
  }));
}

// A timer_server with `script` in place of the helper; empty: without a helper.
Server::Setup with_helper(const std::string& script, const std::string& timeout = "20s",
                          const std::function<void()>& in_child = {}) {
  return {.args = {"--evidence", "stacks", "--evidence-timeout", timeout},
          .helper = script,
          .in_child = in_child};
}

// The `evidence` record of a hung worker that is killed. On a busy machine a thread may not stop
// within the helper's time, or the time may not do for all stacks; then another worker is tried.
Record evidence_of(
    const Worker::Setup& setup,
    const std::function<void(const Worker&)>& wait_until_hung = [](const Worker&) {}) {
  const Server server({"--evidence-timeout", "20s"});
  constexpr int kTries = 10;
  for (int tries = 1;; ++tries) {
    Worker worker(setup);
    wait_until_hung(worker);
    expire(server, worker);
    Record evidence = server.wait_for("evidence", worker.pid());
    const std::string missing = evidence.has("missing") ? evidence.text("missing") : "";
    const bool is_busy = contains(missing, "it did not stop") ||
                         contains(missing, "stopped for the longest time allowed");
    if (!is_busy || tries == kTries) {
      return evidence;
    }
  }
}

constexpr const char* kNoLease = "no lease on a file can be taken here";

// While the lease lasts, an execution of the file waits, as for a hung file server.
class Lease {
 public:
  explicit Lease(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    REQUIRE(file_);
    ::sigprocmask(SIG_BLOCK, &broken_, nullptr);  // for good: a second one would end the test
    is_taken_ = ::fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  }
  [[nodiscard]] bool is_taken() const { return is_taken_; }
  // Waits until the file is being executed. Returns false after kBound.
  [[nodiscard]] bool is_asked_for() const {
    const timespec bound{.tv_sec = kBound / 1s, .tv_nsec = 0};
    return ::sigtimedwait(&broken_, nullptr, &bound) == SIGIO;
  }
  [[nodiscard]] bool end() const { return ::fcntl(file_.get(), F_SETLEASE, F_UNLCK) == 0; }

 private:
  const filetimer::UniqueFd file_;
  const sigset_t broken_ = filetimer::signal_set({SIGIO});
  bool is_taken_ = false;
};

bool has_helper(const Server& server) {
  return std::ranges::any_of(filetimer::threads_of(server.pid()), [&](pid_t tid) {
    return !filetimer::children_of(server.pid(), tid).empty();
  });
}

std::string missing_with_helper(const std::string& script, const std::string& timeout = "20s") {
  Server server(with_helper(script, timeout));
  expire(server);
  const Record evidence = server.wait_for("evidence");
  CHECK(evidence.array("threads").size() == 1);  // what /proc says is there all the same
  CHECK(server.stop() == exited(0));
  return missing_in(evidence);
}

}  // namespace

TEST_CASE("a helper that was started for a scope which is then released ends") {
  const Server server({"--dry-run", "--evidence", "stacks"});
  const auto worker = page_worker(server.dir(), "w-1");
  CHECK(wait_until([&] {  // a helper that ends with its scope may have been missed
    if (worker->ask("word 0") != "open") {
      worker->ask("wake 0 forward 300");
    }
    return has_helper(server);
  }));
  worker->ask("release 0");
  CHECK(wait_until([&] { return !has_helper(server); }));
}

// A lease holds up the start of the helper until a scan has found that the scope has ended.
TEST_CASE("a helper that starts after the end of its scope does not stay") {
  const TempFolder temp;
  const Server server(temp, with_helper("exec sleep 100", "4s"));
  const Lease lease(temp.path("filetimer-stacks"));
  FILETIMER_SKIP_IF(!lease.is_taken(), kNoLease);
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask("wake 0 forward 300");
  CHECK(lease.is_asked_for());
  worker->ask("release 0");
  worker->ask("hint");
  let_pass(5ms);  // the scan
  CHECK(lease.end());
  CHECK(wait_until([&] { return !has_helper(server); }));
}

TEST_CASE("a worker that the stacks helper traces is not taken for one under a debugger") {
  constexpr int kScopes = 150;
  Server server({"--evidence", "stacks", "--evidence-timeout", "20s"});
  Worker worker(stacks_worker("hang", 16));
  // A scope is due every 2 ms, while stacks are read for those before it.
  std::string lines;
  for (int i = 0; i < kScopes; ++i) {
    lines += acquire(worker.pid(), fmt::format("s{}", i), 50ms + i * 2ms, 0);
  }
  server.send(lines);
  CHECK(wait_until([&] {
    return count(server.records(), "killed", worker.pid()) == static_cast<std::size_t>(kScopes);
  }));
  const Records records = server.records();
  // A record without a pid says that the server itself was late.
  CHECK(count(records, "deferred", worker.pid()) == 0);
  CHECK(std::ranges::any_of(records, [](const Record& r) { return r.has("held_ms"); }));
}

TEST_CASE("stacks name the functions that threads wait, spin and read in, with their CPU time") {
  const Record evidence = evidence_of(stacks_worker("hang", 3), [](const Worker& worker) {
    wait_until_asleep(worker.pid(), 3);  // the fourth spins
  });
  CAPTURE(evidence.line());
  std::vector<std::vector<std::string>> stacks;
  for (const auto thread : evidence.array("threads")) {
    stacks.push_back(frames_of(thread));
    const std::string doing(thread["doing"].get_string().value());
    CHECK(thread["cpu_percent"].is_number());
    if (has_frame(stacks.back(), "hang::in_loop(")) {
      CHECK(doing.starts_with("r"));  // running, or on a busy machine ready to run
    } else {
      CHECK(doing.starts_with("waiting in "));
    }
  }
  REQUIRE(stacks.size() == 4);
  CHECK(has_frame(stacks[0], "hang::in_read(int)+0x"));
  CHECK(has_frame(stacks[0], "main+0x"));
  CHECK(has_frame(stacks[1], "hang::in_lock(std::mutex&)+0x"));
  CHECK(has_frame(stacks[2], "hang::in_loop(std::atomic<unsigned int>&)+0x"));
  CHECK(has_frame(stacks[3], "hang::in_read(int)+0x"));
  CHECK(stacks[0][0].ends_with(" (libc.so.6)"));
  CHECK(evidence.number("held_ms") > 0);
  CHECK(evidence.text("state") == "S");  // from before it was held
}

TEST_CASE("without symbols a frame has the file and the offset in it") {
  const Record evidence = evidence_of(stacks_worker("hang", 0, "_stripped"));
  CAPTURE(evidence.line());
  const auto frames = frames_of(evidence.array("threads").at(0).value());
  REQUIRE(has_frame(frames, "stacks_worker_stripped+0x"));
  const auto frame = std::ranges::find_if(
      frames, [](const auto& each) { return each.starts_with("stacks_worker_stripped+0x"); });
  CHECK(std::stoul(frame->substr(frame->find("0x")), nullptr, 16) < 1U << 30);
}

TEST_CASE("each of 4 stacks of 100 threads is recorded once, with its threads") {
  std::vector<pid_t> tids;
  const Record evidence = evidence_of(stacks_worker("pool", 99), [&](const Worker& worker) {
    wait_until_asleep(worker.pid(), 100);
    tids = filetimer::threads_of(worker.pid());
  });
  CAPTURE(evidence.line());
  CHECK(evidence.array("threads").size() == 4);
  CHECK_FALSE(evidence.has("threads_omitted"));
  CHECK(missing_in(evidence) == "");
  std::ranges::sort(tids);
  CHECK(threads_in(evidence) == tids);
  std::size_t named = 0;
  for (const char* function : {"in_lock(", "in_read(", "in_pause("}) {
    for (const auto thread : evidence.array("threads")) {
      if (has_frame(frames_of(thread), std::string("hang::") + function)) {
        ++named;
        CHECK(std::string_view(thread["doing"].get_string().value()).starts_with("waiting in "));
      }
    }
  }
  CHECK(named == 4);  // the main thread reads, too
}

TEST_CASE("a stack that leaves all files of code is cut, with the reason that libdw gives") {
  const Worker worker(stacks_worker("astray", 1));
  std::string answer;
  REQUIRE(wait_until([&] {  // its thread is on its way there
    answer = answer_about(worker.pid());
    return contains(answer, "\ncut ");
  }));
  CAPTURE(answer);
  CHECK_FALSE(contains(answer, "libdw gives no reason"));
}

TEST_CASE("a deleted file of code is read from memory") {
  const TempFolder temp;
  Worker::Setup setup = stacks_worker("hang", 0);
  std::filesystem::copy_file(setup.program[0], temp.path("gone"));
  setup.program[0] = temp.path("gone");
  const Worker worker(setup);
  REQUIRE(std::filesystem::remove(setup.program[0]));
  const std::string answer = answer_about(worker.pid());
  CAPTURE(answer);
  CHECK((contains(answer, "(gone (deleted))") || contains(answer, "gone (deleted)+0x")));
  CHECK(answer.ends_with("end\n"));
}

TEST_CASE("a file of code that is larger than the memory of the helper is read") {
  const TempFolder temp;
  Worker::Setup setup = stacks_worker("hang", 0);
  std::filesystem::copy_file(setup.program[0], temp.path("large"));
  setup.program[0] = temp.path("large");
  std::filesystem::resize_file(setup.program[0], std::uintmax_t{2} << 30);  // kMaxMemory is half
  const Worker worker(setup);
  wait_until_asleep(worker.pid(), 1);
  CHECK(contains(answer_about(worker.pid()), "frame hang::in_read(int)+0x"));
}

TEST_CASE("a helper that is killed at any moment leaves the worker neither stopped nor traced") {
  Worker worker(stacks_worker("serve", 8));
  std::minstd_rand random(1);
  std::uniform_int_distribution<int> delay_us(0, 20'000);
  int held = 0;
  for (int i = 0; i < 50; ++i) {
    Helper helper(worker.pid());
    helper.go();
    if (i % 2 == 0) {
      // While it has stopped some threads, or all of them.
      bool is_held = false;
      while (!is_held && helper.is_alive()) {
        is_held = tracer_of(worker.pid()) == helper.pid();
      }
      held += is_held ? 1 : 0;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random)));
    }
    helper.kill();
    CHECK(is_free(worker.pid()));
    REQUIRE(worker.ask("ping") == "pong");
  }
  CHECK(held > 0);
}

TEST_CASE("a helper that a stopped server leaves waiting ends at its time limit") {
  Worker worker("block");
  Helper helper(worker.pid(), 300);
  CHECK(helper.status() == killed_by(SIGALRM));
}

TEST_CASE("a worker loses no signal while the helper stops it") {
  Worker worker(stacks_worker("serve", 4));
  constexpr int kSignals = 5000;
  std::jthread sender([&] {
    for (int i = 0; i < kSignals; ++i) {
      // Each of these signals is queued separately; EAGAIN: the queue is full.
      while (::sigqueue(worker.pid(), SIGRTMIN, {}) != 0) {
        std::this_thread::yield();
      }
    }
  });
  for (int i = 0; i < 20; ++i) {
    CHECK(answer_about(worker.pid()).ends_with("end\n"));
  }
  sender.join();
  CHECK(wait_until([&] { return worker.ask("signals") == std::to_string(kSignals); }));
  CHECK(is_free(worker.pid()));
}

TEST_CASE("a worker that was stopped before stays stopped, and its stacks are read") {
  Worker worker(stacks_worker("serve", 4));
  worker.halt();
  const std::string answer = answer_about(worker.pid());
  CHECK(contains(answer, "\nframe "));
  CHECK(tracer_of(worker.pid()) == 0);
  worker.wait_until_stopped();
  worker.signal(SIGCONT);
  CHECK(worker.ask("ping") == "pong");
}

TEST_CASE("a worker that another process traces is left alone, and the record says so") {
  Worker worker(stacks_worker("serve", 0));
  REQUIRE(::ptrace(PTRACE_SEIZE, worker.pid(), nullptr, nullptr) == 0);
  const std::string answer = answer_about(worker.pid());
  CAPTURE(answer);
  CHECK(contains(answer, fmt::format("note no native stacks: cannot trace pid {}: Operation not "
                                     "permitted (pid {} traces it)\n",
                                     worker.pid(), ::getpid())));
}

TEST_CASE("the stacks of a worker that dies while the helper stops it are missing") {
  for (int i = 0; i < 10; ++i) {
    Worker worker(stacks_worker("serve", 8));
    Helper helper(worker.pid());
    helper.go();
    wait_until([&] { return tracer_of(worker.pid()) != 0; }, 5ms);
    worker.signal(SIGKILL);
    CHECK(helper.answer().ends_with("end\n"));
    CHECK(worker.status() == killed_by(SIGKILL));
  }
}

TEST_CASE("a helper without a server ends by itself, and says that it is not started by hand") {
  Worker worker(stacks_worker("serve", 1));
  const TempFolder temp;
  // Its parent is the shell, and not the server that its request names.
  write_file(temp.path("request"), fmt::format("{} 1 1 20000\ngo\n", worker.pid()));
  Child shell(Launch{
      .argv = {"/bin/sh", "-c",
               program_path("filetimer-stacks") + " < " + temp.path("request") + " || exit 9"},
      .out = temp.path("out")});
  CHECK(shell.status() == exited(9));
  CHECK(read_file(temp.path("out")).empty());
  CHECK(is_free(worker.pid()));
  const Finished by_hand = run(program_path("filetimer-stacks"), {});
  CHECK(by_hand.status == exited(2));
  CHECK(by_hand.err == "filetimer-stacks: started by timer_server, not by hand\n");
}

// One that ends before its request is sent has not been started.
TEST_CASE("a helper that is missing, crashes, hangs or says nothing useful costs only the stacks") {
  CHECK(missing_with_helper("").find("no native stacks: '") == 0);
  CHECK(contains(missing_with_helper(""), "filetimer-stacks' is missing"));
  CHECK(missing_with_helper("read request; kill -SEGV $$") ==
        "native stacks are incomplete: the helper was ended by signal 11");
  CHECK(missing_with_helper("read request; exit 3") ==
        "native stacks are incomplete: the helper ended with status 3");
  CHECK(missing_with_helper("read request; head -c 3000000 /dev/urandom")
            .find("native stacks are incomplete") == 0);
  CHECK(missing_with_helper("read request; echo end").empty());
  // One that ignores signals delays the kill by --evidence-timeout only.
  CHECK(contains(missing_with_helper("trap '' TERM INT HUP; exec sleep 100", "300ms"),
                 "time was up"));
}

TEST_CASE("the helper is looked for where the program of the server was when it started") {
  Server server(with_helper("read request; exit 3"));
  const TempFolder& temp = server.temp();
  std::filesystem::create_directory(temp.path("pip"));
  std::filesystem::rename(temp.path("timer_server"), temp.path("pip/timer_server"));
  write_program(temp.path("pip/filetimer-stacks"), "#!/bin/sh\nexit 4\n");  // of another user
  expire(server);
  CHECK(contains(missing_in(server.wait_for("evidence")), "the helper ended with status 3"));
}

TEST_CASE("a helper whose execution hangs delays no deadline") {
  const TempFolder temp;
  Server server(temp, with_helper("exit 0"));
  const Lease lease(temp.path("filetimer-stacks"));
  FILETIMER_SKIP_IF(!lease.is_taken(), kNoLease);
  HungWorker first(server);
  CHECK(lease.is_asked_for());
  server.process().signal(SIGCHLD);
  WorkerInScope second(server, "s", 200ms);
  check_prompt(server, second.pid());
  CHECK(lease.end());
  CHECK(first.status() == killed_by(SIGKILL));
  CHECK(second.status() == killed_by(SIGKILL));
}

TEST_CASE("a full server does not remove a judged worker that can still be spared") {
  Server server(with_helper("exec sleep 100", "10s", limit(RLIMIT_NOFILE, {64, 64})));
  Worker judged("block");
  const auto workers = workers_in_scopes(server, 15);
  Worker one_more("block");
  server.send(acquire_past(judged.pid(), "s"));
  server.wait_for("expired", judged.pid());
  server.send(acquire_far(one_more.pid(), "s") + release(judged.pid(), "s"));
  const Record rejected = server.wait_for("rejected", one_more.pid());
  CHECK(contains(rejected.text("reason"), "no more fit"));
  CHECK(server.wait_for("killed", judged.pid()).text("verdict") == "spared");
  CHECK(judged.is_alive());
}

TEST_CASE("a helper that hangs delays a first signal by a quarter of the grace period only") {
  const Server server(with_helper("exec sleep 100", "1h"));
  Worker worker("catch-signals");
  server.send(with_own_keys(acquire_past(worker.pid(), "s", SIGUSR1),
                            R"("x_timeout_s": 0.000001, "x_grace_s": 4, "x_signal_first": true)"));
  CHECK(worker.line() == fmt::format("signal {}", SIGUSR1));
}

TEST_CASE("a worker in the grace period of a kill is not signalled for another scope") {
  constexpr unsigned kSignalFirst = 64;
  const Server server(with_helper("exec sleep 100", "6s"));
  const auto worker = page_worker(server.dir(), "w-1");
  worker->ask(fmt::format("wake 0 step 1 {} 3600000", SIGURG));
  worker->ask(fmt::format("wake 1 inner 500 {} 3600000 {}", SIGUSR1, kSignalFirst));
  CHECK_FALSE(server.wait_for("warned", worker->pid()).has("signal"));
  CHECK(worker->is_alive());
}

TEST_CASE("a kill that spares its worker does not hold up a scope that asks for SIGKILL for long") {
  Server server(with_helper("exec sleep 100", "1m"));
  int signal = 0;
  SUBCASE("signal 0") {}
  SUBCASE("a signal that the worker survives, without a grace period") {
    signal = SIGTERM;
  }
  HungWorker worker(server, "first", signal, "ignore-term");
  server.wait_for("expired", worker.pid());
  server.send(acquire_far(worker.pid(), "other") + acquire_past(worker.pid(), "second"));
  const Record second = server.wait_for("expired", "second");
  const Record first = server.wait_for("killed", worker.pid());
  CHECK(first.text("scope") == "first");
  CHECK(first.text("verdict") == "spared");
  CHECK(first.integer("mono_ns") <= second.integer("mono_ns"));
}

TEST_CASE("a scope that is released while a kill holds it up does not end the kill early") {
  // The kill ends 500 ms after the deadline of `second` if that is not released.
  until_in_time(400ms, [](std::chrono::milliseconds) {
    Server server({"--evidence", "none"});
    HungWorker worker(server, "first", SIGTERM, "ignore-term");
    server.wait_for("expired", worker.pid());
    const auto begun = filetimer::Instant::now();
    server.send(acquire_past(worker.pid(), "second"));
    let_pass(50ms);
    server.send(release(worker.pid(), "second"));
    if (filetimer::Instant::now() - begun > 400ms) {
      return false;
    }
    let_pass(800ms);
    CHECK(count(server.records(), "killed", worker.pid()) == 0);
    CHECK(count(server.records(), "expired", worker.pid()) == 1);
    return true;
  });
}

TEST_CASE("the helper may use no more than 1 GiB of memory, and is killed first when it is short") {
  Worker worker("block");
  const Helper helper(worker.pid());
  const std::string proc = fmt::format("/proc/{}/", helper.pid());
  CHECK(wait_until([&] { return read_file(proc + "oom_score_adj") == "1000\n"; }));
  CHECK(wait_until([&] {
    return filetimer::kIsSanitized ||  // sanitizers map terabytes
           contains(read_file(proc + "limits"), "Max data size             1073741824 ");
  }));
}
