// SPDX-License-Identifier: MIT
#include "tests/process/harness.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <ostream>

#include "common/mapped_file.hpp"
#include "common/proc_files.hpp"
#include "tests/process/worker.hpp"

extern char** environ;

namespace filetimer::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> environment_with(const Environment& changes) {
  Environment all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  // What would change the directory of a server or a client, or the rank of a worker.
  for (const char* name :
       {"FILETIMER_DIR", "FILETIMER_LOG_LEVEL", "FILETIMER_RPC_TIMEOUT", "TORCHELASTIC_TIMER_FILE",
        "TORCHELASTIC_ENABLE_FILE_TIMER", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "NOTIFY_SOCKET",
        "RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    all.erase(name);
  }
  for (const auto& [name, value] : changes) {
    all[name] = value;
  }
  std::vector<std::string> list;
  for (const auto& [name, value] : all) {
    if (value) {
      list.push_back(name + "=" + *value);
    }
  }
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) {
    list.push_back(text.data());
  }
  list.push_back(nullptr);
  return list;
}

// Returns a path of a built file that needs no quoting in a shell command or in LD_PRELOAD, which
// the linker splits at spaces and colons. Makes a link if the real path does.
std::string plain_path(const std::string& real) {
  const std::string folder = real.substr(0, real.rfind('/'));
  if (folder.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                               "0123456789/._+-") == folder.npos) {
    return real;
  }
  static const TempFolder links;
  static std::map<std::string, std::string> made;
  std::string& link = made[folder];
  if (link.empty()) {
    link = links.path(std::to_string(made.size()));
    fs::create_directory_symlink(folder, link);
  }
  return link + real.substr(folder.size());
}

// Copies the timer_server into the folder, with `script` beside it in place of its helper for
// stacks. Returns the path of the copy.
std::string with_helper(const TempFolder& temp, const std::string& script) {
  const std::string program = temp.path("timer_server");
  fs::copy_file(server_path(), program);
  if (!script.empty()) {
    write_program(temp.path("filetimer-stacks"), "#!/bin/sh\n" + script + "\n");
  }
  return program;
}

// A server with this library loaded, and the variable set that it looks at.
Server::Setup preloaded(const std::string& library, const std::string& variable,
                        const std::string& value, std::vector<std::string> args) {
  return {.args = std::move(args),
          .environment = {{"LD_PRELOAD", plain_path(library)},
                          {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                          {variable, value}}};
}

UniqueFd open_or_null(const std::string& path, int flags) {
  UniqueFd fd(::open(path.empty() ? "/dev/null" : path.c_str(), flags | O_CLOEXEC, 0644));
  REQUIRE_MESSAGE(fd, "cannot open " << path);
  return fd;
}

// Returns a copy in memory that every user may execute. Another user may neither reach a program
// below a private home nor execute one that was built with umask 077.
UniqueFd executable_by_all(const std::string& program) {
  const UniqueFd source = open_or_null(program, O_RDONLY);
  constexpr unsigned kExecutable = 0x10;  // MFD_EXEC, which kernels before 6.3 do not know
  constexpr const char* kName = "program of another user";
  UniqueFd copy(::memfd_create(kName, MFD_CLOEXEC | kExecutable));
  if (!copy) {
    copy = UniqueFd(::memfd_create(kName, MFD_CLOEXEC));
  }
  REQUIRE(copy);
  struct stat status {};
  REQUIRE(::fstat(source.get(), &status) == 0);
  for (off_t at = 0; at < status.st_size;) {
    REQUIRE(::sendfile(copy.get(), source.get(), &at,
                       static_cast<std::size_t>(status.st_size - at)) > 0);
  }
  REQUIRE(::fchmod(copy.get(), 0755) == 0);
  // A file that is open for writing cannot be executed.
  return open_or_null(fmt::format("/proc/self/fd/{}", copy.get()), O_RDONLY);
}

bool become(uid_t user, gid_t group) {
  return ::setgroups(0, nullptr) == 0 && ::setgid(group) == 0 && ::setuid(user) == 0;
}

pid_t launch_child(const Launch& launch) {
  std::vector<std::string> argv = launch.argv;
  std::vector<std::string> environment = environment_with(launch.environment);
  const std::vector<char*> arg_pointers = pointers(argv);
  const std::vector<char*> env_pointers = pointers(environment);
  const UniqueFd null_in = open_or_null("", O_RDONLY);
  const UniqueFd out = open_or_null(launch.out, O_WRONLY | O_CREAT | O_APPEND);
  const UniqueFd err = open_or_null(launch.err, O_WRONLY | O_CREAT | O_APPEND);
  const UniqueFd program = launch.user ? executable_by_all(argv[0]) : UniqueFd();
  const pid_t test = ::getpid();

  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid != 0) {
    return pid;
  }
  // A group of its own, so that a server that signals its own group by mistake does not kill the
  // test and its runner.
  ::setpgid(0, 0);
  ::dup2(launch.in >= 0 ? launch.in : null_in.get(), STDIN_FILENO);
  ::dup2(launch.out_fd >= 0 ? launch.out_fd : out.get(), STDOUT_FILENO);
  ::dup2(launch.err_fd >= 0 ? launch.err_fd : err.get(), STDERR_FILENO);
  if (launch.user && !become(*launch.user, launch.group.value_or(*launch.user))) {
    ::_exit(126);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // after setuid, which clears it
  if (::getppid() != test) {
    ::_exit(126);
  }
  ::signal(SIGINT, SIG_DFL);  // a shell ignores it for tests in background
  if (launch.in_child) {
    launch.in_child();
  }
  if (program) {
    ::fexecve(program.get(), arg_pointers.data(), env_pointers.data());
  } else {
    ::execve(arg_pointers[0], arg_pointers.data(), env_pointers.data());
  }
  ::_exit(127);
}

}  // namespace

