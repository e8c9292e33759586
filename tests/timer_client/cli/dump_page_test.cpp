// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/commands/views.hpp"

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

std::string other_worker(int pid, const std::string& fields) {
  return fmt::format(R"(,{{"pid":{},"comm":"t",{}}})", pid, fields);
}

TEST_CASE(
    "workers in the same place, scopes, Python stacks and job are one group, the smallest first") {
  const std::string workers =
      waiting_worker(0, "recv+0x10 (libc.so.6)", 10) + "," +
      waiting_worker(1, "recv+0x18 (libc.so.6)", 12.5) + "," +
      waiting_worker(2, "read+0x10 (libc.so.6)", 3) +
      other_worker(5, R"("job_id":"8812","open_scopes":[{"scope":"x\u001b[2J"}])") +
      other_worker(6, R"("job_id":"8813","missing":"no time","children":[{"pid":7,"comm":"sh"}])") +
      other_worker(8, R"("python_threads":[{"name":"M","frames":["t.py:1 in a"]}])") +
      other_worker(9, R"("python_threads":[{"name":"M","frames":["t.py:2 in b"]}])");
  const std::string answer =
      R"({"version":1,"answer":"done","workers":[)" + workers + R"(],"omitted":5})";
  CHECK(dump_page(answer, false) == R"(rank 2 (pid 102, python3)
  scopes  `epoch` for 3 s, in it `exchange` for 3 s of 30 s
  doing   waiting in futex

Threads
  102 python3, waiting
    futex_wait
    read+0x10 (libc.so.6)
    main+0x1 (t)

pid 5 (t)
  job     8812
  scopes  `x\x1b[2J` for 0 s

pid 6 (t)
  job      8813
  scopes   none
  missing  no time

Children
  7 sh

pid 8 (t)
  scopes  none

Python stacks (the most recent call first)
  thread M
    t.py:1 in a

pid 9 (t)
  scopes  none

Python stacks (the most recent call first)
  thread M
    t.py:2 in b

ranks 0, 1
  scopes  `epoch` for 12.5 s, in it `exchange` for 12.5 s of 30 s
  doing   waiting in futex
  shown   rank 0 (pid 100, python3)

Threads
  100 python3, waiting
    futex_wait
    recv+0x10 (libc.so.6)
    main+0x1 (t)

5 more workers omitted: see --rank and --pid
)");
  CHECK(dump_page("no JSON", false).empty());
}

}  // namespace
}  // namespace filetimer::cli
