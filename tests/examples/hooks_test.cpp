// The example hooks as users run them, with a stand-in for Slurm and a web server of the test.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <string>

#include "tests/process/worker.hpp"

namespace filetimer::testing {
namespace {

// Returns a shell command for a path, which may have spaces.
std::string example(const std::string& name) {
  return fmt::format("'{}/{}'", FILETIMER_EXAMPLES_DIR, name);
}

// Answers `squeue --jobs N --Format JobID,JobArrayID,RestartCnt` as Slurm does, about two jobs and
// an array of three tasks, one of which has the id of the array.
constexpr const char* kSqueue = R"(#!/bin/sh
case "$*" in
  *'--jobs 11 '*) printf '%-20s%-40s%-10s\n' 11 11 3 ;;
  *'--jobs 4711 '*) printf '%-20s%-40s%-10s\n' 4711 4711 0 ;;
  *'--jobs 700 '*) printf '%-20s%-40s%-10s\n' 702 700_1 0  701 700_0 0  700 700_2 0 ;;
  *) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1 ;;
esac
)";

// A server with the example as its hook, and a scontrol that notes its arguments.
Server::Setup requeuing(const TempFolder& temp, Environment environment,
                        std::vector<std::string> more = {}) {
  REQUIRE(::mkdir(temp.path("bin").c_str(), 0755) == 0);
  write_program(temp.path("bin/scontrol"),
                "#!/bin/sh\necho \"$@\" >> " + temp.path("asked") + "\n");
  write_program(temp.path("bin/squeue"), kSqueue);
  environment["PATH"] = temp.path("bin") + ":/usr/bin:/bin";
  more.insert(more.begin(), {"--on-expiry", example("requeue_slurm_job")});
  return {.args = std::move(more), .environment = std::move(environment)};
}

// A PATH on which a hook finds timer_client.
std::string path_with_client() {
  return client_path().substr(0, client_path().rfind('/')) + ":/usr/bin:/bin";
}

Record hook_of_expiry(const Server& server, const Environment& workers_environment = {}) {
  Worker worker("block", {.environment = workers_environment});
  server.send(acquire_past(worker.pid(), "forward"));
  return server.wait_for("hook", worker.pid());
}

TEST_CASE("The Slurm job of the killed worker is requeued, and of an array its task alone") {
  struct Case {
    Environment server;
    Environment worker;
    const char* asks;
  };
  for (const Case& c :
       {Case{{{"SLURM_JOB_ID", "11"}}, {{"SLURM_JOB_ID", "4711"}}, "requeue 4711\n"},
        // A worker that names no job is of the server's.
        Case{{{"SLURM_JOB_ID", "4711"}}, {{"TORCHELASTIC_RUN_ID", "run a"}}, "requeue 4711\n"},
        Case{{}, {{"SLURM_JOB_ID", "700"}}, "requeue 700_2\n"},
        Case{{{"SLURM_JOB_ID", "11"}, {"MAX_REQUEUES", "4"}}, {}, "requeue 11\n"}}) {
    CAPTURE(c.asks);
    const TempFolder temp;
    const Server server(temp, requeuing(temp, c.server));
    CHECK(hook_of_expiry(server, c.worker).integer("exit_status") == 0);
    CHECK(read_file(temp.path("asked")) == c.asks);
  }
}

TEST_CASE("Nothing is requeued for a spared worker, over MAX_REQUEUES, or outside Slurm") {
  struct Case {
    Environment environment;
    const char* says;
    std::int64_t status = 0;
    std::vector<std::string> options{};
  };
  for (const Case& c :
       {Case{{{"SLURM_JOB_ID", "4711"}},
             "no worker was killed (spared): not requeued",
             0,
             {"--dry-run"}},
        Case{{{"SLURM_JOB_ID", "11"}}, "job 11 was requeued 3 times already: not requeued again"},
        Case{{{"SLURM_JOB_ID", "4711"}, {"MAX_REQUEUES", "0"}},
             "job 4711 was requeued 0 times already: not requeued again"},
        Case{{}, "no Slurm job", 1},
        Case{{{"SLURM_JOB_ID", "12"}}, "squeue does not know job 12", 1}}) {
    CAPTURE(c.says);
    const TempFolder temp;
    const Server server(temp, requeuing(temp, c.environment, c.options));
    CHECK(hook_of_expiry(server).integer("exit_status") == c.status);
    server.wait_for_message(c.says);
    CHECK_FALSE(exists(temp.path("asked")));
  }
}

TEST_CASE("The ranks of the Slurm job get as many processors as sbatch was asked for") {
  const TempFolder temp;
  const std::string asked = temp.path("asked");
  write_program(temp.path("srun"), "#!/bin/sh\necho $1 $2 >> " + asked +
                                       "\n[ $1 != --overlap ]  # a shutdown fails\n");
  Environment environment{{"PATH", temp.path() + ":/usr/bin:/bin"},
                          {"BASH_FUNC_kill%%", "() { echo kill $1 >> " + asked + "; }"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_CPUS_PER_TASK", std::nullopt}};
  const std::string job = std::string(FILETIMER_EXAMPLES_DIR) + "/slurm_job";
  CHECK(run(job, {"true"}, environment).status == exited(0));
  CHECK(contains(read_file(asked), "--kill-on-bad-exit=1 sh\n"));
  CHECK(contains(read_file(asked), "kill %1\n"));  // a pid may be another process's by then
  environment["SLURM_CPUS_PER_TASK"] = "7";
  CHECK(run(job, {"true"}, environment).status == exited(0));
  CHECK(contains(read_file(asked), "--kill-on-bad-exit=1 --cpus-per-task=7\n"));
}

TEST_CASE("The records of an expiry are posted to $WEBHOOK_URL") {
  const TempFolder temp;
  Child sink({.argv = {"/bin/sh", "-c", "exec python3 \"$@\"", "sh", FILETIMER_HTTP_SINK,
                       temp.path("port"), temp.path("request")},
              .err = temp.path("err")});
  const bool listens = wait_until([&] { return exists(temp.path("port")) || !sink.is_alive(); });
  REQUIRE_MESSAGE((listens && exists(temp.path("port"))), read_file(temp.path("err")));
  const std::string url = fmt::format("http://127.0.0.1:{}/hang", read_file(temp.path("port")));
  const Server server(
      temp, {.args = {"--on-expiry", example("post_webhook")},
             .environment = {
                 {"PATH", path_with_client()}, {"WEBHOOK_URL", url}, {"no_proxy", "127.0.0.1"}}});
  Worker worker("block");
  server.send(acquire_past(worker.pid(), "forward"));
  const Record hook = server.wait_for("hook", worker.pid());
  CHECK_MESSAGE(hook.integer("exit_status") == 0, server.err());
  CHECK(sink.status() == exited(0));
  const std::string request = read_file(temp.path("request"));
  CHECK(request.starts_with("/hang dead\n" + server.wait_for("expired", worker.pid()).line()));
  CHECK(request.ends_with(server.wait_for("killed", worker.pid()).line() + "\n"));
}

TEST_CASE("The record of the hook shows that the web server cannot be reached") {
  // No process listens on port 1.
  const Server server({.args = {"--on-expiry", example("post_webhook")},
                       .environment = {{"PATH", path_with_client()},
                                       {"WEBHOOK_URL", "http://127.0.0.1:1/"},
                                       {"no_proxy", "127.0.0.1"}}});
  const Record hook = hook_of_expiry(server);
  CHECK(hook.integer("exit_status") == 7);  // curl's "could not connect"
  server.wait_for_message("curl: (7)");
}

}  // namespace
}  // namespace filetimer::testing
