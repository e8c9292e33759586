// `timer_client list` with runtime directories that the tests make: pages with their layout, and
// processes that hold the locks of a server and of workers.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <tuple>

#include "common/board.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "tests/support/children.hpp"
#include "tests/support/json_line.hpp"
#include "tests/support/simulated_job.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/test_page.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/client_fixture.hpp"
#include "timer_client/cli/commands/views.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

using testing::JsonLine;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMinute = 60 * kSecond;
constexpr std::int64_t kHour = 60 * kMinute;

std::vector<JsonLine> json_lines(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  return {lines.begin(), lines.end()};
}

class RunFolderByHand : public TempFolder {
 public:
  RunFolderByHand() {
    std::filesystem::create_directories(path("scopes/server"));
    write("server", "");
  }

  [[nodiscard]] std::string page(std::string_view name) const {
    return path("scopes/" + std::string(name));
  }
  void serve() { server_ = testing::hold({path("server")}); }

  // Adds the page of a worker, which holds its lock.
  void add(TestPage& page, const std::string& name = "7") {
    page.write(this->page(name));
    workers_.push_back(testing::hold({this->page(name)}));
  }
  void end_worker(std::size_t index) { workers_.at(index)->end(); }
  [[nodiscard]] pid_t worker(std::size_t index = 0) const { return workers_.at(index)->pid(); }

  Ran list(std::vector<std::string> words = {}) const {
    words.insert(words.begin(), {"list", "--dir", path()});
    return run_command(words);
  }
  std::vector<JsonLine> json(std::vector<std::string> words = {}) const {
    words.emplace_back("--json");
    return json_lines(list(words).output);
  }
  // Returns the only scope that is listed.
  [[nodiscard]] JsonLine only_scope() const {
    const auto listed = json();
    REQUIRE(listed.size() == 1);
    return listed[0];
  }

 private:
  std::unique_ptr<SteppedChild> server_;
  std::vector<std::unique_ptr<SteppedChild>> workers_;
};

struct ServedFolder : RunFolderByHand {
  ServedFolder() { serve(); }
};

// Returns an open scope, opened `age` ago, with `left` until its deadline. An age is a few seconds
// at most, since the machine may have booted a minute ago.
TestScope scope_since(std::string_view name, std::int64_t age, std::int64_t left) {
  const std::int64_t acquired = Instant::now().ns - age;
  return {.name = name,
          .acquired = acquired,
          .timeout = age + left,
          .word = acquired + age + left,
          .started = acquired};
}

// Returns the values of the keys as they are written; "-": the key is missing.
std::string values_of(const JsonLine& line, const std::string& keys) {
  std::string values;
  for (const std::string& key : split_words(keys)) {
    values += (values.empty() ? "" : " ") +
              (line.has(key) ? std::string(simdjson::minify(line.at(key))) : "-");
  }
  return values;
}

std::vector<std::string> scopes_of(const std::vector<JsonLine>& listed) {
  std::vector<std::string> names;
  for (const JsonLine& line : listed) {
    names.push_back(line.text("scope"));
  }
  return names;
}

// Returns the parts of the line between two or more spaces.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  for (std::size_t begin = line.find_first_not_of(' '); begin < line.size();) {
    const std::size_t end = std::min(line.find("  ", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(' ', end);
  }
  return words;
}

// Checks the elapsed and remaining times of a listing that was made after `before`.
void check_times(const JsonLine& listed, const TestScope& scope, Instant before) {
  constexpr double kPrecise = 1e-6;
  const Instant after = Instant::now();
  for (const auto& [seconds, since] :
       {std::pair(listed.number("elapsed_s"), scope.acquired),
        std::pair(-listed.number("remaining_s"), scope.started + scope.timeout)}) {
    CHECK(seconds >= static_cast<double>(before.ns - since) / 1e9 - kPrecise);
    CHECK(seconds <= static_cast<double>(after.ns - since) / 1e9 + kPrecise);
  }
}

using Names = std::vector<std::string>;

// --- output ---

ListedScope open_scope(std::string_view rank, pid_t pid, std::string_view name,
                       std::int64_t acquired, std::int64_t timeout, std::int64_t granted) {
  ScopeOwner owner;
  owner.pid = pid;
  owner.comm = "python3";
  owner.rank = rank;
  ListedScope scope;
  scope.owner = std::make_shared<const ScopeOwner>(owner);
  scope.slot.acquired = scope.slot.started = {acquired};
  scope.slot.asked = Duration{timeout};
  scope.due = scope.slot.started + Duration{granted};
  scope.slot.word = scope.due.ns;
  scope.slot.name = name;
  return scope;
}

