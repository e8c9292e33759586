// The file of timeouts: its format, and its effect on scopes.
// SPDX-License-Identifier: MIT
#include "timer_client/client/page/timeouts_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "common/limits.hpp"
#include "tests/support/variable.hpp"
#include "tests/timer_client/fake_server.hpp"

namespace filetimer {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;
using testing::in_thread;
using testing::TempFolder;

struct TimeoutsFile {
  TempFolder folder;
  std::string path = folder.path("timeouts.toml");

  explicit TimeoutsFile(std::string_view text) { testing::write_file(path, text); }
  [[nodiscard]] Result<ReplacedTimeouts> read() const { return read_timeouts_file(path); }
};

std::string error_of(std::string_view text) {
  const TimeoutsFile file(text);
  const auto timeouts = file.read();
  REQUIRE_FALSE(timeouts);
  const std::string& message = timeouts.error().message;
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.starts_with(file.path + ":"));
  return message.substr(std::min(message.size(), file.path.size() + 1));
}

TEST_CASE("a file of timeouts has times with units, and seconds") {
  const TimeoutsFile file(
      "# a comment\n"
      "forward = \"2.5s\"\n"
      "backward = 4\n"
      "half = 0.5\n"
      "upload = \"inf\"\n"
      "download = -1\n"
      "evaluate = inf\n"
      "longest = 1000000000\n"
      "[\"train.py:12\"]\n"
      "timeout = \"30s\"\n"
      "first_timeout = \"10m\"\n"
      "[load]\n"
      "first_timeout = 60\n"
      "[nothing]\n");
  const auto timeouts = file.read();
  REQUIRE(timeouts);
  CHECK(*timeouts == ReplacedTimeouts{{"forward", {2500ms, 0s}},
                                      {"backward", {4s, 0s}},
                                      {"half", {500ms, 0s}},
                                      {"upload", {kForever, 0s}},
                                      {"download", {kForever, 0s}},
                                      {"evaluate", {kForever, 0s}},
                                      {"longest", {kMaxTimeout, 0s}},
                                      {"train.py:12", {30s, 10min}},
                                      {"load", {0s, 60s}},
                                      {"nothing", {0s, 0s}}});
  CHECK(TimeoutsFile("").read()->empty());
}

TEST_CASE("a wrong file of timeouts is one line that names the place and what was expected") {
  CHECK(error_of("forward = 5\nbackward = true\n") ==
        "2:12: 'backward' is 'true': expected a time such as \"2.5s\" or \"inf\", or seconds, at "
        "most 1000000000");
  CHECK(error_of("a = \"soon\"").starts_with("1:5: 'a' is 'soon': expected a time"));
  CHECK(error_of("a = 0").starts_with("1:5: 'a' is '0': expected a time"));
  CHECK(error_of("a = 1e-10").starts_with("1:5: 'a' is '1e-10': expected a time"));
  CHECK(error_of("a = -1.5").starts_with("1:5: 'a' is '-1.5': expected a time"));
  CHECK(error_of("a = 1000000001").starts_with("1:5: 'a' is '1000000001': expected a time"));
  CHECK(error_of("a = 1e10").starts_with("1:5: 'a' is '10000000000': expected a time"));
  CHECK(error_of("a = nan").starts_with("1:5: 'a' is 'nan': expected a time"));
  CHECK(error_of("a = [1]").starts_with("1:5: 'a' is a list: expected a time"));
  CHECK(error_of("a = 2026-01-01").starts_with("1:5: 'a' is a date: expected a time"));
  CHECK(error_of("[a]\ntimeout = {}").starts_with("2:11: 'a.timeout' is a table: expected a time"));
  CHECK(error_of("train.py = 5") ==
        "1:7: unknown key 'py' of 'train': expected timeout or first_timeout (a name with a dot "
        "needs quotes)");
  CHECK(error_of("\"\" = 5").starts_with("1:1: a name is empty: expected at least one byte"));
  const std::string syntax = error_of("forward = 5\nbackward 4\n");
  CHECK(syntax.starts_with("2:10: "));
  CHECK(syntax.ends_with(": expected TOML with a timeout for each scope name"));
  CHECK(error_of("a = 1\na = 2").starts_with("2:5: "));
}

