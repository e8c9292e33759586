// What an `evidence` record says: what the kernel knew of the worker, and where its threads were.
// What the record lacks is empty. Texts are as the record has them: printing makes them safe.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "timer_client/cli/log/log_reader.hpp"

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

struct ThreadEvidence {
  Integer tid;
  std::string comm;
  std::string state;
  std::string wchan;
  std::string syscall;
  std::string syscall_fd;
  std::string doing;  // all of these in one phrase: "waiting in futex_wait (0 % CPU)"
  Number cpu_s;
  Number cpu_percent;
  std::vector<std::string> kernel_stack;  // frames, the innermost first
  std::vector<std::string> native_stack;
};

struct PythonThread {
  std::string name;                 // or its identity, where it has no name
  std::vector<std::string> frames;  // the most recent call first
};

struct ChildProcess {
  Integer pid;
  std::string comm;
  std::string state;
};

struct Evidence {
  std::string state;
  std::string state_name;
  std::string wchan;
  std::string syscall;
  std::string syscall_fd;
  std::string doing;
  Number cpu_user_s;
  Number cpu_system_s;
  Number rss_bytes;
  std::vector<ThreadEvidence> threads;
  std::int64_t threads_omitted = 0;
  std::vector<PythonThread> python_threads;
  std::int64_t python_threads_omitted = 0;
  std::vector<ChildProcess> children;
  std::vector<std::string> devices;
  std::string missing;
};

Evidence read_evidence(const simdjson::dom::object& record);

}  // namespace filetimer::cli
