// SPDX-License-Identifier: MIT
#include "tests/timer_client/cli/cli_fixture.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "common/posix.hpp"
#include "tests/support/bound.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "timer_client/cli/commands/commands.hpp"

namespace filetimer::cli {
namespace {

bool is_on_terminal = false;

// The expected texts have times.
[[maybe_unused]] const bool is_in_utc = [] {
  ::setenv("TZ", "UTC0", 1);
  ::tzset();
  return true;
}();

// Redirects one of this process's descriptors to a file while the object lives.
class Redirected {
 public:
  Redirected(int fd, const std::string& path) : fd_(fd), saved_(::dup(fd)) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ::dup2(file.get(), fd_);
  }
  ~Redirected() { ::dup2(saved_.get(), fd_); }

 private:
  int fd_;
  UniqueFd saved_;
};

}  // namespace

// In place of that of the C library.
extern "C" int isatty(int) noexcept {
  return is_on_terminal ? 1 : 0;
}

OnTerminal::OnTerminal() {
  is_on_terminal = true;
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
}

OnTerminal::~OnTerminal() {
  is_on_terminal = false;
}

std::string data_path(std::string_view name) {
  return std::string(FILETIMER_TEST_DATA "/").append(name);
}

std::string read_data(std::string_view name) {
  const std::string text = testing::read_file(data_path(name));
  REQUIRE(!text.empty());
  return text;
}

void write_board(const TempFolder& folder, const std::function<void(Board&)>& set) {
  alignas(Board) std::array<char, kBoardBytes> bytes{};
  auto& board = *reinterpret_cast<Board*>(bytes.data());
  board.magic = kBoardMagic;
  board.version = kBoardVersion;
  board.boot = this_boot();
  board.pid_namespace = this_pid_namespace();
  set(board);
  folder.write("server", {bytes.data(), bytes.size()});
}

std::vector<std::string> split_words(const std::string& command) {
  std::vector<std::string> words;
  std::istringstream rest(command);
  for (std::string word; std::getline(rest, word, ' ');) {
    words.push_back(word == "''" ? "" : word);
  }
  return words;
}

Ran run_command(const std::vector<std::string>& words, const std::string& to) {
  const TempFolder folder;
  Ran ran;
  CLI::App root;
  const Command commands[] = {add_list(root),    add_log(root),      add_show(root),
                              add_report(root),  add_ping(root),     add_status(root),
                              add_drain(root),   add_shutdown(root), add_rendezvous(root),
                              add_suggest(root), add_dump(root)};
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    root.parse(reversed);
  } catch (const CLI::ParseError& error) {
    ran.errors = error.what();
    return ran;
  }
  {
    const Redirected output(STDOUT_FILENO, to.empty() ? folder.path("output") : to);
    const Redirected errors(STDERR_FILENO, folder.path("errors"));
    for (const Command& command : commands) {
      ran.code = command.app->parsed() ? command.run() : ran.code;
    }
    std::fflush(stderr);
  }
  ran.output = to.empty() ? testing::read_file(folder.path("output")) : std::string{};
  ran.errors = testing::read_file(folder.path("errors"));
  if (is_on_terminal) {
    std::ranges::replace(ran.output, '\x1b', '^');
  }
  return ran;
}

void check_ran(const Ran& ran, int code, const std::string& output, const std::string& errors) {
  CHECK(ran.code == code);
  CHECK(ran.output == output);
  CHECK(ran.errors == errors);
}

void check_fails(const std::vector<std::string>& words, int code, const std::string& message) {
  const Ran ran = run_command(words);
  CHECK(ran.code == code);
  CHECK(ran.errors == "timer_client: " + message + "\n");
}

Program::Program(std::vector<std::string> words) {
  std::string program = TIMER_CLIENT_PROGRAM;
  std::vector<char*> argv{program.data()};
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  testing::Ends pipe = testing::make_pipe();
  output_ = std::move(pipe.read);
  pid_ = ::fork();
  if (pid_ == 0) {
    // nohup ignores SIGHUP, Python SIGPIPE, and a shell others in background
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE}) {
      ::signal(signal, SIG_DFL);
    }
    ::dup2(pipe.write.get(), STDOUT_FILENO);
    ::dup2(pipe.write.get(), STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(1);
  }
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

std::string Program::read_line() {
  std::string line;
  for (char byte = 0; byte != '\n';) {
    REQUIRE(is_readable_within(output_.get(), testing::kBound));
    if (::read(output_.get(), &byte, 1) != 1) {
      break;
    }
    line += byte;
  }
  return line;
}

int Program::exit_code() {
  return testing::exit_code_of(std::exchange(pid_, 0));
}

int Program::exit_code_without_reader() {
  output_.reset();
  return exit_code();
}

}  // namespace filetimer::cli
