// The rate at which a reader takes requests from the pipe of writers that never pause.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "tests/bench/sections.hpp"
#include "tests/bench/torch.hpp"

namespace filetimer::bench {
namespace {

constexpr double kTargetOfBare = 0.85;
// The size of the server's reads.
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

// Starts the writers together, each with its own descriptor of the pipe, and returns the lines per
// second from the start until the pipe is empty after the last line. Half of the lines open a scope
// and half end it, one write each.
double drive(const std::string& fifo, int writers, int lines,
             const std::function<void()>& settle = {}) {
  const UniqueFd pipe(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));
  if (!pipe) {
    fail_errno("cannot open " + fifo);
  }
  Pipe start = make_pipe();
  Pipe done = make_pipe();
  Pipe leave = make_pipe();
  std::vector<Child> children;
  for (int i = 0; i < writers; ++i) {
    children.push_back(fork_child([&] {
      start.write.reset();
      leave.write.reset();
      const std::string acquire =
          request_line(::getpid(), "forward_pass", unix_in(std::chrono::hours(1)));
      const std::string release = request_line(::getpid(), "forward_pass", -1, 0);
      char c = 0;
      (void)!::read(start.read.get(), &c, 1);  // end-of-file is the start
      for (int line = 0; line < lines / writers; line += 2) {
        write_all(pipe.get(), acquire.data(), acquire.size());
        write_all(pipe.get(), release.data(), release.size());
      }
      write_all(done.write.get(), &c, 1);
      // Alive until all is read, because requests of a process that has ended do not count.
      (void)!::read(leave.read.get(), &c, 1);
    }));
  }
  const Instant begin = Instant::now();
  start.write.reset();
  for (int i = 0; i < writers; ++i) {
    char c = 0;
    read_all(done.read.get(), &c, 1);
  }
  wait_until_drained(pipe.get());
  const std::chrono::duration<double> taken = Instant::now() - begin;
  if (settle) {
    settle();  // the server may still process its last read
  }
  leave.write.reset();
  for (Child& child : children) {
    child.wait();
  }
  return lines / taken.count();
}

// Splits and counts lines up to the end of file.
std::uint64_t split_lines(const std::string& fifo, int pipe_bytes) {
  const UniqueFd pipe(::open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
  ::fcntl(pipe.get(), F_SETPIPE_SZ, pipe_bytes);
  std::vector<char> buffer(kReadBytes);
  std::uint64_t lines = 0;
  for (;;) {
    const ssize_t got = retry_eintr([&] { return ::read(pipe.get(), buffer.data(), kReadBytes); });
    if (got <= 0) {
      return lines;
    }
    const char* at = buffer.data();
    const char* const end = at + got;
    while ((at = static_cast<const char*>(
                std::memchr(at, '\n', static_cast<std::size_t>(end - at)))) != nullptr) {
      ++lines;
      if (++at == end) {
        break;
      }
    }
  }
}

double bare_rate(const Plan& plan, int writers, int pipe_bytes, Report& report) {
  const std::string fifo = plan.memory_dir + "/bare";
  ::unlink(fifo.c_str());
  ::mkfifo(fifo.c_str(), 0600);
  Pipe result = make_pipe();
  Child reader = fork_child([&] {
    const std::uint64_t lines = split_lines(fifo, pipe_bytes);
    write_all(result.write.get(), &lines, sizeof lines);
  });
  const double rate = drive(fifo, writers, plan.ingest_lines);
  std::uint64_t lines = 0;
  read_all(result.read.get(), &lines, sizeof lines);
  reader.wait();
  if (lines != static_cast<std::uint64_t>(plan.ingest_lines)) {
    report.fault(fmt::format("the bare reader saw {} lines of {}", lines, plan.ingest_lines));
  }
  return rate;
}

void measure_torch(const Plan& plan, int writers, double bare, Report& report) {
  const std::string what =
      fmt::format("PyTorch's server, {} writer{}", writers, writers > 1 ? "s" : "");
  auto torch = TorchServer::start(plan, "torch-ingest");
  if (!torch) {
    report.add(without_torch(plan, what));
    return;
  }
  report.add(what, "M lines/s", drive(torch->fifo, writers, plan.ingest_lines) / 1e6, bare);
  torch->stop();
}

}  // namespace

void measure_ingest(const Plan& plan, Report& report) {
  report.section("requests read from the pipe, writers that never pause",
                 "a reader that only splits lines, same pipe size, same writers");
  ServerUnderTest server(plan.server, plan.memory_dir + "/ingest");
  const int pipe_bytes = ::fcntl(server.pipe(), F_GETPIPE_SZ);
  std::int64_t sent = 0;
  for (const int writers : {1, 4}) {
    Samples bare;
    Samples ours;
    Samples ratios;
    for (int round = 0; round < plan.ingest_rounds; ++round) {
      const double bare_now = bare_rate(plan, writers, pipe_bytes, report) / 1e6;
      const double ours_now =
          drive(server.fifo(), writers, plan.ingest_lines, [&] { server.settle(); }) / 1e6;
      sent += plan.ingest_lines + 1;  // and the marker
      bare.add(bare_now);
      ours.add(ours_now);
      ratios.add(ours_now / bare_now);
    }
    report.add({.measure = fmt::format("{} writer{}, median of {} turns", writers,
                                       writers > 1 ? "s" : "", plan.ingest_rounds),
                .unit = "M lines/s",
                .value = ours.median(),
                .base = bare.median(),
                .ratio = ratios.median(),
                .target = Target::ratio_at_least(kTargetOfBare)});
    measure_torch(plan, writers, bare.median(), report);
  }
  const LastWords words = server.stop();
  if (words.requests != sent || words.rejected != 0) {
    report.fault(fmt::format("of {} lines the server read {} and rejected {}", sent, words.requests,
                             words.rejected));
  }
}

}  // namespace filetimer::bench
