// SPDX-License-Identifier: MIT
#include "timer_client/cli/dump/dump_page.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "tests/timer_client/cli/cli_fixture.hpp"

namespace filetimer::cli {
namespace {

std::string waiting_worker(int rank, const std::string& frame, double elapsed_s) {
  return fmt::format(
      R"x({{"pid":{},"rank":{},"comm":"python3","open_scopes":[)x"
      R"x({{"scope":"epoch","elapsed_s":{},"timeout_s":null}},)x"
      R"x({{"scope":"exchange","elapsed_s":{},"timeout_s":30}}],"doing":"waiting in futex",)x"
      R"x("threads":[{{"tid":{},"comm":"python3","doing":"waiting","stack":["futex_wait+0x1/0x2"],)x"
      R"x("native_stack":["{}","main+0x1 (t)"]}}]}})x",
      100 + rank, rank, elapsed_s, elapsed_s, 100 + rank, frame);
}

std::string answer_with(const std::string& workers, int omitted = 0) {
  return fmt::format(R"({{"version":1,"answer":"done","workers":[{}],"omitted":{}}})", workers,
                     omitted);
}

TEST_CASE("workers in the same place are one group, the smallest first") {
  const std::string text =
      dump_page(answer_with(waiting_worker(0, "recv+0x10 (libc.so.6)", 10) + "," +
                            waiting_worker(1, "recv+0x18 (libc.so.6)", 12.5) + "," +
                            waiting_worker(2, "read+0x10 (libc.so.6)", 3)),
                false);
  const std::size_t odd = text.find("rank 2 (pid 102, python3)\n");
  const std::size_t others = text.find("ranks 0, 1\n");
  REQUIRE(odd != std::string::npos);
  REQUIRE(others != std::string::npos);
  CHECK(odd < others);
  const std::string second = text.substr(others);
  CHECK(contains(second, "`epoch` for 12.5 s, in it `exchange` for 12.5 s of 30 s"));
  CHECK(contains(second, "recv+0x10 (libc.so.6)"));
  CHECK(contains(second, "shown   rank 0 (pid 100, python3)\n"));
  CHECK_FALSE(contains(text, "job"));
  CHECK_FALSE(contains(second, "read+0x10"));
}

TEST_CASE("workers in different scopes are different groups") {
  const std::string in_none =
      R"({"pid":5,"comm":"python3","open_scopes":[],"threads":[],"missing":"no time"})";
  const std::string text =
      dump_page(answer_with(waiting_worker(0, "recv (libc.so.6)", 10) + "," + in_none), false);
  CHECK(contains(text, "pid 5 (python3)\n"));
  CHECK(contains(text, "scopes   none\n"));
  CHECK(contains(text, "missing  no time\n"));
}

TEST_CASE("workers of different jobs are different groups, and the job is shown") {
  const auto worker = [](int pid, const char* job) {
    return fmt::format(R"({{"pid":{},"rank":0,"comm":"t"{},"open_scopes":[],"threads":[]}})", pid,
                       job);
  };
  const std::string text =
      dump_page(answer_with(worker(5, R"(,"job_id":"8812")") + "," +
                            worker(6, R"(,"job_id":"8813")") + "," + worker(7, "")),
                false);
  CHECK(contains(text, "rank 0 (pid 5, t)\n  job     8812\n"));
  CHECK(contains(text, "rank 0 (pid 6, t)\n  job     8813\n"));
  CHECK(contains(text, "rank 0 (pid 7, t)\n  job     none\n"));
}

TEST_CASE("Python stacks count, too") {
  const auto worker = [](int rank, const char* frame) {
    return fmt::format(R"({{"pid":{0},"rank":{0},"comm":"python3","open_scopes":[],"threads":[],)"
                       R"("python_threads":[{{"name":"MainThread","frames":["{1}"]}}]}})",
                       rank, frame);
  };
  const std::string text = dump_page(
      answer_with(worker(1, "train.py:1 in a") + "," + worker(2, "train.py:2 in b")), false);
  CHECK(contains(text, "rank 1 (pid 1, python3)\n"));
  CHECK(contains(text, "rank 2 (pid 2, python3)\n"));
  CHECK(contains(text, "train.py:2 in b"));
}

TEST_CASE("workers that are omitted are counted, and what is no answer is no page") {
  CHECK(contains(dump_page(answer_with(waiting_worker(0, "recv (c)", 1), 5), false),
                 "5 more workers are omitted"));
  CHECK(dump_page("no JSON", false).empty());
}

TEST_CASE("names in an answer cannot move the cursor") {
  const std::string text = dump_page(
      answer_with(R"({"pid":5,"comm":"a\u001b[2J","open_scopes":[{"scope":"x\u001b[2J"}]})"),
      false);
  CHECK_FALSE(contains(text, "\x1b"));
}

}  // namespace
}  // namespace filetimer::cli
