// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/evidence_record.hpp"

#include <utility>

#include "common/json_fields.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

ThreadEvidence read_thread(dom::object thread) {
  return {.tid = integer_at(thread, "tid"),
          .comm = text_at(thread, "comm"),
          .state = text_at(thread, "state"),
          .wchan = text_at(thread, "wchan"),
          .syscall = text_at(thread, "syscall"),
          .syscall_fd = text_at(thread, "syscall_fd"),
          .doing = text_at(thread, "doing"),
          .cpu_s = number_at(thread, "cpu_s"),
          .cpu_percent = number_at(thread, "cpu_percent"),
          .kernel_stack = texts_at(thread, "stack"),
          .native_stack = texts_at(thread, "native_stack")};
}

}  // namespace

Evidence read_evidence(const dom::object& record) {
  Evidence evidence{.state = text_at(record, "state"),
                    .state_name = text_at(record, "state_name"),
                    .wchan = text_at(record, "wchan"),
                    .syscall = text_at(record, "syscall"),
                    .syscall_fd = text_at(record, "syscall_fd"),
                    .doing = text_at(record, "doing"),
                    .cpu_user_s = number_at(record, "cpu_user_s"),
                    .cpu_system_s = number_at(record, "cpu_system_s"),
                    .rss_bytes = number_at(record, "rss_bytes"),
                    .threads = {},
                    .threads_omitted = count_at(record, "threads_omitted"),
                    .python_threads = {},
                    .python_threads_omitted = count_at(record, "python_threads_omitted"),
                    .children = {},
                    .devices = texts_at(record, "devices"),
                    .missing = text_at(record, "missing")};
  for (const dom::object thread : objects_at(record, "threads")) {
    evidence.threads.push_back(read_thread(thread));
  }
  for (const dom::object thread : objects_at(record, "python_threads")) {
    std::string name = text_at(thread, "name");
    evidence.python_threads.push_back(
        {name.empty() ? text_at(thread, "ident") : std::move(name), texts_at(thread, "frames")});
  }
  for (const dom::object child : objects_at(record, "children")) {
    evidence.children.push_back({.pid = integer_at(child, "pid"),
                                 .comm = text_at(child, "comm"),
                                 .state = text_at(child, "state")});
  }
  return evidence;
}

}  // namespace filetimer::cli
