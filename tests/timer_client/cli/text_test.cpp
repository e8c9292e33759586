// Words of a command line, and texts as a terminal and a browser show them.
// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <simdjson.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <utility>

#include "common/posix.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/commands/commands.hpp"
#include "timer_client/cli/text/output.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

Table small_table(Screen screen = {}) {
  return Table({{.title = "EVENT"},
                {.title = "PID", .align = Align::kRight},
                {.title = "SCOPE", .is_text = true},
                {.title = "WHAT", .is_text = true}},
               screen);
}

TEST_CASE("a wide character takes two columns") {
  CHECK(display_width("") == 0);
  CHECK(display_width("abc") == 3);
  CHECK(display_width("aé世🙂") == 6);
  CHECK(prefix_of_width("aé世🙂", 6) == "aé世🙂");
  CHECK(prefix_of_width("aé世🙂", 5) == "aé世");
  CHECK(prefix_of_width("aé世🙂", 3) == "aé");
  CHECK(prefix_of_width("abc", 0).empty());
}

TEST_CASE("no line is wider than the terminal, cut text is marked, and in a pipe nothing is cut") {
  const std::string accents = "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
  for (const std::size_t width : {1U, 20U, 80U, 150U}) {
    Table table = small_table({.width = width});
    table.add({{"expired"},
               {"1"},
               {accents + accents + accents + accents + accents},
               {std::string(100, 'w')}});
    table.add({{std::string(90, 'e')}, {"1"}, {"s"}, {"w"}});
    const std::string text = table.text();
    for (const std::string& line : lines_of(text)) {
      CAPTURE(line);
      CHECK(display_width(line) <= width);
      CHECK(valid_utf8(line) == line);
    }
    CHECK(text.find(width > 3 ? "..." : ".") != std::string::npos);
  }
  Table wide = small_table();
  wide.add({{"e"}, {"1"}, {"\u4e16\u754c"}, {"x"}});
  wide.add({{"e"}, {"1"}, {"abcdef"}, {"x"}});
  CHECK(wide.text() ==
        "EVENT  PID  SCOPE   WHAT\n"
        "e        1  \u4e16\u754c    x\n"
        "e        1  abcdef  x\n");
  Table narrow = small_table({.width = 32});
  narrow.add({{"longer_event"}, {"1"}, {"abcdefghij"}, {"abcdefghij"}});
  CHECK(narrow.text() ==
        "EVENT         PID  SCOPE   WHAT\n"
        "longer_event    1  abc...  ab...\n");
  Table in_pipe = small_table();
  in_pipe.add({{"killed"}, {"1"}, {"step"}, {"dead"}});
  in_pipe.add({{"killed"}, {"12"}, {std::string(300, 's')}, {std::string(300, 'w')}});
  CHECK(in_pipe.text() == "EVENT   PID  SCOPE" + std::string(297, ' ') + "WHAT\n" +
                              "killed    1  step" + std::string(298, ' ') + "dead\n" +
                              "killed   12  " + std::string(300, 's') + "  " +
                              std::string(300, 'w') + "\n");
  CHECK(cut_text("abcdef", 5) == "ab...");
  CHECK((cut_text("abcde", 5) == "abcde" && cut_text(accents, 10) == accents));
  CHECK(cut_text(accents, 4) == "\u00e9...");
}

TEST_CASE("times are local, with their zone, and a time without a zone is local, too") {
  constexpr std::int64_t kTime = 1763694953'123456;  // 2025-11-21T03:15:53.123456Z
  CHECK(time_text(kTime) == "2025-11-21 03:15:53.123456 UTC");
  CHECK(time_text(-1) == "1969-12-31 23:59:59.999999 UTC");
  ::setenv("TZ", "CET-1", 1);
  ::tzset();
  CHECK(time_text(kTime) == "2025-11-21 04:15:53.123456 CET");
  for (const auto& [word, seconds] :
       {std::pair{"2025-11-21 04:15:53", 53}, {"2025-11-21 04:15", 0}}) {
    CHECK(parse_since(word, 0).value() == (kTime / 60'000'000 * 60 + seconds) * 1'000'000);
  }
  CHECK(parse_since("2025-11-21", 0).value() == parse_since("2025-11-20T23:00:00Z", 0).value());
  CHECK(!parse_since("2025-11-21 04:15:5x", 0));
  CHECK(!parse_since("2025-02-31", 0));
  CHECK(!parse_since("25-11-21", 0));
  simdjson::dom::parser parser;
  const std::string record = R"({"time":"2025-11-21T03:15:53.123456Z","a":"2025-11-21T03:15:53Z"})";
  const simdjson::dom::object fields = parser.parse(record).get_object();
  Page page;
  add_fields(page, fields);
  CHECK(std::move(page).text() ==
        "  time  2025-11-21 04:15:53.123456 CET\n  a     2025-11-21T03:15:53Z\n");
  ::setenv("TZ", "STD0DST,M3.2.0,M11.1.0", 1);
  CHECK(parse_since("2025-07-01 04:00", 0).value() == 1751338800'000'000);  // three o'clock in UTC
  ::setenv("TZ", "UTC0", 1);
  ::tzset();
}

