// SPDX-License-Identifier: MIT
#include "timer_client/cli/text/table.hpp"

#include <doctest/doctest.h>

#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {
namespace {

Table small_table() {
  return Table({{.title = "EVENT", .runs_over = true},
                {.title = "PID", .align = Align::kRight},
                {.title = "SCOPE", .free_text = true},
                {.title = "WHAT", .free_text = true, .starts_early = true}});
}

TEST_CASE("columns are aligned, numbers to the right, without spaces at the end") {
  Table table = small_table();
  table.add({{"expired"}, {"7"}, {"load"}, {"late"}});
  table.add({{"killed"}, {"4711"}, {"step"}, {""}});
  CHECK(table.text() ==
        "EVENT     PID  SCOPE  WHAT\n"
        "expired     7  load   late\n"
        "killed   4711  step\n");
}

TEST_CASE("a column without a cell is left out") {
  Table table = small_table();
  table.add({{"expired"}, {""}, {"load"}, {"late"}});
  CHECK(table.text() == "EVENT    SCOPE  WHAT\nexpired  load   late\n");
}

TEST_CASE("a long cell runs over empty neighbours and widens nothing") {
  Table table = small_table();
  table.add({{"server_started"}, {""}, {""}, {"0.1"}});
  table.add({{"killed"}, {"4711"}, {"step"}, {"dead"}});
  CHECK(table.text() ==
        "EVENT    PID  SCOPE  WHAT\n"
        "server_started       0.1\n"
        "killed  4711  step   dead\n");
}

TEST_CASE("no line is wider than 80 columns and what was cut is marked") {
  Table table = small_table();
  const std::string accents = "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
  table.add({{"expired"},
             {"1"},
             {accents + accents + accents + accents + accents},
             {std::string(100, 'w')}});
  table.add({{std::string(90, 'e')}, {"1"}, {"s"}, {"w"}});
  for (const std::string& line : lines_of(table.text())) {
    CAPTURE(line);
    CHECK(utf8_length(line) <= kPageWidth);
    CHECK(valid_utf8(line) == line);
  }
  CHECK(table.text().find("...") != std::string::npos);
  CHECK(cut_text("abcdef", 5) == "ab...");
  CHECK(cut_text("abcde", 5) == "abcde");
  CHECK(cut_text(accents, 4) == "\u00e9...");
}

// What is shown of each name beside `text`, which takes what room it can get.
std::vector<std::string> names_beside(const std::vector<std::string>& names,
                                      const std::string& text) {
  Table table({{.title = "PID"},
               {.title = "HOST", .free_text = true, .is_name = true},
               {.title = "SCOPE", .free_text = true},
               {.title = "WHAT", .free_text = true}});
  for (const std::string& name : names) {
    table.add({{std::string(50, '1')}, {name}, {std::string(30, 's')}, {text}});
  }
  std::vector<std::string> shown;
  for (const std::string& line : lines_of(table.text())) {
    CHECK(utf8_length(line) <= kPageWidth);
    shown.push_back(line.substr(52, line.find(' ', 52) - 52));
  }
  shown.erase(shown.begin());
  return shown;
}

TEST_CASE("names are cut where they are the same, so that they can be told apart") {
  using Names = std::vector<std::string>;
  const std::string text(60, 'w');
  CHECK(names_beside({"gpu-worker-a0100", "gpu-worker-a0101", "gpu-worker-a0202"}, text) ==
        Names{"...a0100", "...a0101", "...a0202"});
  CHECK(names_beside({"n0588.cluster.example.org", "n0590.cluster.example.org"}, text) ==
        Names{"n0588...", "n0590..."});
  CHECK(names_beside({"a", "b"}, text) == Names{"a", "b"});
  CHECK(cut_in_front("abcdef", 5) == "...ef");
  CHECK(cut_in_front("abcdef", 6) == "abcdef");
  CHECK(cut_in_front("\u00e9\u00e9\u00e9\u00e9\u00e9", 4) == "...\u00e9");
}

TEST_CASE("no column gets narrower than it has to be") {
  Table table({{.title = "PID"},
               {.title = "HOST", .free_text = true, .min_width = 8},
               {.title = "WHAT", .free_text = true}});
  table.add({{std::string(66, '1')}, {"node0588"}, {std::string(60, 'w')}});
  CHECK(contains(table.text(), "  node0588  "));
}

TEST_CASE("a last cell that needs room begins in the empty ones before it") {
  Table table = small_table();
  const std::string text(60, 'w');
  table.add({{"expired"}, {"1"}, {std::string(20, 's')}, {"late"}});
  table.add({{"rejected"}, {""}, {""}, {text}});
  CHECK(table.text().find(text) != std::string::npos);
}

TEST_CASE("a row that came after the widths were set is whole where it can be") {
  Table table = small_table();
  table.add({{"killed"}, {"1"}, {"step"}, {"dead"}});
  table.fit();
  CHECK(table.line({{"released_late"}, {"123456"}, {"step"}, {"x"}}) ==
        "released_late  123456  step  x\n");
  CHECK(table.line({{std::string(79, 'e')}, {"1"}, {"s"}, {"w"}}) == std::string(79, 'e') + "\n");
}

TEST_CASE("cells hold no control characters, and colour only where it was asked for") {
  Table plain = small_table();
  plain.add({{"expired", "31"}, {"1"}, {"a\x1b[2Jb\n"}, {""}});
  CHECK(plain.text().find('\x1b') == std::string::npos);
  CHECK(lines_of(plain.text()).size() == 2);
  Table coloured({{.title = "EVENT"}}, true);
  coloured.add({{"expired", "31"}});
  CHECK(coloured.text() == "EVENT\n\x1b[31mexpired\x1b[0m\n");
}

TEST_CASE("a page is wrapped between words, and long words are cut") {
  Page page;
  page.field("label", "");
  page.field("label", std::string(40, 'a') + " " + std::string(40, 'b'));
  page.item(4, std::string(170, 'c'));
  page.paragraph("tab\there \x1b[2J");
  const auto lines = lines_of(page.text());
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "  label        " + std::string(40, 'a'));
  CHECK(lines[1] == std::string(15, ' ') + std::string(40, 'b'));
  CHECK(lines[2] == "    " + std::string(76, 'c'));
  CHECK(lines[3] == "      " + std::string(74, 'c'));
  CHECK(lines[4] == "      " + std::string(20, 'c'));
  CHECK(lines[5] == "tab\\there \\x1b[2J");
}

}  // namespace
}  // namespace filetimer::cli