TEST_CASE("the table of open scopes has every column and fits the terminal") {
  constexpr std::int64_t kNow = 10 * kHour;
  const std::int64_t none = kForever.count();
  std::vector<ListedScope> scopes = {
      open_scope("0", 4711, "forward", kNow - 12 * kSecond, 30 * kSecond, 30 * kSecond),
      open_scope("0", 4711, "all_reduce of the gradients", kNow - 6 * kSecond, kHour, 5 * kSecond),
      open_scope("0", 4711, "checkpoint", kNow - 3 * kHour, none, none),
      open_scope("1", 124713, "forward", kNow - 31 * kSecond, 30 * kSecond, 30 * kSecond),
      open_scope("10", 7, "load", kNow - 400'000'000, 90 * kMinute, 90 * kMinute)};
  scopes[3].slot.word = slot_word::expired(scopes[3].due.ns);
  ScopeOwner foreign = *scopes[4].owner;
  foreign.transport = ServedBy::kPipe;
  foreign.pid.reset();
  scopes[4].owner = std::make_shared<const ScopeOwner>(foreign);
  CHECK(contains(scopes_table(scopes, {kNow}, {}), "  all_reduce of the gradients  "));
  CHECK(scopes_table(scopes, {kNow}, {.width = 80}) ==
        "RANK     PID  WORKER   SCOPE               ELAPSED   REMAINING     TIMEOUT  NOTE\n"
        "   0    4711  python3  forward                12 s        18 s        30 s\n"
        "   0    4711  python3  all_reduce of t...      6 s        -1 s  5 s of 1 h\n"
        "   0    4711  python3  checkpoint              3 h        none        none\n"
        "   1  124713  python3  forward                31 s     expired        30 s\n"
        "  10       ?  python3  load                 400 ms  1 h 29 min  1 h 30 min  pipe\n");
  CHECK(scopes_json(std::span(scopes).last(1), {kNow})
            .starts_with(R"({"pid":null,"comm":"python3","rank":10,)"));
  const std::vector<Straggler> straggler(1);
  const std::vector<ListedWorker> unseen{{foreign, {}}};
  CHECK(contains(stragglers_json(straggler, unseen), R"(","pid":null,"comm":)"));
  CHECK(contains(stragglers_table(straggler, unseen, {}), "10    ?  "));
  scopes[0].slot.flags = slot_flag::kThreadEnded;
  const std::string marked = scopes_table(std::span(scopes).first(1), {kNow}, {});
  CHECK(marked ==
        "RANK   PID  WORKER   SCOPE    ELAPSED  REMAINING  TIMEOUT  NOTE\n"
        "   0  4711  python3  forward     12 s       18 s     30 s  thread ended\n");
  CHECK(contains(scopes_table(scopes, {kNow}, {.has_colour = true}), "\x1b[1;31mexpired\x1b[0m"));
}

TEST_CASE("the list shows a pause, a limit of the server and a timeout of a file") {
  constexpr std::int64_t kNow = 10 * kHour;
  const std::int64_t none = kForever.count();
  std::vector<ListedScope> scopes = {
      open_scope("0", 1, "paused", kNow - 12 * kSecond, 30 * kSecond, 30 * kSecond),
      open_scope("1", 2, "endless", kNow - 12 * kSecond, none, none),
      open_scope("2", 3, "limited", kNow - 3 * kHour, none, 4 * kHour),
      open_scope("3", 4, "in a file", kNow - 6 * kSecond, kHour, 5 * kSecond),
      open_scope("4", 5, "soon", kNow + kSecond, 12'345'678'901, 12'345'678'900)};
  for (ListedScope& scope : std::span(scopes).first(2)) {
    scope.slot.word = slot_word::kPaused + kNow;
    scope.due = Instant::never();
  }
  scopes[0].slot.left = Duration{18 * kSecond};
  scopes[3].slot.code_timeout = Duration{90 * kMinute};
  const auto lines = lines_of(scopes_table(scopes, {kNow}, {}));
  REQUIRE(lines.size() == 6);
  const auto times_of = [&](std::size_t line) {
    const Names words = words_of(lines[line]);
    return Names(words.end() - 2, words.end());
  };
  CHECK(times_of(1) == Names{"paused, 18 s", "30 s"});
  CHECK(times_of(2) == Names{"none", "none"});
  CHECK(times_of(3) == Names{"1 h", "4 h of no limit"});
  CHECK(times_of(4) == Names{"-1 s", "5 s of 1 h (code: 1 h 30 min)"});
  CHECK(times_of(5) == Names{"13.3 s", "12.3 s"});
  const auto json = json_lines(scopes_json(scopes, {kNow}));
  REQUIRE(json.size() == 5);
  CHECK(values_of(json.at(0), "paused left_s") == "true 18.0");
  CHECK(values_of(json.at(1), "paused left_s") == "true null");
  CHECK(values_of(json.at(2), "paused left_s code_timeout_s") == "false - -");
  CHECK(values_of(json.at(3), "code_timeout_s") == "5400.0");
  CHECK(values_of(json.at(4), "elapsed_s") == "0.0");
}

// --- pages and their owners ---

TEST_CASE("a worker's page is listed under the pid of the process that holds its lock") {
  ServedFolder folder;
  TestPage page;
  page.header().pid = 1;  // as in a worker's own pid namespace, in a container
  page.header().start_time = 12345;
  page.set_rank("3");
  page.set(page.header().local_rank, 32, "1");
  page.set(page.header().job_id, 64, "slurm-77");
  page.set(page.header().comm, 16, "not asked");
  TestScope scope = scope_since("forward", 5 * kSecond, 3 * kHour - 5 * kSecond);
  scope.grace_ms = 2500;
  scope.tid = 99;
  scope.signal = SIGTERM;
  scope.flags = slot_flag::kThreadEnded;
  page.open(0, scope);
  folder.add(page, "7-1");
  const std::string comm =
      lines_of(testing::read_file(fmt::format("/proc/{}/comm", folder.worker()))).at(0);
  const Instant before = Instant::now();
  const JsonLine json = folder.only_scope();
  check_times(json, scope, before);
  CHECK(values_of(json, "pid start_time comm acquired_mono_ns deadline_mono_ns") ==
        fmt::format(R"({} {} "{}" {} {})", folder.worker(), start_time_in_proc(folder.worker()),
                    comm, scope.acquired, scope.word));
  CHECK(values_of(json,
                  "rank local_rank job_id scope tid asked_s granted_s overdue expired transport "
                  "whole_process thread_ended signal grace_s") ==
        R"(3 1 "slurm-77" "forward" 99 10800.0 10800.0 false false "page" false true 15 2.5)");
}

TEST_CASE("unknown values are absent from JSON, and endless ones are null") {
  ServedFolder folder;
  TestPage page;
  TestScope scope = scope_since("endless", kSecond, kHour);
  scope.word = slot_word::kNoDeadline;
  scope.timeout = std::numeric_limits<std::int64_t>::max();
  scope.tid = 0;
  page.open(0, scope);
  page.page().slot(0).code_timeout_ms = kNoCodeTimeout;
  scope.acquired += 1;
  scope.grace_ms = kNoSigkill;
  page.open(1, scope);
  page.set_rank("leader");
  folder.add(page);
  const auto json = folder.json();
  REQUIRE(json.size() == 2);
  CHECK(values_of(json.at(0),
                  "deadline_mono_ns remaining_s asked_s granted_s code_timeout_s local_rank job_id "
                  "tid grace_s rank") == R"(null null null null null - - - - "leader")");
  CHECK(values_of(json.at(1), "grace_s") == "null");
}

TEST_CASE("overdue and expired scopes are marked, and released ones are not listed") {
  ServedFolder folder;
  TestPage page;
  const TestScope overdue = scope_since("overdue", 8 * kSecond, -2 * kSecond);
  page.open(0, overdue);
  TestScope scope = scope_since("expired", 5 * kSecond, -kSecond);
  scope.word = slot_word::expired(scope.word);
  page.open(1, scope);
  scope = scope_since("judged", 4 * kSecond, -kSecond);
  scope.word = slot_word::kJudged;
  page.open(2, scope);
  scope.name = "late";
  scope.word = slot_word::kReleasedLate;
  page.open(3, scope);
  scope.name = "free";
  scope.word = slot_word::kFree;
  page.open(4, scope);
  folder.add(page);
  const auto lines = lines_of(folder.list().output);
  REQUIRE(lines.size() == 4);
  for (std::size_t i = 1;
       const auto& [scope_name, remaining, timeout] :
       {std::tuple("overdue", "-", "6 s"), std::tuple("expired", "expired", "4 s"),
        std::tuple("judged", "expired", "3 s")}) {
    CAPTURE(lines[i]);
    const auto words = words_of(lines[i++]);
    REQUIRE(words.size() == 6);  // no rank
    CHECK(words[2] == scope_name);
    CHECK(words[4].starts_with(remaining));
    CHECK(words[5] == timeout);
  }
  const OnTerminal terminal;
  const auto colours_of = [](std::string text) {
    std::vector<std::string> found;
    while (true) {
      const auto colour = testing::match_of(text, R"(\^\[([1-9][0-9;]*)m(-|[a-z ]+)[^^]*\^\[0m)");
      if (colour.empty()) {
        return found;
      }
      found.push_back(colour[1] + colour[2]);
      text.erase(0, text.find(colour[0]) + colour[0].size());
    }
  };
  CHECK(colours_of(folder.list().output) == Names{"1;33-", "1;31expired", "1;31expired"});
  ::setenv("NO_COLOR", "", 1);
  CHECK(colours_of(folder.list().output).size() == 3);
  ::setenv("NO_COLOR", "1", 1);
  CHECK(colours_of(folder.list().output).empty());
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  CHECK(colours_of(folder.list().output).empty());
  const Instant before = Instant::now();
  const auto json = folder.json();
  check_times(json.at(0), overdue, before);
  CHECK(scopes_of(json) == Names{"overdue", "expired", "judged"});
  CHECK(values_of(json.at(0), "overdue expired") == "true false");
  CHECK(values_of(json.at(1), "expired granted_s") == "true 4.0");
  CHECK(values_of(json.at(2), "expired granted_s") == "true 3.0");
}

TEST_CASE("a timeout that the server cuts is shown with the requested one") {
  RunFolderByHand folder;
  write_board(folder, [](Board& board) { board.max_timeout = 5 * kSecond; });
  folder.serve();
  TestPage page;
  page.open(0, scope_since("long", kSecond, kHour - kSecond));
  page.open(1, scope_since("short", 0, 4 * kSecond));
  folder.add(page);
  const auto json = folder.json();
  CHECK(values_of(json.at(0), "asked_s granted_s") == "3600.0 5.0");
  CHECK(json.at(0).number("remaining_s") <= 4.0);
  CHECK(values_of(json.at(1), "granted_s") == "4.0");
}

TEST_CASE("pages that the server made are listed while their worker lives") {
  ServedFolder folder;
  const SteppedChild worker({});
  TestPage page;
  page.header().flags = page_flag::kMadeByServer;
  page.open(0, scope_since("contextlib.py#137", kSecond, kHour));
  const auto write = [&](const std::string& name, pid_t pid, std::uint64_t start_time) {
    page.header().pid = pid;
    page.header().start_time = start_time;
    page.write(folder.page("server/" + name));
  };
  const std::string own = std::to_string(worker.pid());
  const std::uint64_t start_time = start_time_in_proc(worker.pid());
  write(own, worker.pid(), start_time);
  write("2", worker.pid(), start_time + 1);  // another process had this pid
  write("3", worker.pid(), 0);
  write("4", 0x7FFF'FFFF, 0);
  write("5", -1, 0);
  write("6", 0, 0);
  CHECK(folder.list({"--json"}).errors.empty());
  CHECK(values_of(folder.only_scope(), "pid transport") ==
        fmt::format(R"({} "pipe")", worker.pid()));
  page.header().boot[0] ^= 1;  // of a server in a container
  write(own, worker.pid(), start_time);
  CHECK(scopes_of(folder.json()) == Names{"contextlib.py#137"});
}

TEST_CASE("a timer on the pipe of a server in another pid namespace is listed without a pid") {
  RunFolderByHand folder;
  write_board(folder, [](Board& board) {
    board.max_timeout = 2 * kHour;
    board.pid_namespace = this_pid_namespace() + 1;
  });
  folder.serve();
  TestPage page;
  page.header().flags = page_flag::kMadeByServer;
  page.header().pid = 2;
  page.header().start_time = 12345;
  page.open(0, scope_since("contextlib.py#137", kSecond, kHour));
  page.write(folder.page("server/2"));
  CHECK(values_of(folder.only_scope(), "pid scope") == R"(null "contextlib.py#137")");
}

TEST_CASE("the page of a worker that cannot be seen from here is listed without a pid") {
  ServedFolder folder;
  TestPage page;
  page.header().pid = 1;  // as in a container, which may have a boot id of its own, too
  page.header().start_time = 12345;
  page.header().boot[0] ^= 1;
  page.set(page.header().comm, 16, "trainer");
  page.open(0, scope_since("forward", kSecond, kHour));
  page.write(folder.page("7"));
  CHECK(folder.list({"--json"}).output.empty());
  // Of a lock of this kind the kernel names no holder, either.
  const UniqueFd file(::open(folder.page("7").c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  REQUIRE(::fcntl(file.get(), F_OFD_SETLK, &lock) == 0);
  CHECK(values_of(folder.only_scope(), "pid start_time comm scope") ==
        R"(null - "trainer" "forward")");
}

TEST_CASE("a page without a lock is listed only while the process that it names lives") {
  ServedFolder folder;
  SteppedChild worker({});
  TestPage page;
  page.header().pid = worker.pid();
  page.header().start_time = start_time_in_proc(worker.pid());
  page.open(0, scope_since("unlocked", kSecond, kHour));
  page.write(folder.page("7"));
  CHECK(scopes_of(folder.json()) == Names{"unlocked"});
  page.header().boot[0] ^= 1;
  page.write(folder.page("7"));
  CHECK(folder.list({"--json"}).output.empty());
  page.header().boot[0] ^= 1;
  page.write(folder.page("7"));
  ::kill(worker.pid(), SIGKILL);
  REQUIRE(wait_for_zombie(worker.pid()));
  const Ran zombie = folder.list({"--json"});
  CHECK(zombie.output.empty());
  CHECK(zombie.code == 0);
  worker.end();
  CHECK(folder.list({"--json"}).output.empty());
}

TEST_CASE("scopes are sorted by rank as a number, then pid, the oldest first") {
  ServedFolder folder;
  for (const auto& [rank, file] :
       {std::pair("10", "a"), std::pair("9", "b"), std::pair("", "c"), std::pair("9", "d")}) {
    TestPage page;
    page.set_rank(rank);
    page.open(0, scope_since(std::string(file) + "-younger", kSecond, kHour));
    page.open(1, scope_since(std::string(file) + "-older", 2 * kSecond, kHour));
    folder.add(page, file);
  }
  // The workers were forked in order: pids increase, unless they have wrapped around.
  if (folder.worker(1) < folder.worker(3)) {
    CHECK(scopes_of(folder.json()) == Names{"b-older", "b-younger", "d-older", "d-younger",
                                            "a-older", "a-younger", "c-older", "c-younger"});
  }
}

TEST_CASE("names and texts of any bytes are shown as one line each and come back from JSON") {
  ServedFolder folder;
  TestPage page;
  page.set_rank("\x1b[31m\n");
  page.open(0, scope_since("caf\xc3\xa9 \x1b[2J\n\xff\"", 5 * kSecond, kHour));
  page.open(1, scope_since("", 4 * kSecond, kHour));
  page.open(2, scope_since("x", 3 * kSecond, kHour));
  for (auto& word : page.page().name(2).words) {
    word = ~std::uint64_t{0};  // a name without an end
  }
  folder.add(page);
  const Ran ran = folder.list();
  const auto lines = lines_of(ran.output);
  REQUIRE(lines.size() == 4);
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(printable(line) == line);
  }
  const auto json = folder.json();
  REQUIRE(json.size() == 3);
  CHECK(json.at(0).text("scope") == "caf\xc3\xa9 \x1b[2J\n\\xff\"");
  CHECK(json.at(1).text("scope") == "?");
  CHECK(json.at(2).text("scope").size() == 4 * 255);
}

// --- hostile files ---

TEST_CASE("files that are no pages are skipped and named") {
  ServedFolder folder;
  TestPage good;
  good.open(0, scope_since("good", kSecond, kHour));
  folder.add(good);
  const auto skipped = [&](const std::string& what) {
    const Ran ran = folder.list({"--json"});
    CHECK(ran.code == 0);
    CHECK(scopes_of(json_lines(ran.output)) == Names{"good"});
    CHECK(ran.errors == (what.empty() ? what : "timer_client: skipped " + what + "\n"));
    std::filesystem::remove_all(folder.page("bad"));
  };
  folder.write("scopes/no.page", "");
  CHECK(folder.list({}).errors ==
        "timer_client: skipped no.page (its name is not that of a page)\n");
  CHECK(contains(run_command({"suggest", "--dir", folder.path()}).errors, "skipped no.page ("));
  std::filesystem::remove(folder.page("no.page"));
  folder.write("scopes/server/9", "junk");
  skipped("server/9 (it has 4 bytes: expected 2166784)");
  std::filesystem::remove_all(folder.page("server"));
  folder.write("scopes/server", "");
  skipped("server (cannot open the folder '" + folder.page("server") + "': Not a directory)");
  std::filesystem::remove(folder.page("server"));
  const std::string bad = folder.page("bad");
  REQUIRE(::mkfifo(bad.c_str(), 0600) == 0);
  skipped("bad (it is not a regular file)");
  std::filesystem::create_symlink(folder.page("7"), bad);
  skipped("bad (it is a symlink: expected a regular file)");
  folder.write("scopes/bad", good.bytes().substr(0, kPageBytes - 1));
  skipped("bad (it has 2166783 bytes: expected 2166784)");
  TestPage future;
  future.header().version = 99;
  future.write(bad);
  skipped("bad (it is of version 99: expected 1)");
  folder.write("scopes/.being-made", "");
  skipped("");
  good.write(bad);
  FILETIMER_SKIP_IF(::chown(bad.c_str(), 12345, 12345) != 0,
                    "giving a file away is not allowed here");
  skipped("bad (it belongs to user 12345: expected user 0)");
  REQUIRE(::chown(folder.path("scopes").c_str(), 12345, 12345) == 0);
  REQUIRE(::chown(folder.page("7").c_str(), 12345, 12345) == 0);
  skipped("");  // root reads the pages of the directory's user
}

// --- the server ---

TEST_CASE("without a server list prints open scopes and a line, and exits with 4") {
  RunFolderByHand folder;
  std::filesystem::create_directory(folder.path("other"));
  folder.write("other/server", "");
  const auto other = testing::hold({folder.path("other/server")});  // it serves no COMMAND
  const std::string no_server =
      "timer_client: no timer server in '" + folder.path() + "': no process holds its lock\n";
  check_ran(folder.list(), 4, "", no_server);
  TestPage page;
  page.open(0, scope_since("waits", kSecond, kHour));
  folder.add(page);
  const Ran open = folder.list();
  CHECK(open.code == 4);
  CHECK(open.output.find("waits") != std::string::npos);
  CHECK(open.errors == no_server);
  CHECK(run_command({"list", "--dir", folder.path()}, "/dev/full").code == 1);
  std::filesystem::remove(folder.path("server"));
  const Ran blank = folder.list();
  CHECK(blank.code == 4);
  CHECK(blank.errors.ends_with("': no server has run here\n"));
  const std::string missing = folder.path("missing");
  for (const Names& words :
       {Names{"list", "--dir", missing}, Names{"list", "--dir", missing, "--stragglers"}}) {
    check_fails(words, 4, "no timer server: there is no folder '" + missing + "'");
  }
}

TEST_CASE("list without open scopes prints a line on standard error and succeeds") {
  ServedFolder folder;
  for (const std::vector<std::string>& words :
       {Names{}, Names{"--json"}, Names{"--fifo", "/none"}}) {
    check_ran(folder.list(words), 0, "",
              "timer_client: no open scopes in '" + folder.path() + "'\n");
  }
  CHECK(folder.list({"--stats"}).errors ==
        "timer_client: no statistics in '" + folder.path() + "'\n");
  for (int i = 0; i < 12; ++i) {
    folder.write(fmt::format("scopes/junk{:02}", i), "junk");
  }
  const Ran unread = folder.list();
  CHECK(!contains(unread.errors, "no open scopes"));  // the files may have some
  CHECK(unread.errors.ends_with(" and 9 more\n"));
  std::filesystem::remove_all(folder.path("scopes"));
  CHECK(folder.list().code == 0);
  folder.write("scopes", "");
  folder.write("expired.jsonl", "");
  for (const char* const command : {"list", "suggest"}) {
    check_fails({command, "--dir", folder.path()}, 1,
                "cannot open the folder '" + folder.path("scopes") + "': Not a directory");
  }
}

TEST_CASE("--watch prints the list again, also without a server, until its reader has gone") {
  RunFolderByHand folder;
  TestPage page;
  page.open(0, scope_since("waits", kSecond, kHour));
  folder.add(page);
  Program watch({"list", "--watch", "--dir", folder.path()});
  for (int lists = 0; lists < 2;) {
    const std::string line = watch.read_line();
    REQUIRE(line != "");
    CHECK_FALSE(contains(line, "\x1b"));
    lists += contains(line, "waits") ? 1 : 0;
  }
  CHECK(watch.exit_code_without_reader() == 0);
}

TEST_CASE("wrong words are usage errors, and a list that failed ends --watch with its exit code") {
  CHECK(run_command({"list", "--dir", ""}).code == -1);
  CHECK(run_command({"list", "--stats=maybe"}).code == -1);
  CHECK(run_command({"list", "extra"}).code == -1);
  CHECK(run_command({"list", "--stats", "--stragglers"}).errors ==
        "timer_client: list: --stats and --stragglers: expected one of them\n");
  const OnTerminal terminal;
  const Ran ran = run_command({"list", "--watch", "--stats", "--stragglers"});
  CHECK(ran.code == 2);
  CHECK(ran.output == "^[H^[2J");
}

// --- statistics ---

void add_statistics(TestPage& page, std::string_view name, std::uint32_t count,
                    std::int64_t each_ns, std::int64_t margin_ns) {
  const std::size_t index = page.header().statistics++;
  SlotStatistics& part = page.page().statistics(index);
  write_name(part.name, name);
  part.count = count;
  part.total_ns = count * each_ns;
  part.last_ns = each_ns / 2;
  part.longest_ns = each_ns;
  part.smallest_margin_ns = margin_ns;
  part.timeout_ns = 30 * kSecond;
  part.histogram[bucket_of(each_ns)] = count;
}

TEST_CASE("statistics are added up over threads and workers") {
  ServedFolder folder;
  TestPage one;
  add_statistics(one, "forward", 60, 2'000'000, 28 * kSecond);
  add_statistics(one, "forward", 30, 2'000'000, 27 * kSecond);
  add_statistics(one, "unused", 0, 1, 1);
  folder.add(one);
  TestPage other;
  add_statistics(other, "forward", 9, 3'000'000, 29 * kSecond);
  add_statistics(other, "load", 1, 5 * kSecond, std::numeric_limits<std::int64_t>::max());
  add_statistics(other, "none left", 1, kSecond, 0);
  add_statistics(other, "over", 1, kSecond, -1'000'000);
  other.write(folder.page("8"));  // no process holds its lock
  const OnTerminal terminal;
  const Ran table = folder.list({"--stats"});
  CHECK(table.code == 0);
  CHECK(table.output ==
        "SCOPE      COUNT     MEAN    MEDIAN      P99  LONGEST     LAST  MARGIN\n"
        "forward       99  2.09 ms  ~2.03 ms    ~3 ms     3 ms  1.50 ms    27 s\n"
        "load           1      5 s      ~5 s     ~5 s      5 s   2.50 s    none\n"
        "none left      1      1 s   ~973 ms  ~973 ms      1 s   500 ms     0 s\n"
        "over           1      1 s   ~973 ms  ~973 ms      1 s   500 ms   ^[1;33m-1 ms^[0m\n");
  const auto json = folder.json({"--stats"});
  REQUIRE(json.size() == 4);
  CHECK(values_of(json.at(0), "scope count longest_s last_s smallest_margin_s timeout_s first_s") ==
        R"("forward" 99 0.003 0.0015 27.0 30.0 0.0)");
  CHECK(json.at(0).number("median_s") * 1e3 == doctest::Approx(2.03).epsilon(0.01));
  CHECK(json.at(0).number("p99_s") * 1e3 == doctest::Approx(3).epsilon(0.01));
  CHECK(json.at(0).number("total_s") == doctest::Approx(0.18 + 0.027));
  CHECK(json.at(0).number("mean_s") * 1e3 == doctest::Approx(2.09).epsilon(0.01));
  CHECK(json.at(1).is_null("smallest_margin_s"));
  CHECK(contains(folder.list({"--stats", "--json"}).output,
                 R"("histogram_ns":[[1966080,90],[2883584,9]])"));
}

// --- stragglers ---

// The pages of a job, each held by its own process.
struct JobByHand : RunFolderByHand {
  explicit JobByHand(const testing::SimulatedJob& job, std::string_view job_id = "8812",
                     bool has_ranks = true) {
    const std::vector<EndedScopesByName> ended = job.run();
    for (std::size_t rank = 0; rank < ended.size(); ++rank) {
      TestPage page;
      if (has_ranks) {
        page.set_rank(std::to_string(rank));
        page.set(page.header().local_rank, sizeof page.header().local_rank, "1");
      }
      page.set(page.header().job_id, sizeof page.header().job_id, job_id);
      testing::leave_scopes(page.page(), ended[rank]);
      add(page, std::to_string(rank));
    }
    serve();
  }
};

const std::string kTooFew =
    "timer_client: too few ranks or scopes: expected 8 scopes that have ended, of one name, in "
    "each of at least 3 ranks of a job\n";

TEST_CASE("--stragglers names the slow rank and the collective in which the others wait") {
  const JobByHand job({.ranks = 8, .steps = 40, .slowness = {1, 1, 1, 1.3}});
  const Ran table = job.list({"--stragglers"});
  CHECK(table.code == 0);
  CHECK(table.errors.empty());
  const auto lines = lines_of(table.output);
  REQUIRE(lines.size() == 3);
  CHECK(words_of(lines[0]) == Names{"SCOPE", "RANK", "PID", "MEDIAN", "OTHERS", "FACTOR", "WHY"});
  const std::string pid = std::to_string(job.worker(3));
  const auto waits = words_of(lines[1]);
  CHECK(waits.front() == "allreduce");
  CHECK(waits.back() == "the others wait for it");
  const auto slower = words_of(lines[2]);
  REQUIRE(slower.size() == 7);
  CHECK(slower[0] == "forward");
  CHECK(slower[1] == "3");
  CHECK(slower[2] == pid);
  CHECK(std::stod(slower[3]) == doctest::Approx(130).epsilon(0.03));
  CHECK(std::stod(slower[4]) == doctest::Approx(100).epsilon(0.03));
  CHECK(slower[5].starts_with("1.3"));
  CHECK(slower[5].size() == 4);
  CHECK(slower[6] == "slower than the others");
  for (const std::string& line : lines) {
    CHECK(display_width(line) <= 80);
  }

  const auto json = job.json({"--stragglers"});
  REQUIRE(json.size() == 2);
  CHECK(values_of(json[0], "kind") == R"("waits_least")");
  CHECK(json[0].number("median_s") < 0.022);
  // 15 scopes: the worker may be writing the sixteenth.
  CHECK(values_of(json[1], "scope kind host job_id rank local_rank pid ranks scopes") ==
        fmt::format(R"("forward" "slower" "{}" "8812" 3 1 {} 8 15)", host_name(), pid));
  CHECK(json[1].number("factor") == doctest::Approx(1.3).epsilon(0.03));
  CHECK(json[1].number("median_s") * 1e3 == doctest::Approx(130).epsilon(0.03));
  CHECK(json[1].number("others_median_s") * 1e3 == doctest::Approx(100).epsilon(0.03));
}

TEST_CASE("--stragglers prints why it compares nothing") {
  const auto errors_of = [](const testing::SimulatedJob& job, std::string_view job_id = "8812",
                            bool has_ranks = true) {
    const JobByHand by_hand(job, job_id, has_ranks);
    const Ran ran = by_hand.list({"--stragglers"});
    CHECK(ran.code == 0);
    CHECK(ran.output.empty());
    return ran.errors;
  };
  const std::string none = "timer_client: no stragglers among 3 ranks\n";
  CHECK(errors_of({.ranks = 3}) == none);
  CHECK(errors_of({.ranks = 3}, "") == none);
  CHECK(errors_of({.ranks = 3}, "8812", false) == none);
  CHECK(errors_of({.ranks = 3}, "", false) == kTooFew);  // workers of no job
  CHECK(errors_of({.ranks = 2, .slowness = {1, 5}}) == kTooFew);
  const ServedFolder idle;
  CHECK(idle.list({"--stragglers"}).errors == kTooFew);
  RunFolderByHand left_behind;  // by its server
  TestPage page;
  left_behind.add(page);
  CHECK(left_behind.list({"--stragglers"}).errors.starts_with(kTooFew));
}

TEST_CASE("--stragglers counts a worker with two pages once, and an ended worker not at all") {
  JobByHand job({.ranks = 4});
  job.end_worker(0);
  CHECK(job.list({"--stragglers"}).errors == "timer_client: no stragglers among 3 ranks\n");
  for (const std::size_t rank : {1U, 2U, 3U}) {
    job.end_worker(rank);
  }
  const auto one = testing::hold({job.page("0"), job.page("1"), job.page("2")});
  CHECK(job.list({"--stragglers"}).errors == kTooFew);
}

}  // namespace
}  // namespace filetimer::cli