TEST_CASE("the screen is the terminal, as wide as it says") {
  CHECK(screen_of(STDOUT_FILENO).width == 0);
  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const OnTerminal on_terminal;
  CHECK(screen_of(terminal.get()).width == 80);
  const winsize wide{.ws_row = 24, .ws_col = 132, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(::ioctl(terminal.get(), TIOCSWINSZ, &wide) == 0);
  CHECK(screen_of(terminal.get()).width == 132);
  CHECK(screen_of(terminal.get()).has_colour);
}

TEST_CASE("a page is wrapped between words, and long words are cut") {
  Page page;
  page.field("label", "");
  page.field("label", std::string(40, 'a') + " " + std::string(40, 'b'));
  page.item(4, std::string(170, 'c'));
  page.paragraph("tab\there \x1b[2J");
  const auto lines = lines_of(std::move(page).text());
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "  label  " + std::string(40, 'a'));
  CHECK(lines[1] == std::string(9, ' ') + std::string(40, 'b'));
  CHECK(lines[2] == "    " + std::string(76, 'c'));
  CHECK(lines[3] == "      " + std::string(74, 'c'));
  CHECK(lines[4] == "      " + std::string(20, 'c'));
  CHECK(lines[5] == "tab\\there \\x1b[2J");
  Page labels;
  labels.field(std::string(50, 'l'), "is long");
  labels.field("label", "value");
  CHECK(std::move(labels).text() == "  " + std::string(50, 'l') + "\n" + std::string(28, ' ') +
                                        "is long\n  label" + std::string(21, ' ') + "value\n");
}

TEST_CASE("on a page of HTML hidden characters are visible, and text is cut between characters") {
  CHECK(html_text("a\nb\u202ec\x1b[2J\xff") == "a\\nb\\u202ec\\x1b[2J\\xff");
  CHECK(html_text("äöü", 3) == "äöü");
  CHECK(html_text("äöüx", 3) == "äöü...");
  CHECK(html_text("<<<<", 2) == "&lt;&lt;...");
  CHECK(html_text(std::string(65536, 'x'), 10) == "xxxxxxxxxx...");
}

TEST_CASE("a mistyped word means the first choice that differs in two characters at most") {
  const std::vector<std::string> choices{"started", "stopped", "expired"};
  CHECK(meant_by("unexpired", choices) == "expired");
  CHECK((meant_by("notexpired", choices).empty() && meant_by("prune", {"run"}).empty()));
  CHECK(meant_by("stxrped", choices) == "started");
}

TEST_CASE(
    "signals are read by name, with or without SIG, and by number, and other words are quoted") {
  CHECK(parse_signal("TERM") == SIGTERM);
  CHECK(parse_signal("SIGTERM") == SIGTERM);
  CHECK(parse_signal("15") == SIGTERM);
  CHECK(parse_signal("KILL") == SIGKILL);
  CHECK(parse_signal("sigusr1") == SIGUSR1);
  CHECK(parse_signal("HUP") == SIGHUP);  // the first
  CHECK(parse_signal("SYS") == SIGSYS);  // the last with a name
  CHECK(parse_signal("0") == 0);
  CHECK(parse_signal("64") == 64);
  for (const char* word : {"", "TERMINATE", "-1", "65", "999", "9x", "SIG", "RTMIN", "9 "}) {
    const auto signal = parse_signal(word);
    REQUIRE_MESSAGE(!signal, word);
    CHECK(signal.error().message.find("'" + std::string(word) + "'") != std::string::npos);
  }
}

}  // namespace
}  // namespace filetimer::cli