bool can_become(uid_t user) {
  return Child(Launch{.argv = {"/bin/true"}, .user = user}).status() == exited(0);
}

void let_pass(std::chrono::milliseconds time) {
  let_pass_until(Instant::now() + time);
}

void let_pass_until(Instant time) {
  REQUIRE(wait_until([&] { return Instant::now() >= time; }));
}

HeldPid::HeldPid(pid_t pid)
    : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  REQUIRE_MESSAGE(pidfd_, "no process " << pid);
}

HeldPid::~HeldPid() {
  if (pidfd_) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  }
}

bool HeldPid::ends_within(std::chrono::milliseconds bound) const {
  return is_readable_within(pidfd_.get(), bound);
}

void HeldPid::signal(int number) const {
  REQUIRE(::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0) == 0);
}

HeldPid pid_in(const std::string& file) {
  REQUIRE(wait_until([&] { return read_file(file).ends_with('\n'); }));
  return HeldPid(std::stoi(read_file(file)));
}

std::ostream& operator<<(std::ostream& out, const ExitStatus& status) {
  return status.signal != 0 ? out << "killed by signal " << status.signal
                            : out << "exited with " << status.code;
}

Child::Child(const Launch& launch) : Child(launch_child(launch)) {}

Child::~Child() {
  if (!status_) {
    ::kill(pid(), SIGKILL);  // a child that was not reaped: the pid was not reused
    int ignored = 0;
    retry_eintr([&] { return ::waitpid(pid(), &ignored, 0); });
  }
}

ExitStatus Child::status() {
  if (!status_) {
    REQUIRE_MESSAGE(ends_within(kBound), "process " << pid() << " did not end");
    int status = 0;
    REQUIRE(retry_eintr([&] { return ::waitpid(pid(), &status, 0); }) == pid());
    status_ = WIFSIGNALED(status) ? killed_by(WTERMSIG(status)) : exited(WEXITSTATUS(status));
  }
  return *status_;
}

void Child::kill() {
  signal(SIGKILL);
  REQUIRE(status() == killed_by(SIGKILL));
}

void Child::wait_for_state(char state) const {
  REQUIRE(wait_until([&] {
    const auto stat = filetimer::read_stat(fmt::format("/proc/{}", pid()));
    return stat && stat->state == state;
  }));
}

void Child::halt() const {
  signal(SIGSTOP);
  wait_until_stopped();
}

