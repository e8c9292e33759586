// `timer_client log` over the logs of two servers with different host names, one of which has a
// rank that hangs. Setting a host name takes root (CAP_SYS_ADMIN).
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "tests/process/harness.hpp"
#include "tests/process/requests.hpp"
#include "tests/process/worker.hpp"
#include "tests/support/skip.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

bool may_name_hosts() {
  Child child({.argv = {"/bin/true"}, .in_child = [] {
                 if (::unshare(CLONE_NEWUTS) != 0) {
                   ::_exit(1);
                 }
               }});
  return child.status() == exited(0);
}

// A server with the host name `host`, in a directory of that name.
Server::Setup on_host(const char* host) {
  return {.folder = host, .in_child = [host] {
            if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(host, std::strlen(host)) != 0) {
              ::_exit(1);
            }
          }};
}

Worker::Setup with_rank(int rank, const char* job = "8812") {
  return {.environment = {{"RANK", std::to_string(rank)}, {"SLURM_JOB_ID", job}}};
}

// Returns the output of `timer_client log` over all logs below `temp`, with spaces for newlines.
std::string log_page(const TempFolder& temp) {
  Child client({.argv = {client_path(), "log", temp.path()}, .out = temp.path("out")});
  CHECK(client.status() == exited(0));
  return unwrapped(read_file(temp.path("out")));
}

}  // namespace

TEST_CASE("the logs of two hosts show which of their four ranks hung first") {
  if (!may_name_hosts()) {
    FILETIMER_SKIP("setting a host name is not allowed here");
  }
  const TempFolder temp;
  Server near(temp, on_host("node-near"));
  Server far(temp, on_host("node-far"));
  const Worker near_0("block", with_rank(0));
  const Worker near_1("block", with_rank(1));
  Worker far_2("block", with_rank(2));
  const Worker far_3("block", with_rank(3));
  near.send(acquire(near_0.pid(), "exchange", 3s));
  near.send(acquire_far(near_1.pid(), "exchange"));
  far.send(acquire_far(far_3.pid(), "exchange"));
  far.send(acquire(far_2.pid(), "load", 300ms));
  const std::string id = far.wait_for("killed", far_2.pid()).text("id");
  near.wait_for("killed", near_0.pid());

  const std::string page = log_page(temp);
  CAPTURE(page);
  CHECK(page.find("HOST") != std::string::npos);
  CHECK(page.find("\nWho hung first, job 8812, ") != std::string::npos);
  CHECK(page.find(fmt::format("\n  rank 2 (pid {}, ", far_2.pid())) != std::string::npos);
  CHECK(page.find(" on node-far, in `load`: the odd one out, and the first to expire, ") !=
        std::string::npos);
  CHECK(page.find("\n  ranks 0, 1, 3 in `exchange` for ") != std::string::npos);
  CHECK(page.find(fmt::format("\n  2 workers on 2 hosts expired; `timer_client show {}` ", id)) !=
        std::string::npos);
}

TEST_CASE(
    "a followed log that cannot be read is reported once, and the others are still followed") {
  const TempFolder temp;
  const std::string good = temp.path("a.jsonl");
  const std::string bad = temp.path("b.jsonl");
  write_file(good, "");
  std::filesystem::create_symlink("/proc/self/mem", bad);
  const std::string line = "timer_client: cannot read '" + bad + "': Input/output error\n";
  Child client({.argv = {client_path(), "log", "--json", "--follow", good, bad},
                .out = temp.path("out"),
                .err = temp.path("err")});
  REQUIRE(wait_until([&] { return read_file(temp.path("err")) == line; }));
  for (const char* record : {R"({"schema":1,"event":"rejected","mono_ns":1})"
                             "\n",
                             R"({"schema":1,"event":"rejected","mono_ns":2})"
                             "\n"}) {
    temp.append("a.jsonl", record);
    CHECK(wait_until([&] { return contains(read_file(temp.path("out")), record); }));
  }
  client.signal(SIGTERM);
  CHECK(client.status() == exited(1));
  CHECK(read_file(temp.path("err")) == line);
}

TEST_CASE("a healthy worker of another job on a host is not the odd one out of a hung job") {
  if (!may_name_hosts()) {
    FILETIMER_SKIP("setting a host name is not allowed here");
  }
  const TempFolder temp;
  Server near(temp, on_host("node-near"));
  Server far(temp, on_host("node-far"));
  const Worker near_0("block", with_rank(0));
  const Worker near_1("block", with_rank(1));
  const Worker far_2("block", with_rank(2));
  const Worker other("block", with_rank(0, "another"));
  const Worker idle("block", with_rank(1, "another"));
  near.send(acquire_far(other.pid(), "eval"));
  near.send(acquire_far(idle.pid(), "start") + release(idle.pid(), "start"));
  near.send(acquire_far(near_1.pid(), "exchange"));
  near.send(acquire(near_0.pid(), "exchange", 300ms));
  far.send(acquire(far_2.pid(), "exchange", 2s));
  near.wait_for("killed", near_0.pid());
  far.wait_for("killed", far_2.pid());

  const Record incident = near.wait_for([](const Record& record) { return record.is("incident"); });
  CHECK(incident.line().find(fmt::format(R"("pid":{},"rank":0,)", other.pid())) !=
        std::string::npos);
  const std::string page = log_page(temp);
  CAPTURE(page);
  CHECK(page.find("\nWho hung first, job 8812, ") != std::string::npos);
  CHECK(page.find("\n  ranks 0-2 in `exchange` for ") != std::string::npos);
  CHECK(page.find("odd one") == std::string::npos);
  const std::string below = page.substr(page.find("\nWho hung first"));
  CHECK(below.find("eval") == std::string::npos);
  CHECK(below.find("\n  2 workers on 2 hosts expired; ") != std::string::npos);
}
