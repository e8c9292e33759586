// Mapped files and their POSIX record locks.
// SPDX-License-Identifier: MIT
#include "common/mapped_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>

#include "common/board.hpp"
#include "common/posix.hpp"
#include "common/sanitizers.hpp"
#include "tests/support/children.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"

namespace filetimer {
namespace {

// A file of one memory page in a folder of its own.
struct TestFile : testing::TempFolder {
  TestFile() { write("page", std::string(4096, '\0')); }
  [[nodiscard]] std::string path() const { return TempFolder::path("page"); }
  [[nodiscard]] std::string renamed() const { return TempFolder::path("renamed"); }
};

// Returns the process that F_GETLK names in this process; 0: none.
pid_t holder_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  REQUIRE(::fcntl(file.get(), F_GETLK, &lock) == 0);
  return lock.l_type == F_UNLCK ? 0 : lock.l_pid;
}

// Returns the number of descriptors of a process that lead to the file.
auto descriptors_of(const std::string& path, pid_t pid) {
  std::error_code ignored;
  const std::filesystem::directory_iterator all(fmt::format("/proc/{}/fd", pid), ignored);
  return std::ranges::count_if(all, [&](const auto& entry) {
    return std::filesystem::read_symlink(entry.path(), ignored) == path;
  });
}

// The mapping and the lock of a worker.
struct Held {
  std::optional<MappedFile> file;
  std::optional<FileLock> lock;

  bool take(const std::string& path) {
    auto mapped = MappedFile::map(path, MappedFile::Access::kReadWrite, 4096);
    auto taken = FileLock::take(path);
    if (!mapped || !taken) {
      return false;
    }
    file.emplace(std::move(*mapped));
    lock.emplace(std::move(*taken));
    return true;
  }
};

// The first one: the handler of a process is installed with its first mapping.
TEST_CASE("a SIGBUS that concerns no mapped file acts as it would without the library") {
  FILETIMER_SKIP_IF(kIsSanitized, "the sanitizer handles SIGBUS");
  const TestFile file;
  const TestFile cut;
  // Returns the signal that ends a child whose action for SIGBUS was `action`; 0: no signal ends
  // it.
  const auto end_of_child = [&](sighandler_t action, const std::function<void()>& act) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGBUS, action);
      const auto mapped = MappedFile::map(file.path(), MappedFile::Access::kRead, 4096);
      act();
      ::_exit(mapped ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  };
  const auto send = [] { ::kill(::getpid(), SIGBUS); };
  const auto fault = [&] {
    const UniqueFd fd(::open(cut.path().c_str(), O_RDWR | O_CLOEXEC));
    const bool is_whole = ::ftruncate(fd.get(), 4096) == 0;
    void* const bytes = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (is_whole && bytes != MAP_FAILED && ::ftruncate(fd.get(), 0) == 0) {
      ::_exit(*static_cast<volatile char*>(bytes));
    }
  };
  CHECK(end_of_child(SIG_DFL, send) == SIGBUS);
  CHECK(end_of_child(SIG_DFL, [] { ::raise(SIGBUS); }) == SIGBUS);
  CHECK(end_of_child(SIG_DFL, fault) == SIGBUS);
  CHECK(end_of_child(SIG_IGN, send) == 0);
  CHECK(end_of_child(SIG_IGN, fault) == SIGBUS);
  CHECK(end_of_child([](int) { ::_exit(0); }, fault) == 0);
}

TEST_CASE("a mapping is shared with other processes and outlives its descriptor") {
  const TestFile file;
  auto ours = MappedFile::map(file.path(), MappedFile::Access::kRead, 4096);
  REQUIRE(ours);
  ours->close_descriptor();
  CHECK(descriptors_of(file.path(), ::getpid()) == 0);
  SteppedChild child({[&] {
    auto theirs = MappedFile::map(file.path(), MappedFile::Access::kReadWrite, 4096);
    if (theirs) {
      static_cast<char*>(theirs->data())[100] = 'x';
    }
    return theirs.has_value();
  }});
  REQUIRE(child.next());
  CHECK(static_cast<const char*>(ours->data())[100] == 'x');
}

