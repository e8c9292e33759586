// SPDX-License-Identifier: MIT
#include "common/run_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/sanitizers.hpp"
#include "tests/support/children.hpp"
#include "tests/support/files.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/variable.hpp"

using namespace filetimer;
using testing::contains;
using testing::kSomebodyElse;
using testing::TempFolder;
using testing::Variable;

namespace fs = std::filesystem;

namespace {

// A folder in `temp` with that mode, whatever the umask is.
std::string folder_in(const TempFolder& temp, const std::string& name, mode_t mode) {
  REQUIRE(::mkdir(temp.path(name).c_str(), 0700) == 0);
  REQUIRE(::chmod(temp.path(name).c_str(), mode) == 0);
  return temp.path(name);
}

// Unsets all variables that the resolution reads.
struct CleanEnvironment {
  Variable dir{"FILETIMER_DIR", nullptr};
  Variable runtime{"XDG_RUNTIME_DIR", nullptr};
  Variable torch{"TORCHELASTIC_TIMER_FILE", nullptr};
  Variable state{"XDG_STATE_HOME", nullptr};
  Variable home{"HOME", nullptr};
};

// The directory of a user without any variable.
std::string users_own() {
  return fmt::format("/dev/shm/filetimer-{}", ::geteuid());
}

mode_t mode_of(const std::string& path) {
  struct stat st {};
  REQUIRE(::lstat(path.c_str(), &st) == 0);
  return st.st_mode & 07777;
}

std::string refusal(const std::string& dir) {
  const auto created = create_run_folder(dir);
  REQUIRE_FALSE(created.has_value());
  CHECK(created.error().message.find('\n') == std::string::npos);
  return created.error().message;
}

bool give_away(const std::string& path) {
  return ::lchown(path.c_str(), kSomebodyElse, kSomebodyElse) == 0;
}

}  // namespace

TEST_CASE("directory and pipe are those given, else the environment's or user's, as full paths") {
  const CleanEnvironment clean;
  const TempFolder temp;
  CHECK(resolve_run_folder("").dir == users_own());
  CHECK_FALSE(resolve_run_folder("").was_named);
  CHECK(resolve_pipe("", "") == users_own() + "/requests");
  const Variable runtime("XDG_RUNTIME_DIR", temp.path().c_str());
  CHECK(resolve_run_folder("").dir == temp.path("filetimer"));
  CHECK_FALSE(resolve_run_folder("").was_named);
  const Variable torch("TORCHELASTIC_TIMER_FILE", "/torch/pipe");
  CHECK(resolve_pipe("", "") == "/torch/pipe");
  const Variable dir("FILETIMER_DIR", "/from/environment");
  CHECK(resolve_run_folder("").dir == "/from/environment");
  CHECK(resolve_run_folder("").was_named);
  CHECK(resolve_pipe("", "") == "/from/environment/requests");
  CHECK(resolve_run_folder("/given").dir == "/given");
  CHECK(resolve_run_folder("/given").was_named);
  CHECK(resolve_pipe("/given", "") == "/given/requests");
  CHECK(resolve_pipe("/given", "/elsewhere/pipe") == "/elsewhere/pipe");
  const std::string here = fs::current_path().string();
  CHECK(resolve_pipe("", "pipe") == here + "/pipe");
  CHECK(resolve_run_folder("jobs/7").dir == here + "/jobs/7");
  CHECK(resolve_run_folder("jobs//7///").dir == here + "/jobs/7");
  CHECK(resolve_run_folder("/a/./b/../c/").dir == "/a/c");
  CHECK(resolve_run_folder("/").dir == "/");
  CHECK(resolve_run_folder("/a").path("requests") == "/a/requests");
}

TEST_CASE("a runtime folder that is missing, relative, a file or another user's is not used") {
  const CleanEnvironment clean;
  const TempFolder temp;
  temp.write("file", "x");
  for (const std::string& value :
       {std::string(), temp.path("missing"), temp.path("file"), std::string(".")}) {
    CAPTURE(value);
    const Variable runtime("XDG_RUNTIME_DIR", value.c_str());
    CHECK(resolve_run_folder("").dir == users_own());
  }
  if (const std::string other = folder_in(temp, "other", 0700); give_away(other)) {
    const Variable runtime("XDG_RUNTIME_DIR", other.c_str());
    CHECK(resolve_run_folder("").dir == users_own());
  }
}

