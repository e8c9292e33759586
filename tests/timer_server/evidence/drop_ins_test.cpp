// SPDX-License-Identifier: MIT
#include "timer_server/evidence/drop_ins.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.hpp"

using namespace filetimer;

namespace {

const std::string kScript = "#!/bin/sh\n";
// Whether folders cannot be read after their first entry.
thread_local bool reading_fails = false;
thread_local bool has_read_one = false;

// The folders of an installation and of its site.
struct Folders {
  testing::TempFolder temp;
  Folders() {
    for (const char* const each : {"installed", "site"}) {
      REQUIRE(::mkdir(temp.path(each).c_str(), 0755) == 0);
    }
  }
  void add(const std::string& path, const std::string& text = kScript, mode_t mode = 0755) const {
    temp.write(path, text);
    REQUIRE(::chmod(temp.path(path).c_str(), mode) == 0);
  }
  [[nodiscard]] std::vector<DropIn> find() const {
    return find_drop_ins({temp.path("installed"), temp.path("site"), temp.path("missing")});
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const DropIn& each : find()) {
      names.push_back(each.name);
    }
    return names;
  }
};

}  // namespace

extern "C" dirent* readdir(DIR* folder) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  dirent* const entry = has_read_one ? nullptr : real(folder);
  if (entry == nullptr) {
    errno = std::exchange(has_read_one, false) ? EIO : errno;
  } else {
    has_read_one = reading_fails && entry->d_name[0] != '.';
  }
  return entry;
}

TEST_CASE("Drop-ins are the programs in both folders that run-parts would run, in order") {
  const Folders folders;
  folders.add("installed/zz");
  folders.add("site/10-My_own");
  folders.add("site/10-My_own.dpkg-old");
  folders.add("site/a b");
  folders.add("site/not-executable", kScript, 0644);
  REQUIRE(::mkdir(folders.temp.path("site/folder").c_str(), 0755) == 0);
  reading_fails = true;  // behind the first entry of each folder
  CHECK_NOTHROW((void)folders.find());
  reading_fails = false;
  CHECK(folders.names() == std::vector<std::string>{"10-My_own", "zz"});
}

TEST_CASE("The site replaces an installed drop-in by its name, or removes it") {
  const Folders folders;
  for (const char* const name : {"replaced", "emptied", "disabled", "to-null", "kept"}) {
    folders.add(std::string("installed/") + name);
  }
  folders.add("site/replaced");
  folders.add("site/emptied", "");
  folders.add("site/disabled", kScript, 0644);
  REQUIRE(::symlink("/dev/null", folders.temp.path("site/to-null").c_str()) == 0);
  const std::vector<DropIn> found = folders.find();
  REQUIRE(found.size() == 2);
  CHECK(found[0].path == folders.temp.path("installed/kept"));
  CHECK(found[1].path == folders.temp.path("site/replaced"));
}

TEST_CASE("A drop-in is started where one thing of each of its lines is there") {
  const Folders folders;
  const std::string needs = "# filetimer: needs ";
  folders.add("site/a", kScript + needs + "no-such-program\n");
  folders.add("site/b", kScript + needs + "sh\n" + needs + folders.temp.path("device") + "\n");
  folders.add("site/c", kScript + needs + "env:ONE  env:TWO\n# " + needs + "no-such-program\n");
  folders.add("site/d", kScript + needs + "env:THREE no-such-program\n" + needs + "/\n");
  const std::vector<DropIn> found = folders.find();
  REQUIRE(found.size() == 3);
  CHECK(variables_needed_by(found) == std::vector<std::string>{"ONE", "THREE", "TWO"});
  CHECK_FALSE(has_what_it_needs(found[0], {"ONE", "TWO", "THREE"}));
  folders.add("device");
  CHECK(has_what_it_needs(found[0], {}));
  CHECK(has_what_it_needs(found[1], {"TWO"}));
  CHECK_FALSE(has_what_it_needs(found[1], {"THREE"}));
  CHECK(has_what_it_needs(found[2], {"THREE"}));
  CHECK_FALSE(has_what_it_needs(found[2], {}));
}

TEST_CASE("--evidence-dir names the folder, or none") {
  CHECK(drop_in_folders("/srv/evidence") == std::vector<std::string>{"/srv/evidence"});
  CHECK(drop_in_folders("none").empty());
  const std::vector<std::string> folders = drop_in_folders("");
  REQUIRE(folders.size() == 2);
  CHECK(folders[0].ends_with("/evidence.d"));
  CHECK(folders[1] == "/etc/filetimer/evidence.d");
}
