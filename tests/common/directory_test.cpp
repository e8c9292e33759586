// SPDX-License-Identifier: MIT
#include "common/directory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/files.hpp"

namespace filetimer {
namespace {

std::vector<std::string> names_in(Directory directory) {
  std::vector<std::string> names;
  while (const char* const name = directory.next()) {
    names.emplace_back(name);
  }
  const int reason = errno;
  CHECK(reason == 0);
  std::ranges::sort(names);
  return names;
}

TEST_CASE("a directory gives each name in it once, hidden ones too, and not itself") {
  const testing::TempFolder folder;
  CHECK(names_in(Directory(folder.path())).empty());
  const std::vector<std::string> names{".hidden", "..two", "a", "b c"};
  for (const std::string& name : names) {
    folder.write(name, "");
  }
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  CHECK(names_in(Directory(folder.path())) == sorted);
  UniqueFd fd(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(names_in(Directory(std::move(fd))) == sorted);
}

// Returns why the directory has no names; 0: it has some.
int reason_of(Directory directory) {
  return directory || directory.next() != nullptr ? 0 : errno;
}

TEST_CASE("a path that is not a directory has no names, and errno has the reason") {
  const testing::TempFolder folder;
  folder.write("file", "");
  const std::string missing = folder.path("missing");
  const std::string file = folder.path("file");
  CHECK(reason_of(Directory(missing)) == ENOENT);
  CHECK(reason_of(Directory(file)) == ENOTDIR);
  CHECK(reason_of(Directory(UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC)))) == ENOTDIR);
  CHECK(reason_of(Directory(UniqueFd())) == EBADF);
}

TEST_CASE("a process that has ended has no more names in /proc") {
  Child child;
  Directory threads("/proc/" + std::to_string(child.pid()) + "/task");
  REQUIRE(threads);
  child.end();
  CHECK(threads.next() == nullptr);
}

}  // namespace
}  // namespace filetimer
