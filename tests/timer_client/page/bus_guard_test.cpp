// A file that is cut short while a worker has it mapped.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "tests/timer_client/client_fixture.hpp"

using namespace filetimer;
using testing::in_child;

namespace {

volatile sig_atomic_t g_exit_code = 0;  // of a process that gets SIGBUS; 0: SIGBUS kills it

// Installed before this program makes a guard.
[[maybe_unused]] const bool g_has_handler = [] {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    if (g_exit_code != 0) {
      ::_exit(info->si_signo == signal ? g_exit_code : 1);
    }
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  };
  return ::sigaction(SIGBUS, &action, nullptr) == 0;
}();

constexpr std::size_t kBytes = 8192;

// A mapped file that can be cut short.
class CutFile {
 public:
  CutFile() : fd_(::open(folder_.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    REQUIRE(::ftruncate(fd_.get(), kBytes) == 0);
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    REQUIRE(mapped != MAP_FAILED);
    bytes_ = static_cast<volatile char*>(mapped);
  }
  ~CutFile() { ::munmap(data(), kBytes); }

  [[nodiscard]] void* data() const { return const_cast<char*>(bytes_); }
  [[nodiscard]] volatile char& at(std::size_t index) const { return bytes_[index]; }
  void cut() const { REQUIRE(::ftruncate(fd_.get(), 0) == 0); }

 private:
  testing::TempFolder folder_;
  UniqueFd fd_;
  volatile char* bytes_ = nullptr;
};

}  // namespace

TEST_CASE("a guarded file that is cut short reads as zeroes, can be written, and is broken") {
  const CutFile file;
  file.at(5000) = 'x';
  const BusGuard guard(file.data(), kBytes);
  struct sigaction installed {};
  REQUIRE(::sigaction(SIGBUS, nullptr, &installed) == 0);
  CHECK((installed.sa_flags & SA_ONSTACK) != 0);  // the program may have a stack for its signals
  CHECK((installed.sa_flags & SA_RESTART) != 0);
  CHECK_FALSE(guard.is_broken());
  file.cut();
  CHECK(file.at(5000) == 0);
  CHECK(guard.is_broken());
  file.at(0) = 'y';
  CHECK(file.at(0) == 'y');
}

TEST_CASE("a destroyed guard guards nothing, and its memory may be guarded again") {
  const CutFile unguarded;
  { const BusGuard guard(unguarded.data(), kBytes); }
  unguarded.cut();
  CHECK(in_child([&] { return static_cast<int>(unguarded.at(0)); }) == -1);
  const CutFile file;
  { const BusGuard guard(file.data(), kBytes); }
  const BusGuard guard(file.data(), kBytes);
  CHECK_FALSE(guard.is_broken());
  file.cut();
  CHECK(file.at(0) == 0);
  CHECK(guard.is_broken());
}

TEST_CASE("a fault outside of guarded memory is passed to the handler that was installed before") {
  const CutFile guarded;
  const CutFile next;
  const CutFile other;
  const CutFile half;
  const BusGuard guard(guarded.data(), kBytes);
  const BusGuard of_next(next.data(), kBytes);
  const BusGuard of_half(half.data(), kBytes / 2);
  other.cut();
  half.cut();
  for (volatile char* const place : {&other.at(0), &half.at(kBytes / 2)}) {
    for (const int code : {7, 0}) {  // it exits, or lets the signal kill the process
      CHECK(in_child([&] {
              g_exit_code = code;
              return static_cast<int>(*place);
            }) == (code == 0 ? -1 : code));
    }
  }
  CHECK(in_child([] { return ::raise(SIGBUS); }) == -1);
}

TEST_CASE("guards beyond the limit guard nothing") {
  const CutFile file;
  std::vector<std::unique_ptr<BusGuard>> guards;
  for (std::size_t i = 0; i <= BusGuard::kMaxGuards; ++i) {
    guards.push_back(std::make_unique<BusGuard>(file.data(), kBytes));
  }
  CHECK_FALSE(guards.back()->is_armed());
  CHECK_FALSE(guards.back()->is_broken());
  const auto mapped = MappedFile::map("/proc/self/exe", MappedFile::Access::kRead, kBytes);
  REQUIRE_FALSE(mapped);
  CHECK(mapped.error().errno_value == EAGAIN);
  guards.clear();
  for (int i = 0; i < 2; ++i) {
    guards.push_back(std::make_unique<BusGuard>(file.data(), kBytes));
    CHECK(guards.back()->is_armed());
  }
}