TEST_CASE("a file that cannot be mapped or locked is an error that names the path") {
  const TestFile file;
  const auto mapped = MappedFile::map(file.renamed(), MappedFile::Access::kRead, 4096);
  REQUIRE_FALSE(mapped);
  CHECK(mapped.error().message == "cannot map '" + file.renamed() + "': No such file or directory");
  const auto lock = FileLock::take(file.renamed());
  REQUIRE_FALSE(lock);
  CHECK(lock.error().message == "cannot lock '" + file.renamed() + "': No such file or directory");
  CHECK(lock.error().errno_value == ENOENT);
  const auto reading =
      FileLock::take(UniqueFd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC)), file.path());
  REQUIRE_FALSE(reading);
  CHECK(reading.error().message == "cannot lock '" + file.path() + "': Bad file descriptor");
  std::filesystem::create_symlink(file.path(), file.renamed());  // not locked in place of its file
  const auto link = FileLock::take(file.renamed());
  REQUIRE_FALSE(link);
  CHECK(link.error().errno_value == ELOOP);
}

TEST_CASE("a lock that another process holds is refused with EBUSY") {
  const TestFile file;
  Held held;
  SteppedChild child({[&] { return held.take(file.path()); }});
  REQUIRE(child.next());
  const auto second = FileLock::take(file.path());
  REQUIRE_FALSE(second);
  CHECK(second.error().errno_value == EBUSY);
  CHECK(second.error().message == "'" + file.path() + "' is locked by another process");
  CHECK(holder_of(file.path()) == child.pid());
  child.end();
  CHECK(FileLock::take(file.path()));
}

TEST_CASE("descriptors are closed by exec, and with them the lock goes") {
  const TestFile file;
  Held held;
  SteppedChild child({[&] { return held.take(file.path()); },
                      [] {
                        ::execl("/bin/sleep", "sleep", "1000", nullptr);
                        return true;  // not reached: the socket is closed by the exec
                      }});
  REQUIRE(child.next());
  CHECK(descriptors_of(file.path(), child.pid()) == 2);
  CHECK_FALSE(child.next());
  CHECK(::kill(child.pid(), 0) == 0);
  CHECK(descriptors_of(file.path(), child.pid()) == 0);
  CHECK(holder_of(file.path()) == 0);
}

TEST_CASE("a regular file of this user is opened, and no folder, device or missing file") {
  const testing::TempFolder folder;
  folder.write("file", "12345");
  for (const int access : {O_RDONLY, O_RDWR}) {
    const auto file = open_own_file(folder.path("file"), access);
    REQUIRE(file);
    CHECK(file->status.st_size == 5);
    CHECK((::fcntl(file->fd.get(), F_GETFL) & O_ACCMODE) == access);
    CHECK((::fcntl(file->fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  for (const std::string& path : {folder.path(), std::string("/dev/null")}) {
    const auto file = open_own_file(path, O_RDONLY, "it");
    REQUIRE_FALSE(file);
    CHECK(file.error().message == "it is not a regular file");
  }
  const auto missing = open_own_file(folder.path("missing"), O_RDONLY);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().errno_value == ENOENT);
  CHECK(missing.error().message ==
        fmt::format("cannot open '{}': No such file or directory", folder.path("missing")));
}

TEST_CASE("a write or a read that fails says why") {
  const testing::TempFolder folder;
  folder.write("file", "12345");
  const auto file = open_own_file(folder.path("file"), O_RDONLY);
  REQUIRE(file);
  CHECK_FALSE(write_at(file->fd.get(), "x", 1, 0));
  CHECK(errno == EBADF);
  folder.write("file", "TMRB");  // a status page that was cut short
  CHECK(check_board(file->fd.get(), "file"));
  const auto unreadable = open_own_file(folder.path("file"), O_WRONLY);
  REQUIRE(unreadable);
  const Status board = check_board(unreadable->fd.get(), "file");
  REQUIRE_FALSE(board);
  CHECK(board.error().message == "cannot read 'file': Bad file descriptor");
}

TEST_CASE("a file gets no number of a standard descriptor, though all or the last are closed") {
  for (const int first : {STDIN_FILENO, STDERR_FILENO}) {
    SteppedChild child({[&] {
      for (int standard = first; standard <= STDERR_FILENO; ++standard) {
        ::close(standard);
      }
      const UniqueFd file = above_standard_descriptors(UniqueFd(::open("/", O_RDONLY | O_CLOEXEC)));
      return file.get() > STDERR_FILENO && ::fcntl(first, F_GETFD) == -1;
    }});
    CHECK(child.next());
  }
}

}  // namespace
}  // namespace filetimer
