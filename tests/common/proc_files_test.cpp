// Files in the form of those of /proc: each field is found by its place or its name.
// SPDX-License-Identifier: MIT
#include "common/proc_files.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "common/clock.hpp"
#include "tests/support/files.hpp"

using namespace filetimer;
using testing::TempFolder;

TEST_CASE("each field of stat has its place, whatever the name of the command is") {
  const TempFolder folder;
  const auto stat_of = [&](const std::string& text) {
    folder.write("stat", text);
    return read_stat(folder.path());
  };
  const auto stat = stat_of(
      "42 (a) b (c)) R 3 4 5 6 7 2097152 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 "
      "28");
  REQUIRE(stat);
  CHECK(stat->pid == 42);
  CHECK(stat->comm == "a) b (c)");
  CHECK(stat->state == 'R');
  CHECK(stat->ppid == 3);
  CHECK(stat->pgrp == 4);
  CHECK(stat->is_kernel_thread);
  CHECK(stat->user_ticks == 13);
  CHECK(stat->system_ticks == 14);
  CHECK(stat->threads == 19);
  CHECK(stat->start_time == 21);
  CHECK(stat->rss_pages == 23);
  CHECK(stat->start_stack == 27);
  CHECK_FALSE(stat_of("1 (a) R 3 4 5 6 7 2097151")->is_kernel_thread);
  CHECK(stat_of("1 (a) R 3 4 5 6 7 4")->is_exiting);
  CHECK_FALSE(stat_of("1 (a) R 3 4 5 6 7 4294967291")->is_exiting);
  CHECK(stat_of("1 ()")->state == '?');
  for (const char* wrong : {"", "1 a R", "1 (a R", "1 a) R", "1 )a( R"}) {
    CHECK_FALSE_MESSAGE(stat_of(wrong), wrong);
  }
  CHECK_FALSE(read_stat(folder.path("none")));
}

TEST_CASE("each line of status has its value, and without a user there is none") {
  const TempFolder folder;
  const std::string user =
      "Name:\tUid:\nState:\tt (tracing stop)\nTracerPid:\t8\nUid:\t1\t2\t3\t4\n";
  folder.write("status", user +
                             "NSpid:\t42\t5\t7\nShdPnd:\t0000000000000100\nSigBlk:\tff\n"
                             "SigCgt:\t8000000000000000\nCapEff:\t1f\n");
  const auto status = read_status(folder.path());
  REQUIRE(status);
  CHECK(std::array{status->uid, status->effective_uid} == std::array<uid_t, 2>{1, 2});
  CHECK(status->innermost_pid == 7);
  CHECK(status->state == 't');
  CHECK(status->tracer == 8);
  CHECK(std::array{status->pending, status->blocked, status->caught,
                   status->effective_capabilities} ==
        std::array<std::uint64_t, 4>{0x100, 0xFF, 0x8000'0000'0000'0000, 0x1F});
  folder.write("status", user);
  CHECK(read_status(folder.path())->innermost_pid == 0);
  folder.write("status", user + "Groups:\t" + std::string(8'000, '1') + "\nNSpid:\t42\n");
  CHECK(read_status(folder.path())->innermost_pid == 42);
  folder.write("status", "Name:\tUid:\nUid:\n");
  CHECK_FALSE(read_status(folder.path()));
  CHECK_FALSE(read_status(folder.path("none")));
}

TEST_CASE("a small file is read up to its limit, and a folder is an error") {
  const TempFolder folder;
  for (const std::size_t size : {0U, 1U, 4095U, 4096U, 4097U, 9000U, 20000U}) {
    const std::string text(size, 'x');
    folder.write("file", text);
    for (const std::size_t limit : {1U, 4096U, 9000U, 16384U}) {
      CHECK(read_small_file(folder.path("file"), limit) == text.substr(0, limit));
    }
  }
  CHECK(read_small_file(folder.path()).error().message.starts_with("cannot read '"));
  CHECK(read_small_file(folder.path("none")).error().message.starts_with("cannot open '"));
}

TEST_CASE("the boot id is the kernel's") {
  CHECK(boot_id_text(this_boot()) + "\n" == *read_small_file("/proc/sys/kernel/random/boot_id"));
  CHECK(boot_id_text({}) == "unknown");
}
