// --metrics: the file of a real server. tests/deploy/metrics has Prometheus's own tool check one.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "tests/process/worker.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;

namespace {

bool comes_to(const std::string& value, const std::string& file, const Server& server,
              const std::string& name, const std::string& labels = {}) {
  return wait_until([&] { return metric_of(server, file, name, labels) == value; });
}

// The last series is there.
bool is_whole(const std::string& text) {
  return text.starts_with("# HELP filetimer_up ") && text.ends_with("\n") &&
         contains(text, "\nfiletimer_verdict_lateness_max_seconds{");
}

}  // namespace

TEST_CASE("the metrics of a server say that a worker was killed, and that the server has ended") {
  const TempFolder temp;
  const std::string file = temp.path("filetimer.prom");
  Server server(temp, {"--metrics", file, "--max-interval", "20ms"});
  CHECK(comes_to("1", file, server, "up"));
  expect_kill(server, "forward");
  const std::string forward = "scope=\"forward\"";
  CHECK(comes_to("1", file, server, "killed_total", forward));
  const auto open = client_worker(server.dir());
  CHECK(open->ask("open forward 3600000") == "yes");
  CHECK(comes_to("1", file, server, "open_scopes"));
  CHECK(metric_of(server, file, "workers") == "1");
  CHECK(open->ask("release forward") == "yes");
  open->tell("exit");
  CHECK(comes_to("0", file, server, "workers"));
  CHECK(metric_of(server, file, "expired_total", forward) == "1");
  CHECK(metric_of(server, file, "verdict_lateness_seconds_count") == "1");
  CHECK(std::stod(metric_of(server, file, "verdict_lateness_max_seconds")) > 0);
  CHECK(metric_of(server, file, "unkillable_total", forward) == "0");
  CHECK(metric_of(server, file, "open_scopes") == "0");
  CHECK(metric_of(server, file, "log_working") == "1");
  CHECK(contains(read_file(file), ",version=\"" + server.records()[0].text("version") + "\"} 1\n"));
  const double started = std::stod(metric_of(server, file, "start_time_seconds"));
  CHECK(std::stod(metric_of(server, file, "collected_time_seconds")) > started);
  CHECK(started > 1.7e9);
  const auto stubborn = page_worker(server.dir(), "w-1");
  stubborn->ask(fmt::format("wake 0 stubborn 1 {} 3600000", SIGCONT));
  CHECK(comes_to("1", file, server, "kills_under_way"));
  CHECK(server.stop() == exited(0));
  CHECK(metric_of(server, file, "up") == "0");
  CHECK(metric_of(server, file, "log_waiting_records") == "0");
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0644));
}

TEST_CASE("a reader never sees a part of the metrics while they are replaced") {
  const TempFolder temp;
  const std::string file = temp.path("filetimer.prom");
  const Server server(temp, {"--metrics", file, "--max-interval", "1ms"});
  REQUIRE(wait_until([&] { return exists(file); }));
  filetimer::FileIdentity last;
  int versions = 0;
  int parts = 0;
  CHECK(wait_until([&] {
    for (int i = 0; i < 50; ++i) {
      const std::string text = read_file(file);
      parts += is_whole(text) ? 0 : 1;
      const filetimer::FileIdentity seen = filetimer::identity_of(file);
      versions += seen == last ? 0 : 1;
      last = seen;
    }
    return versions >= 100 || parts > 0;
  }));
  CHECK(parts == 0);
}

TEST_CASE("metrics that cannot be written cost one warning, and are written when they can be") {
  const TempFolder temp;
  const std::string folder = temp.path("collector");
  const std::string file = folder + "/filetimer.prom";
  Server server(temp, {"--metrics", file, "--max-interval", "5ms"});
  server.wait_for_message("cannot write the metrics file '" + file + "'");
  expect_kill(server, "without metrics");
  temp.make_folder("collector");
  server.wait_for_message("the metrics file '" + file + "' is written again");
  CHECK(comes_to("1", file, server, "killed_total", "scope=\"without metrics\""));
  CHECK(std::ranges::count_if(lines_of(server.err()), [](const std::string& line) {
          return contains(line, "cannot write the metrics");
        }) == 1);
  CHECK(server.stop() == exited(0));
}

TEST_CASE("metrics replace no directory, symlink or pipe") {
  const TempFolder temp;
  temp.make_folder("folder");
  std::filesystem::create_symlink("target", temp.path("link"));
  REQUIRE(::mkfifo(temp.path("fifo").c_str(), 0600) == 0);
  for (const auto& [name, kind] : std::vector<std::pair<std::string, std::string>>{
           {"folder", "a directory"}, {"link", "a symbolic link"}, {"fifo", "no regular file"}}) {
    const auto before = std::filesystem::symlink_status(temp.path(name)).type();
    const Server server(temp, {.args = {"--metrics", temp.path(name)}, .folder = name + "-run"});
    server.wait_for_message("cannot write the metrics file '" + temp.path(name) + "': it is " +
                            kind + ": expected a regular file, or none");
    CHECK(std::filesystem::symlink_status(temp.path(name)).type() == before);
  }
  CHECK_FALSE(exists(temp.path("target")));
}

TEST_CASE("metrics for which there is no room leave no part of them behind") {
  const TempFolder temp;
  const std::string folder = temp.make_folder("collector");
  const Server server(
      temp, {.args = {"--metrics", folder + "/filetimer.prom"},
             .in_child = limit(RLIMIT_FSIZE, {filetimer::kBoardBytes, filetimer::kBoardBytes})});
  server.wait_for_message("cannot write the metrics file");
  CHECK(std::filesystem::is_empty(folder));
}

TEST_CASE("kills go on while the file system of the metrics hangs, and are in the next metrics") {
  const TempFolder temp;
  const std::string folder = temp.make_folder("collector");
  REQUIRE(::chmod(folder.c_str(), 0755) == 0);  // its reader is another user
  const std::string file = folder + "/filetimer.prom";
  Server server(
      temp, on_bad_disk(temp, "BAD_DISK_HANGS_IN", {"--metrics", file, "--max-interval", "20ms"}));
  REQUIRE(comes_to("1", file, server, "up"));
  temp.write("fault", folder);
  REQUIRE(wait_until([&] { return exists(temp.path("fault.hit")); }));
  const std::string before = read_file(file);
  for (int i = 0; i < 3; ++i) {
    WorkerInScope worker(server, "hung", 20ms);
    CHECK(worker.status() == killed_by(SIGKILL));
    check_prompt(server, worker.pid());
  }
  server.wait_for_message("cannot write the metrics file '" + file +
                          "': its file system does not answer");
  CHECK(read_file(file) == before);
  std::filesystem::remove(temp.path("fault"));
  server.wait_for_message("the metrics file '" + file + "' is written again");
  CHECK(comes_to("3", file, server, "killed_total", "scope=\"hung\""));
  CHECK(server.stop() == exited(0));
}

TEST_CASE("a server whose metrics never could be written, as their disk hangs, still stops") {
  const TempFolder temp;
  const std::string folder = temp.path("collector");
  temp.write("fault", folder);
  Server server(temp,
                on_bad_disk(temp, "BAD_DISK_HANGS_IN", {"--metrics", folder + "/filetimer.prom"}));
  REQUIRE(wait_until([&] { return exists(temp.path("fault.hit")); }));
  expect_kill(server, "hung");
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "server_stopped") == 1);
}
