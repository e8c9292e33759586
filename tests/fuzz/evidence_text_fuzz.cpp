// Untrusted text about a worker: the stacks helper's answer, which contains text of the worker's
// memory, and the dump of a Python worker. Evidence stays within its bounds for any bytes.
// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/limits.hpp"
#include "fuzz_check.hpp"
#include "timer_server/evidence/python_dump.hpp"
#include "timer_server/evidence/stacks_helper.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace filetimer;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Evidence evidence;
  evidence.threads.resize(2);
  evidence.threads[0].tid = 1;
  evidence.threads[1].tid = 2;
  parse_stacks(text, evidence);
  for (const ThreadEvidence& thread : evidence.threads) {
    FUZZ_CHECK(thread.native_stack.size() <= kMaxStackFrames + 1);
    for (const std::string& frame : thread.native_stack) {
      FUZZ_CHECK(frame.size() <= kMaxFrameBytes + 4);
    }
  }
  evidence.python_threads = parse_python_dump(text);
  for (const PythonThread& thread : evidence.python_threads) {
    FUZZ_CHECK(thread.frames.size() <= kMaxStackFrames);
    for (const std::string& frame : thread.frames) {
      FUZZ_CHECK(frame.size() <= kMaxFrameBytes);
    }
  }
  JsonWriter json;
  write_evidence(json, folded(evidence));
  FUZZ_CHECK(json.size() < kMaxEvidenceBytes + 8192);
  return 0;
}