Pipe make_pipe() {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string program_path(const std::string& name) {
  return plain_path(std::string(FILETIMER_BIN_DIR) + "/" + name);
}
std::string server_path() {
  return program_path("timer_server");
}
std::string client_path() {
  return program_path("timer_client");
}
std::string worker_path() {
  return program_path("test_worker");
}

Finished run(const std::string& program, std::vector<std::string> args,
             const Environment& environment, int in, std::chrono::milliseconds bound) {
  const TempFolder temp;
  const std::string name = temp.path("run-");
  args.insert(args.begin(), program);
  Child child({.argv = std::move(args),
               .environment = environment,
               .out = name + "out",
               .err = name + "err",
               .in = in});
  const bool ended = child.ends_within(bound);
  REQUIRE_MESSAGE(ended, program << " did not end; it said: " << read_file(name + "out")
                                 << read_file(name + "err"));
  const ExitStatus status = child.status();
  return {status, read_file(name + "out"), read_file(name + "err")};
}

void check_failure(const Finished& finished, int status, std::string_view says) {
  CAPTURE(finished.err);
  CHECK(finished.status == exited(status));
  CHECK(contains(finished.err, says));
}

Server::Server(std::vector<std::string> args) : Server(Setup{.args = std::move(args)}) {}
Server::Server(const Setup& setup) : Server(std::make_shared<const TempFolder>(), setup) {}
Server::Server(const TempFolder& temp, std::vector<std::string> args)
    : Server(temp, Setup{.args = std::move(args)}) {}
Server::Server(const TempFolder& temp, const Setup& setup)
    : Server(std::shared_ptr<const TempFolder>(std::shared_ptr<void>(), &temp), setup) {}

Server::Server(std::shared_ptr<const TempFolder> temp, const Setup& setup)
    : temp_(std::move(temp)) {
  static int servers = 0;
  const std::string name = temp_->path(fmt::format("server-{}-", ++servers));
  out_ = name + "out";
  err_ = name + "err";
  std::vector<std::string> argv{setup.helper            ? with_helper(*temp_, *setup.helper)
                                : setup.program.empty() ? server_path()
                                                        : setup.program};
  if (setup.with_dir) {
    argv.insert(argv.end(), {"--dir", temp_->path(setup.folder)});
  }
  const auto sets = [&](const char* option) {
    return std::ranges::find(setup.args, option) != setup.args.end();
  };
  if (!sets("--max-interval") && !sets("--config")) {  // a sweep does late what an event has to
    argv.insert(argv.end(), {"--max-interval", "1h"});
  }
  argv.insert(argv.end(), setup.args.begin(), setup.args.end());
  if (!setup.command.empty()) {
    argv.emplace_back("--");
    argv.insert(argv.end(), setup.command.begin(), setup.command.end());
  }
  child_ = std::make_unique<Child>(Launch{.argv = std::move(argv),
                                          .environment = setup.environment,
                                          .out = out_,
                                          .err = err_,
                                          .in = setup.in,
                                          .err_fd = setup.err_fd,
                                          .user = setup.user,
                                          .group = setup.group,
                                          .in_child = setup.in_child});
  wait_until_ready();
}

Server::~Server() {
  child_.reset();
  std::error_code error;
  if (!unjudged_.empty() || !fs::is_regular_file(log_, error)) {
    return;
  }
  // A failure to end would end this program, and a log of megabytes takes seconds.
  const Finished judged = run(FILETIMER_HISTORY_CHECK, {"-", log_}, {}, -1, 6 * kBound);
  if (judged.status != exited(0)) {
    constexpr std::size_t kMostShown = 20'000;
    FAIL_CHECK("the log breaks a promise:\n"
               << judged.out << judged.err << read_file(log_).substr(0, kMostShown));
  }
}

void Server::wait_until_ready() {
  // The server's own line; COMMAND may print that it is ready, too.
  const std::string form = "^(ready dir=([^ ]+) fifo=([^ ]+) log=([^ ]+).*)\n";
  wait_until([&] {
    const bool may_say_more = child_->is_alive();
    if (const auto words = match_of(out() + "\n" + err(), form); !words.empty()) {
      ready_line_ = words[1];
      dir_ = words[2];
      fifo_ = words[3];
      log_ = words[4];
    }
    return !ready_line_.empty() || !may_say_more;
  });
  if (ready_line_.empty()) {
    give_up("not ready");
  }
}

void Server::give_up(const std::string& what) const {
  FAIL(what << "\nstandard output:\n"
            << out() << "standard error:\n"
            << err() << "log:\n"
            << read_file(log_));
  std::abort();  // FAIL has thrown
}

void Server::send(std::string_view bytes) const {
  send_raw(fifo(), bytes);
}

void Server::barrier() {
  // The expiry of a new worker is carried out after all earlier ones.
  const Worker marker("block");
  // The log may have the barriers of servers before this one.
  const std::string scope = fmt::format("barrier {} of {}", ++barriers_, pid());
  send(version1(marker.pid(), scope, 1, 0));
  wait_for("killed", scope);
}

Record Server::wait_for(const std::function<bool(const Record&)>& wanted) const {
  Records found;
  const auto has_come = [&] {
    std::ranges::copy_if(records(), std::back_inserter(found), wanted);
    return !found.empty();
  };
  if (!wait_until(has_come)) {
    give_up("the expected record did not come");
  }
  return found.front();
}

Record Server::wait_for_rejection(std::string_view reason) const {
  return wait_for([&](const Record& record) {
    return record.is("rejected") && contains(record.text("reason"), reason);
  });
}

void Server::wait_for_message(std::string_view text) const {
  if (!wait_until([&] { return err().find(text) != std::string::npos; })) {
    give_up(fmt::format("standard error does not contain '{}'", text));
  }
}

void Server::begin_stop() {
  child_->signal(SIGTERM);
  const Worker marker("block");
  int markers = 0;  // a new one each time: a scope that is open may be renewed while it drains
  REQUIRE(wait_until([&] {
    send(acquire_far(marker.pid(), std::to_string(++markers)));
    return count(records(), "rejected") > 0;
  }));
  let_pass(std::chrono::milliseconds{25});  // so that the next signal counts as a second one
}

ExitStatus Server::stop() {
  child_->signal(SIGTERM);
  if (!child_->ends_within(kBound)) {
    give_up("the server did not stop");
  }
  return child_->status();
}

Record Server::stop_record() {
  REQUIRE(stop() == exited(0));
  const Records all = records();
  REQUIRE(all.back().is("server_stopped"));
  return all.back();
}

std::int64_t adopted_by(const Server& server) {
  return server
      .wait_for([&](const Record& record) {
        return record.is("server_started") && record.integer("server_pid") == server.pid();
      })
      .integer("adopted_scopes");
}

std::shared_ptr<const Board> status_page(const std::string& dir) {
  auto page = MappedFile::map(dir + "/server", MappedFile::Access::kRead, kBoardBytes);
  REQUIRE(page.has_value());
  const auto mapped = std::make_shared<const MappedFile>(std::move(*page));
  return {mapped, static_cast<const Board*>(mapped->data())};
}

std::chrono::nanoseconds cpu_time_of(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  REQUIRE(::clock_getcpuclockid(pid, &clock) == 0);
  REQUIRE(::clock_gettime(clock, &used) == 0);
  return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
}

void check_prompt(const Server& server, pid_t pid) {
  const Record expired = server.wait_for("expired", pid);
  CAPTURE(expired.line());
  CHECK(expired.number("overdue_ms") < static_cast<double>(kPrompt.count()));
}

Stopped::Stopped(Server& server) : server_(server) {
  server_.process().halt();
}

Stopped::~Stopped() {
  server_.process().signal(SIGCONT);
}

Finished run_client(const Server& server, std::vector<std::string> words) {
  return run(client_path(), std::move(words), {{"FILETIMER_DIR", server.dir()}});
}

JsonLine status_of(const Server& server) {
  const Finished asked = run_client(server, {"status", "--json"});
  REQUIRE(asked.status == exited(0));
  return JsonLine(asked.out);
}

std::string metric_of(const Server& server, const std::string& file, const std::string& name,
                      const std::string& labels) {
  const std::string series = fmt::format("filetimer_{}{{dir=\"{}\"{}{}}} ", name, server.dir(),
                                         labels.empty() ? "" : ",", labels);
  for (const std::string& line : lines_of(read_file(file))) {
    if (line.starts_with(series)) {
      return line.substr(series.size());
    }
  }
  return {};
}

void write_program(const std::string& path, const std::string& text) {
  write_file(path, text);
  REQUIRE(::chmod(path.c_str(), 0755) == 0);
}

std::string waits_for_go(const TempFolder& temp) {
  // It outlives a server that is killed, but not the folder of its test.
  return fmt::format(
      "echo > {0}/begun; while [ -d {0} ] && ! [ -e {0}/go ]; do /bin/sleep 0.01; done",
      temp.path());
}

std::vector<std::string> kills_wait_for_go(const TempFolder& temp) {
  return {"--evidence-command", waits_for_go(temp), "--evidence-timeout", "300"};
}

Server::Setup on_bad_disk(const TempFolder& temp, const std::string& fault,
                          std::vector<std::string> args) {
  return preloaded(FILETIMER_BAD_DISK, fault, temp.path("fault"), std::move(args));
}

Server::Setup with_own_clocks(const TempFolder& temp, std::vector<std::string> args) {
  return preloaded(FILETIMER_CLOCK_STEP, "TIME_STEP", temp.path("time-step"), std::move(args));
}

void set_clocks(const TempFolder& temp, Instant time) {
  temp.write("time-step.new", std::to_string((time - Instant::now()).count()));
  fs::rename(temp.path("time-step.new"), temp.path("time-step"));
}

void set_clocks(const TempFolder& temp, const Server& server, Instant time) {
  set_clocks(temp, time);
  CHECK(run_client(server, {"ping"}).status == exited(0));
}

}  // namespace filetimer::testing
