// SPDX-License-Identifier: MIT
#include "timer_server/records/kill_files.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/support/files.hpp"

using namespace filetimer;

namespace {

WorkerIdentity this_worker() {
  Process process;
  process.pid = ::getpid();
  process.start_time = 1;
  return {std::make_shared<const Process>(std::move(process)), std::make_shared<WorkerFacts>()};
}

}  // namespace

TEST_CASE("a stage that could be written only in part does not hide the stages after it") {
  const testing::TempFolder temp;
  KillFiles files(temp.path(), "boot");
  Expiry expiry;
  expiry.id = "id-1";
  expiry.scope.name = "forward";
  expiry.scope.grace_ms = 0;
  files.begin(this_worker(), {&expiry, 1}, {});
  files.begin(this_worker(), {&expiry, 1}, {});  // there was no memory for the log
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limit{std::filesystem::file_size(temp.path("kills/id-1")) + 8, before.rlim_max};
  const sighandler_t handler = ::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  files.note_evidence("id-1", R"({"event":"evidence"})");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, handler);
  const SentSignal sent{SIGTERM, ClockReading::now(), {::getpid()}, {1}};
  files.note_signal("id-1", sent);
  const KillState kill = files.read().at(0);
  CHECK(!kill.has_evidence);
  CHECK(kill.records.empty());
  CHECK(kill.sent.at(0).signal == SIGTERM);
  CHECK(kill.sent[0].when.wall_ns == sent.when.wall_ns);
  CHECK(kill.sent[0].starts == sent.starts);
  CHECK(kill.expiries.size() == 1);
  CHECK(kill.expiries.at(0).scope.grace() == Duration{0});  // SIGKILL follows at once
}

TEST_CASE("half a stage hides none of the next server, and a umask does not lock the folder") {
  const testing::TempFolder temp;
  KillFiles files(temp.path(), "boot");
  Expiry expiry;
  expiry.id = "id-1";
  const mode_t before = ::umask(0177);  // for files
  files.begin(this_worker(), {&expiry, 1}, {});
  ::umask(before);
  CHECK(std::filesystem::status(temp.path("kills")).permissions() ==
        std::filesystem::perms::owner_all);
  // A server is killed while it writes a stage.
  std::ofstream(temp.path("kills/id-1"), std::ios::app) << "{}\n"
                                                        << R"({"stage":"end)";
  CHECK(files.read().at(0).sent.empty());
  files.note_signal("id-1", {SIGTERM, ClockReading::now(), {::getpid()}, {1}});
  CHECK(files.read().at(0).sent.size() == 1);
  CHECK(files.read().at(0).records.empty());  // that of the half stage is not of this one
}
