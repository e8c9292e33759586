// The runtime directory and its pipe: what a server accepts when it starts, and how it reacts to
// changes by others while it runs.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/process/worker.hpp"
#include "tests/support/mounts.hpp"

using namespace filetimer::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

bool is_pipe(const std::string& path) {
  return fs::is_fifo(fs::symlink_status(path));
}

// A file system of 64 KiB on the folder `disk` of the test, in a mount namespace of the test's own.
class TinyDisk {
 public:
  explicit TinyDisk(const TempFolder& temp) : path_(temp.make_folder("disk")) {
    mounted_ = enter_mount_namespace() && mount_tmpfs(path_, "size=64k,mode=0700");
  }
  TinyDisk(const TinyDisk&) = delete;
  TinyDisk& operator=(const TinyDisk&) = delete;
  ~TinyDisk() {
    if (mounted_) {
      ::umount2(path_.c_str(), MNT_DETACH);
    }
  }
  [[nodiscard]] bool is_mounted() const { return mounted_; }
  [[nodiscard]] std::string path(const char* name) const { return path_ + "/" + name; }
  // Fills the file system.
  void fill() const {
    std::ofstream filler(path("filler"));
    REQUIRE(filler);
    filler << std::string(65537, 'x') << std::flush;  // a byte more than an empty one holds
    REQUIRE_FALSE(filler);
  }
  void free() const { REQUIRE(::unlink(path("filler").c_str()) == 0); }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace

TEST_CASE("directory, pipe and log are private, and one line of output says where they are") {
  const TempFolder temp;
  Server server(temp, {.folder = "a/b/run"});
  CHECK(server.ready_line() == fmt::format("ready dir={0} fifo={0}/requests log={0}/expired.jsonl "
                                           "pid={1}",
                                           temp.path("a/b/run"), server.pid()));
  for (const std::string& folder : {temp.path("a"), temp.path("a/b"), server.dir()}) {
    CHECK(fs::status(folder).permissions() == fs::perms(0700));
  }
  CHECK(is_pipe(server.fifo()));
  CHECK(fs::symlink_status(server.fifo()).permissions() == fs::perms(0600));
  CHECK(fs::symlink_status(server.log()).permissions() == fs::perms(0600));
  CHECK(fs::symlink_status(server.dir() + "/control").permissions() == fs::perms(0600));
  CHECK(server.out() == server.ready_line() + "\n");
  // systemd-tmpfiles leaves a directory alone that it cannot lock.
  const filetimer::UniqueFd folder(::open(server.dir().c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(::flock(folder.get(), LOCK_EX | LOCK_NB) != 0);
  CHECK(server.stop() == exited(0));
  CHECK(server.out() == server.ready_line() + "\n");
}

TEST_CASE("the link to a pipe elsewhere is made again when it was removed") {
  const TempFolder temp;
  const std::string metrics = temp.path("metrics");  // replaced in each sweep
  Server server(temp,
                {"--fifo", temp.path("pipe"), "--max-interval", "100ms", "--metrics", metrics});
  const std::string link = server.dir() + "/requests";
  for (int i = 0; i < 2; ++i) {
    REQUIRE(::unlink(link.c_str()) == 0);
    REQUIRE(wait_until([&] { return exists(link); }));
  }
  const Worker worker("block");
  send_raw(link, acquire_far(worker.pid(), "forward"));
  server.barrier();
  CHECK(contains(run_client(server, {"list"}).out, "forward"));
  // Sweeps that find everything in place make nothing.
  REQUIRE(wait_until([&] { return exists(metrics); }));
  for (int sweep = 0; sweep < 3; ++sweep) {
    const auto written = std::filesystem::last_write_time(metrics);
    REQUIRE(wait_until([&] { return std::filesystem::last_write_time(metrics) != written; }));
  }
  CHECK(server.stop() == exited(0));
  const std::string said = server.err();
  CHECK(contains(said.substr(said.find("made again") + 1), "made again"));
  CHECK(said.find("made again", said.find("made again") + 1) == said.rfind("made again"));
}

TEST_CASE("an entry is made again while the file system of the log does not answer") {
  const TempFolder temp;
  const std::string disk = temp.make_folder("disk");
  Server server(temp, on_bad_disk(temp, "BAD_DISK_HANGS_IN",
                                  {"--log", disk + "/log", "--max-interval", "20ms"}));
  temp.write("fault", disk);
  REQUIRE(::unlink((server.dir() + "/control").c_str()) == 0);
  server.wait_for_message("made again");
  expect_kill(server);
}

TEST_CASE("a file in the pipe's place is kept under another name, and clients try the pipe again") {
  Server server({"--max-interval", "20ms"});
  const auto board = status_page(server.dir());
  const std::uint64_t before = board->incarnation;
  {
    const Stopped stopped(server);
    REQUIRE(::unlink(server.fifo().c_str()) == 0);
    write_file(server.fifo(), "kept");
  }
  server.wait_for_message("was gone: made again");
  CHECK(board->incarnation > before);
  CHECK(std::ranges::count_if(fs::directory_iterator(server.dir()), [](const auto& file) {
          return file.path().filename().string().starts_with("requests.not-a-pipe.") &&
                 read_file(file.path().string()) == "kept";
        }) == 1);
  expect_kill(server);
}

TEST_CASE("--log may name the link to the log that an earlier server has left") {
  const TempFolder temp;
  const std::string log = temp.path("log.jsonl");
  CHECK(Server(temp, {"--log", log}).stop() == exited(0));
  Server next(temp, {"--log", temp.path("run/log_link")});
  CHECK(next.stop() == exited(0));
  CHECK(read_log(log).back().is("server_stopped"));
  CHECK(count(read_log(log), "server_stopped") == 2);
}

TEST_CASE("--fifo may name the directory's own pipe by another path") {
  const TempFolder temp;
  fs::create_symlink(".", temp.path("other"));
  Server server(temp, {"--fifo", temp.path("other/run/requests"), "--max-interval", "20ms"});
  CHECK(is_pipe(server.dir() + "/requests"));
  expect_kill(server);
  REQUIRE(::unlink(server.fifo().c_str()) == 0);
  REQUIRE(wait_until([&] { return is_read_pipe(server.dir() + "/requests"); }));
  for (const auto& entry : fs::directory_iterator(server.dir())) {
    CHECK_FALSE(contains(entry.path().string(), "not-a-pipe"));  // it was no link to itself
  }
  CHECK(server.stop() == exited(0));
  CHECK_FALSE(exists(server.dir() + "/requests"));
}

TEST_CASE("a pipe that a killed server has left is taken over with all that have it open") {
  Server server;
  const filetimer::UniqueFd pipe = open_pipe(server.fifo());
  server.kill();
  const Server next(server.temp());
  Worker worker("block");
  write_all(pipe.get(), acquire_past(worker.pid(), "s"));
  CHECK(worker.status() == killed_by(SIGKILL));
}

TEST_CASE("a link to a pipe elsewhere that a killed server has left gives way to a pipe") {
  const TempFolder temp;
  Server server(temp, {"--fifo", temp.path("pipe")});
  server.kill();
  REQUIRE(fs::is_symlink(server.dir() + "/requests"));
  const Server next(temp);
  CHECK(is_pipe(next.dir() + "/requests"));
}

TEST_CASE("what is in the way of an entry of the directory is named at the start, and kept") {
  const TempFolder temp;
  const std::vector<std::string> elsewhere{"--dir",           temp.path("run"), "--fifo",
                                           temp.path("pipe"), "--log",          temp.path("log")};
  REQUIRE(run_server({"--dir", temp.path("run"), "--", "/bin/true"}).status == exited(0));
  for (const std::string name : {"requests", "log_link", "scopes", "control", "server"}) {
    CAPTURE(name);
    const std::string path = temp.path("run/" + name);
    fs::remove_all(path);
    if (name == "scopes") {
      write_file(path, "kept");
    } else {
      fs::create_directory(path);
    }
    const Finished finished = run_server(elsewhere);
    CAPTURE(finished.err);
    check_failure(finished, 1, "'" + path + "'");
    CHECK(finished.out.empty());
    CHECK(exists(path));
    CHECK_FALSE(exists(temp.path("pipe")));
    fs::remove(path);
  }
}

TEST_CASE("somebody's own file in place of the status page is named at the start, and kept") {
  const TempFolder temp;
  REQUIRE(run_server({"--dir", temp.path("run"), "--", "/bin/true"}).status == exited(0));
  const std::string path = temp.path("run/server");
  for (const std::string& text : {std::string("notes"), std::string(9000, 'x')}) {
    write_file(path, text);
    const Finished finished = run_server({"--dir", temp.path("run")});
    check_failure(finished, 1, "'" + path + "' is no status page");
    CHECK(std::ranges::count(finished.err, '\n') == 1);
    CHECK(read_file(path) == text);
  }
}

TEST_CASE("a start waits for the last reader of a killed server's pipe") {
  const auto has_served = [] {
    const TempFolder temp;
    temp.make_folder("run");
    const std::string pipe = temp.path("run/requests");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    // As in a child of a killed server, before the child executes another program.
    filetimer::UniqueFd reader(::open(pipe.c_str(), O_RDWR | O_CLOEXEC));
    const std::jthread ends([&] {
      let_pass(300ms);
      reader.reset();
    });
    return run_server({"--dir", temp.path("run"), "--", worker_path(), "hang", "s", "0.05"})
               .status == exited(128 + SIGKILL);
  };
  // On a busy machine the reader may end after the second for which a start waits.
  CHECK((has_served() || has_served() || has_served()));
}

TEST_CASE("another user's pipe is refused") {
  const TempFolder temp;
  REQUIRE(::mkfifo(temp.path("pipe").c_str(), 0600) == 0);
  FILETIMER_SKIP_IF(::chown(temp.path("pipe").c_str(), kSomebodyElse, kSomebodyElse) != 0,
                    "only root can make another user's pipe");
  check_failure(run_server({"--dir", temp.path("run"), "--fifo", temp.path("pipe")}), 1, "65533");
}

TEST_CASE("timers of the pipe are watched on a full file system, and saved once it has room") {
  const TempFolder temp;
  const TinyDisk disk(temp);
  FILETIMER_SKIP_IF(!disk.is_mounted(), kNoMounts);
  const std::string log = temp.path("log");
  Worker hung("block");
  Worker kept("block");
  const auto timers_of = [&](const Worker& worker) {
    return disk.path("scopes/server/") + std::to_string(worker.pid());
  };
  Server server(temp, {.args = {"--log", log, "--max-interval", "100ms"}, .folder = "disk"});
  disk.fill();
  server.send(acquire(hung.pid(), "s", 300ms) + acquire_far(kept.pid(), "s"));
  server.wait_for_message("its timers are watched, but the next server would not find them");
  CHECK(hung.status() == killed_by(SIGKILL));
  check_prompt(server, hung.pid());
  // It is there for a moment in each attempt.
  CHECK(wait_until([&] { return !exists(timers_of(kept)); }));
  disk.free();
  CHECK(wait_until([&] { return exists(timers_of(kept)); }));
  server.barrier();  // the file has been written
  server.kill();
  const Server next(temp, {.args = {"--log", log}, .folder = "disk"});
  CHECK(adopted_by(next) == 1);
}

TEST_CASE("a start on a full file system is a failure that names the file and the reason") {
  const TempFolder temp;
  const TinyDisk disk(temp);
  FILETIMER_SKIP_IF(!disk.is_mounted(), kNoMounts);
  disk.fill();
  const Finished finished = run_server({"--dir", temp.path("disk"), "--log", temp.path("log")});
  check_failure(finished, 1, temp.path("disk/server"));
  CHECK(contains(finished.err, "No space left on device"));
}

TEST_CASE("a runtime directory whose entries cannot be made again at once stays locked") {
  Server server({"--max-interval", "100ms"});
  const std::string blocked = server.dir() + "/scopes";
  {
    const Stopped stopped(server);
    for (const auto& entry : std::filesystem::directory_iterator(server.dir())) {
      std::filesystem::remove_all(entry);
    }
    write_file(blocked, "");
  }
  server.wait_for_message(blocked);
  std::filesystem::remove(blocked);
  server.wait_for_message("an entry of");
  const Finished second = run_server({"--dir", server.dir()});
  CHECK(second.status == exited(3));
}

TEST_CASE("a server whose directory another one has taken leaves the scopes of the pipe to it") {
  const TempFolder temp;
  Server server(temp, {"--max-interval", "100ms", "--log", temp.path("log")});
  Worker worker("block");
  Worker other("block");
  constexpr auto kTimeout = 2s;
  server.send(acquire(worker.pid(), "s", kTimeout) + acquire_far(other.pid(), "far"));
  server.barrier();
  const filetimer::Instant stopped = filetimer::Instant::now();
  std::optional<Server> next;
  {
    const Stopped guard(server);
    fs::remove_all(server.dir());
    next.emplace(temp);
    next->send(release(worker.pid(), "s") + acquire_far(other.pid(), "far"));
    next->barrier();
  }
  const std::string saved = fmt::format("{}/scopes/server/{}", next->dir(), other.pid());
  REQUIRE(wait_until([&] { return fs::exists(saved); }));  // in the iteration after the answer
  const auto file = filetimer::identity_of(saved);
  const auto paged = page_worker(next->dir(), "w-1");
  paged->ask("open 0 far 3600000");
  REQUIRE(paged->ask("hint") == "ok");
  server.wait_for_message(fmt::format("is held by the timer_server with pid {}", next->pid()));
  // The scope gets the time back in which the server was stopped.
  let_pass_until(filetimer::Instant::now() + (filetimer::Instant::now() - stopped) + kTimeout);
  CHECK(worker.is_alive());
  CHECK(filetimer::identity_of(saved) == file);
  paged->signal(SIGKILL);
  next->wait_for("left_open", paged->pid());
  CHECK(server.stop() == exited(0));
  CHECK(count(server.records(), "left_open") == 0);
  CHECK(run_client(*next, {"ping"}).status == exited(0));
}

TEST_CASE("a server whose directory another one has taken leaves the link to its pipe alone") {
  const TempFolder temp;
  std::vector<std::string> args{"--max-interval", "100ms", "--log", temp.path("log")};
  SUBCASE("also if its own pipe is elsewhere") {
    args.insert(args.end(), {"--fifo", temp.path("first")});
  }
  SUBCASE("") {}
  Server server(temp, args);
  std::optional<Server> next;
  {
    const Stopped guard(server);
    fs::remove_all(server.dir());
    next.emplace(temp, std::vector<std::string>{"--fifo", temp.path("pipe")});
  }
  server.wait_for_message(fmt::format("is held by the timer_server with pid {}", next->pid()));
  CHECK(server.stop() == exited(0));  // after the sweep that has found it
  CHECK(fs::is_symlink(next->dir() + "/requests"));
}

TEST_CASE("a runtime directory on a network file system is served with a warning") {
  const TempFolder temp;
  const Server::Setup setup = on_bad_disk(temp, "BAD_DISK_NETWORK");
  std::istringstream kinds(
      "ff534d42 SMB fe534d42 SMB 517b SMB c36400 Ceph bd00bd0 Lustre 47504653 GPFS 5346414f AFS "
      "6b414653 AFS 19830326 BeeGFS 1021997 9P");
  for (std::string kind, name; kinds >> kind >> name;) {
    temp.write("fault", kind);
    const std::vector<std::string> args{"--dir", temp.path("run"), "--", "/bin/true"};
    CHECK(contains(run_server(args, setup.environment).err,
                   fmt::format("is on a network file system ({}): no deadline", name)));
  }
  temp.write("fault", "6969");
  Server server(temp, setup);
  server.wait_for_message("is on a network file system (NFS)");
  expect_kill(server);
}

TEST_CASE("if many servers start at once in one directory, exactly one serves") {
  const TempFolder temp;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(
        std::make_unique<Child>(Launch{.argv = {server_path(), "--dir", temp.path("run")},
                                       .out = temp.path(fmt::format("out {}", i)),
                                       .err = temp.path(fmt::format("err {}", i))}));
  }
  const auto running = [&] {
    return std::count_if(children.begin(), children.end(),
                         [](const auto& child) { return child->is_alive(); });
  };
  CHECK(wait_until([&] { return running() == 1; }));
  const auto is_alive = [](const auto& child) { return child->is_alive(); };
  const auto winner = std::ranges::find_if(children, is_alive);
  REQUIRE(winner != children.end());
  int refused = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (children[i]->is_alive()) {
      CHECK(wait_until([&] { return !read_file(temp.path(fmt::format("out {}", i))).empty(); }));
    } else {
      CHECK(children[i]->status() == exited(3));
      CHECK(contains(read_file(temp.path(fmt::format("err {}", i))),
                     fmt::format("with pid {}", (*winner)->pid())));
      ++refused;
    }
  }
  CHECK(refused == 5);
  CHECK(running() == 1);
}
