// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "common/sanitizers.hpp"
#include "tests/support/skip.hpp"

namespace filetimer::testing {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt

struct Progress {
  std::string running;
  std::size_t cases = 0;
  std::set<std::string> skipped;
};
Progress progress;

// Counts the test cases that ran, and has the name of the one that runs.
struct Listener : doctest::IReporter {
  explicit Listener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    progress.running = test.m_name;
    ++progress.cases;
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("progress", 1, Listener);

}  // namespace

void skip(const std::string& reason) {
  if (progress.skipped.insert(progress.running).second) {
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
  }
}

}  // namespace filetimer::testing

#if FILETIMER_THREAD_SANITIZER
// References to an exception are counted in libstdc++.so, which is not instrumented: the thread
// that frees the exception seems to race with those that read it before.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif

int main(int argc, char** argv) {
  using filetimer::testing::progress;
  const int result = doctest::Context(argc, argv).run();
  const bool nothing_ran = progress.cases > 0 && progress.skipped.size() == progress.cases;
  return result == 0 && nothing_ran ? filetimer::testing::kSkipped : result;
}