TEST_CASE("the log is in a folder that was named, else with the user's state") {
  const CleanEnvironment clean;
  CHECK(default_log_path({"/jobs/7", true}) == "/jobs/7/expired.jsonl");
  const RunFolder unnamed{"/dev/shm/filetimer-0", false};

  const auto none = default_log_path(unnamed);
  REQUIRE_FALSE(none.has_value());
  CHECK(contains(none.error().message, "--log"));

  const Variable home("HOME", "/home/me");
  const auto in_home = default_log_path(unnamed);
  REQUIRE(in_home.has_value());
  CHECK(in_home->starts_with("/home/me/.local/state/filetimer/"));
  CHECK(in_home->ends_with(".jsonl"));
  {
    const Variable relative("XDG_STATE_HOME", "relative/state");
    CHECK(default_log_path(unnamed) == *in_home);
  }
  const Variable state("XDG_STATE_HOME", "/state");
  const auto in_state = default_log_path(unnamed);
  REQUIRE(in_state.has_value());
  CHECK(in_state->starts_with("/state/filetimer/"));
  // HOST-ID: two hosts of one name that share a home stay apart.
  const std::string stem = fs::path(*in_state).stem().string();
  utsname machine{};
  REQUIRE(::uname(&machine) == 0);
  CHECK(stem.size() > 9);
  CHECK(stem.starts_with(std::string(machine.nodename) + '-'));
  CHECK(stem[stem.size() - 9] == '-');
}