TEST_CASE("a file of timeouts with keys within keys overflows no stack") {
  std::string deep = "a";
  for (int i = 0; i < 500'000; ++i) {
    deep += ".a";
  }
  CHECK(error_of("b = 1\n" + deep + " = 5\n") ==
        "2: the line has more than 1000 dots: expected a scope name and a timeout");
  CHECK(error_of("[" + deep + "]\n").starts_with("1: the line has more than 1000 dots"));
  CHECK(error_of("a = " + std::string(500'000, '[')).starts_with("1:"));
  CHECK(TimeoutsFile("\"" + std::string(kMaxDotsOfLine - 1, '.') + "\" = 2.5").read());
}

TEST_CASE("a file of timeouts that cannot be read is named") {
  const TempFolder folder;
  const auto message = [](const std::string& path) {
    const auto timeouts = read_timeouts_file(path);
    return timeouts ? std::string() : timeouts.error().message;
  };
  CHECK(message(folder.path("none")) ==
        "cannot read the timeouts in '" + folder.path("none") + "': No such file or directory");
  CHECK(message(folder.path("")).ends_with("': it is no regular file"));
  REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  CHECK(message(folder.path("fifo")).ends_with("': it is no regular file"));
  testing::write_file(folder.path("long"), std::string(kMaxTimeoutsFileBytes + 1, '#'));
  CHECK(message(folder.path("long"))
            .ends_with("' has 4194305 bytes: expected timeouts in 4194304 "
                       "at most"));
  testing::write_file(folder.path("full"), std::string(kMaxTimeoutsFileBytes, '#'));
  CHECK(message(folder.path("full")).empty());
}

TEST_CASE("an entry replaces the timeouts in the code, in each thread and process") {
  const FakeServer server;
  const TimeoutsFile file(
      "forward = 300\nupload = \"inf\"\nsave = \"1h\"\nslow = 300\n"
      "[load]\nfirst_timeout = 6000\n"
      "[both]\ntimeout = 300\nfirst_timeout = 6000\n"
      "[late]\ntimeout = 300\nfirst_timeout = 6000\n");
  auto client = server.connect({.timeouts = file.path});
  // The name, its timeouts in the code, and those of the first and the second scope of a thread.
  using Row = std::tuple<const char*, Duration, std::optional<Timeout>, Duration, Duration>;
  const Row rows[] = {{"forward", 30min, {}, 300s, 300s},     {"other", 30min, {}, 30min, 30min},
                      {"upload", 1s, {}, kForever, kForever}, {"save", kForever, {}, 1h, 1h},
                      {"load", 30min, {}, 6000s, 30min},      {"both", 30min, {}, 6000s, 300s},
                      {"slow", 30min, 10h, 10h, 300s},        {"late", 30min, 10h, 6000s, 300s}};
  const auto count_wrong = [&] {
    int wrong = 0;
    for (const auto& [name, timeout, first_timeout, first, second] : rows) {
      for (const Duration expected : {first, second}) {
        const auto scope = client.expires(timeout, name, {.first_timeout = first_timeout});
        const Duration left = scope.times()->remaining;
        wrong += left <= expected && left > expected / 2 ? 0 : 1;
      }
    }
    return wrong;
  };
  CHECK(count_wrong() == 0);
  const auto in_code = [&](const char* name, Duration timeout) {
    const auto scope = client.expires(timeout, name);
    return server.slot(name).code_timeout;
  };
  CHECK(in_code("forward", 30s) == Duration{30s});
  CHECK(in_code("forward", 1500us) == Duration{2ms});  // rounded up
  CHECK(in_code("save", kForever) == kForever);
  CHECK_FALSE(in_code("other", 30s));
  CHECK_FALSE(in_code("load", 30s));
  in_thread([&] { CHECK(count_wrong() == 1); });  // `slow` is no first scope of the process
  CHECK(testing::in_child(count_wrong) == 0);
}

TEST_CASE("an entry replaces the timeout of start() and of renewals") {
  const FakeServer server;
  const std::string too_long(kMaxScopeNameBytes + 100, 'x');
  const TimeoutsFile file("forward = 5\njob = 60\n\"" + too_long +
                          "\" = 5\n[load]\nfirst_timeout = 60\n");
  auto client = server.connect({.timeouts = file.path});
  CHECK(client.expires(30s, too_long).times()->remaining <= 5s);  // as the page has the name
  auto load = client.expires(30s, "load");
  CHECK(load.renew(40s));
  CHECK(server.slot("load").asked == 40s);
  CHECK_FALSE(server.slot("load").code_timeout);
  load.release();
  auto scope = client.expires(30s, "forward");
  CHECK(server.slot("forward").asked == 5s);
  CHECK(scope.renew(40s));
  CHECK(server.slot("forward").asked == 5s);
  CHECK(server.slot("forward").code_timeout == Duration{40s});
  scope.release();
  const auto heart = client.heartbeat(30s, "forward", {.first_timeout = 1h});
  CHECK(heart.times()->remaining > 1min);  // the entry has no first timeout
  CHECK(client.heartbeat(30s, "load").times()->remaining > 30s);
  client.start(1h);
  CHECK(server.slot("job").asked == 60s);
  client.start(2h);
  CHECK(server.slot("job").asked == 60s);
  CHECK(server.slot("job").code_timeout == Duration{2h});
}

TEST_CASE("connect refuses a wrong file that the code names") {
  const FakeServer server;
  const TimeoutsFile file("forward = false\n");
  CHECK(
      testing::message_of([&] { (void)server.connect({.timeouts = file.path}); })
          .ends_with(":1:11: 'forward' is 'false': expected a time such as \"2.5s\" or \"inf\", or "
                     "seconds, at most 1000000000"));
}

TEST_CASE(
    "$FILETIMER_TIMEOUTS takes precedence over the file in the code, also with a wrong file") {
  const TimeoutsFile in_code("forward = 5\n");
  const TimeoutsFile outside("forward = 7\n");
  for (const auto& [path, asked] :
       {std::pair{outside.path.c_str(), 7s}, {"/nonexistent/timeouts.toml", 30s}}) {
    const FakeServer server;
    const testing::Variable variable("FILETIMER_TIMEOUTS", path);
    auto client = server.connect({.timeouts = in_code.path});
    const auto scope = client.expires(30s, "forward");
    CHECK(server.slot("forward").asked == asked);
  }
}

}  // namespace
}  // namespace filetimer