TEST_CASE("the runtime directory is made private, and so are its missing parents") {
  const TempFolder temp;
  mode_t mask = 0;
  SUBCASE("with no umask") {}
  SUBCASE("with a umask for files") {
    mask = 0177;
  }
  const mode_t old = ::umask(mask);
  const auto made = create_run_folder(temp.path("a/b/run"));
  ::umask(old);
  REQUIRE(made.has_value());
  for (const char* name : {"a", "a/b", "a/b/run"}) {
    CAPTURE(name);
    CHECK(mode_of(temp.path(name)) == 0700);
  }
  CHECK(identity_of(made->get()) == identity_of(temp.path("a/b/run")));
  CHECK((::fcntl(made->get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE(
    "a directory of this user is used as it is, and made where no other user can replace it") {
  const TempFolder temp;
  folder_in(temp, "run", 0700);
  temp.write("run/kept", "x");
  CHECK(create_run_folder(temp.path("run")).has_value());
  CHECK(create_run_folder(temp.path("run/")).has_value());
  CHECK(fs::exists(temp.path("run/kept")));
  REQUIRE(::chmod(temp.path("run").c_str(), 0755) == 0);  // others may read
  CHECK(create_run_folder(temp.path("run")).has_value());
  folder_in(temp, "sticky", 01777);  // such as /tmp
  folder_in(temp, "safe", 0700);
  fs::create_symlink("safe", temp.path("to-safe"));
  for (const char* name : {"sticky/run", "to-safe/run"}) {
    CHECK(create_run_folder(temp.path(name)).has_value());
    CHECK(mode_of(temp.path(name)) == 0700);
  }
}

TEST_CASE("a runtime directory is refused where another user could read or replace it") {
  const TempFolder temp;
  folder_in(temp, "safe", 0700);
  folder_in(temp, "open", 0777);
  folder_in(temp, "open/inner", 0700);
  folder_in(temp, "group", 0770);
  temp.write("file", "precious");
  REQUIRE(::mkfifo(temp.path("pipe").c_str(), 0600) == 0);  // is not opened, which would block
  for (const auto& [to, name] :
       std::vector<std::pair<std::string, std::string>>{{"safe", "link"},
                                                        {"nowhere", "dangling"},
                                                        {"open/inner", "to-open"},
                                                        {"safe", "open/to-safe"},
                                                        {"open/to-safe", "safe/to-open"}}) {
    fs::create_symlink(temp.path(to), temp.path(name));
  }
  for (const mode_t mode : {0770U, 0720U, 0702U, 0777U, 01777U}) {
    const std::string name = fmt::format("run{:o}", mode);
    folder_in(temp, name, mode);
    CHECK(contains(refusal(temp.path(name)), "others may write"));
    CHECK(contains(refusal(temp.path(name)), fmt::format("' (mode {:04o}): expected", mode)));
  }
  struct Row {
    std::string dir;
    std::string says;
    std::string names;  // a path; empty: any
  };
  for (const Row& row : std::vector<Row>{{"link", "symlink", "link"},
                                         {"link/", "symlink", "link"},
                                         {"dangling", "symlink", "dangling"},
                                         {"file", "is a file", {}},
                                         {"file/run", "is not a folder", "file"},
                                         {"pipe", {}, {}},
                                         {"open/run", "(mode 0777)", "open"},
                                         {"open/a/b/run", {}, "open"},
                                         {"group/run", {}, "group"},
                                         {"to-open/run", {}, "open"},
                                         {"open/to-safe/run", {}, {}},
                                         {"safe/to-open/run", "(mode 0777)", "open"}}) {
    CAPTURE(row.dir);
    const std::string message = refusal(temp.path(row.dir));
    CHECK(contains(message, row.says));
    CHECK((row.names.empty() || contains(message, "'" + temp.path(row.names) + "'")));
  }
  CHECK(fs::file_size(temp.path("file")) == 8);
  for (const char* name : {"nowhere", "open/run", "open/a", "open/inner/run", "safe/run"}) {
    CAPTURE(name);
    CHECK_FALSE(fs::exists(temp.path(name)));
  }
}

TEST_CASE("a relative runtime directory is refused in a working directory that is gone") {
  const TempFolder temp;
  const fs::path here = fs::current_path();
  fs::current_path(folder_in(temp, "gone", 0700));
  fs::remove(temp.path("gone"));
  for (const char* dir : {"run", "a/run"}) {
    CHECK(contains(refusal(dir), fmt::format("the working directory for '{}'", dir)));
  }
  fs::current_path(here);
}

TEST_CASE("another user's runtime directory is refused, and so is one below such a directory") {
  const TempFolder temp;
  FILETIMER_SKIP_IF(
      !give_away(folder_in(temp, "run", 0700)) || !give_away(folder_in(temp, "theirs", 0755)),
      "only root can make another user's folder");
  CHECK(contains(refusal(temp.path("run")), fmt::format("belongs to user {}", kSomebodyElse)));
  CHECK(contains(refusal(temp.path("theirs/run")),
                 fmt::format("'{}' belongs to user {}, who", temp.path("theirs"), kSomebodyElse)));
  folder_in(temp, "sticky", 01775);  // of a group; the kernel follows any symlink in it
  folder_in(temp, "safe", 0700);
  fs::create_symlink(temp.path("safe"), temp.path("sticky/to-safe"));
  CHECK(create_run_folder(temp.path("sticky/to-safe/run")).has_value());
  REQUIRE(give_away(temp.path("sticky/to-safe")));
  CHECK(contains(refusal(temp.path("sticky/to-safe/run")),
                 fmt::format("is a symlink of user {}, who", kSomebodyElse)));
}

TEST_CASE("in a user namespace in which root has no id, the folders of root are still root's") {
  FILETIMER_SKIP_IF(kIsThreadSanitized, "the sanitizer has a thread of its own");
  const TempFolder temp("/dev/shm");
  FILETIMER_SKIP_IF(!give_away(temp.path()), "only root can make another user's folder");
  const auto enter = [] {
    if (::setresuid(kSomebodyElse, kSomebodyElse, kSomebodyElse) != 0 ||
        ::prctl(PR_SET_DUMPABLE, 1) != 0 || ::unshare(CLONE_NEWUSER) != 0) {
      return false;
    }
    std::ofstream map("/proc/self/uid_map");  // AppArmor may forbid this alone
    map << fmt::format("{0} {0} 1", kSomebodyElse) << std::flush;
    return map.good();
  };
  const auto make = [&temp] { return create_run_folder(temp.path("run")).has_value(); };
  SteppedChild child({enter, make});
  FILETIMER_SKIP_IF(!child.next(), "no namespaces of another user can be made");
  CHECK(child.next());
}

TEST_CASE("the folders above a pipe or a log placed elsewhere are checked the same way") {
  const TempFolder temp;
  folder_in(temp, "open", 0777);
  CHECK(check_parents(temp.path("pipe")).has_value());
  CHECK(check_parents("/dev/shm/pipe").has_value());
  CHECK_FALSE(check_parents(temp.path("open/pipe")).has_value());
  const auto missing = check_parents(temp.path("missing/pipe"));
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().errno_value == ENOENT);
  CHECK(contains(missing.error().message, temp.path("missing")));
}

TEST_CASE("the path of a socket is its address up to 107 bytes, then leads through a descriptor") {
  for (const std::size_t bytes : {107U, 108U}) {
    CAPTURE(bytes);
    const auto address = ControlAddress::in(std::string(bytes - sizeof "control", '/'));
    REQUIRE(address.has_value());
    const std::string path = reinterpret_cast<const sockaddr_un*>(address->get())->sun_path;
    CHECK(path.starts_with("/proc/self/fd/") == (bytes == 108));
    CHECK(path.ends_with("/control"));
  }
}
