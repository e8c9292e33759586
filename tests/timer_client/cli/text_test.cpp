// SPDX-License-Identifier: MIT
#include "common/text.hpp"

#include <doctest/doctest.h>

#include <array>

#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "timer_client/cli/text/fields.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/table.hpp"

namespace filetimer::cli {
namespace {

Table small_table(bool colour = false) {
  return Table({{.title = "EVENT"},
                {.title = "PID", .align = Align::kRight},
                {.title = "SCOPE", .is_text = true},
                {.title = "WHAT", .is_text = true}},
               colour);
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

TEST_CASE("no line is wider than 80 columns, and cut text is marked") {
  Table table = small_table();
  const std::string accents = "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
  table.add({{"expired"},
             {"1"},
             {accents + accents + accents + accents + accents},
             {std::string(100, 'w')}});
  table.add({{std::string(90, 'e')}, {"1"}, {"s"}, {"w"}});
  const std::string text = table.text();
  for (const std::string& line : lines_of(text)) {
    CAPTURE(line);
    CHECK(utf8_length(line) <= kPageWidth);
    CHECK(valid_utf8(line) == line);
  }
  CHECK(text.find("...") != std::string::npos);
  CHECK(cut_text("abcdef", 5) == "ab...");
  CHECK(cut_text("abcde", 5) == "abcde");
  CHECK(cut_text(accents, 4) == "\u00e9...");
}

TEST_CASE("no column is narrower than necessary") {
  Table table({{.title = "PID"},
               {.title = "HOST", .is_text = true, .min_width = 8},
               {.title = "WHAT", .is_text = true}});
  table.add({{std::string(66, '1')}, {"node0588"}, {std::string(60, 'w')}});
  CHECK(contains(table.text(), "  node0588  "));
}

TEST_CASE("a wide last cell begins in the empty cells before it") {
  Table table = small_table();
  const std::string text(60, 'w');
  table.add({{"expired"}, {"1"}, {std::string(20, 's')}, {"late"}});
  table.add({{"rejected"}, {""}, {""}, {text}});
  CHECK(contains(table.text(), text));
}

TEST_CASE("a row that is added after fit() is not cut if it has room") {
  Table table = small_table();
  table.add({{"killed"}, {"1"}, {"step"}, {"dead"}});
  table.fit();
  const auto line = [&](const Cell& event, const Cell& pid, const Cell& scope, const Cell& what) {
    std::string text;
    table.add_line(std::array{event, pid, scope, what}, text);
    return text;
  };
  CHECK(line({"released_late"}, {"123456"}, {"step"}, {"x"}) == "released_late  123456  step  x\n");
  const std::string wide(79, 'e');
  CHECK(line({wide}, {"1"}, {"s"}, {"w"}) == wide + "\n");
}

TEST_CASE("cells have no control characters, and colour only if it is enabled") {
  Table plain = small_table();
  plain.add({{"expired", "31"}, {"1"}, {"a\x1b[2Jb\n"}, {""}});
  const std::string text = plain.text();
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(lines_of(text).size() == 2);
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
  const auto lines = lines_of(std::move(page).text());
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "  label  " + std::string(40, 'a'));
  CHECK(lines[1] == std::string(9, ' ') + std::string(40, 'b'));
  CHECK(lines[2] == "    " + std::string(76, 'c'));
  CHECK(lines[3] == "      " + std::string(74, 'c'));
  CHECK(lines[4] == "      " + std::string(20, 'c'));
  CHECK(lines[5] == "tab\\there \\x1b[2J");
}

TEST_CASE("the values of consecutive fields are aligned") {
  Page page;
  page.field("a", "1");
  page.field("long label", "2");
  page.heading("Next");
  page.field("b", "3");
  CHECK(std::move(page).text() ==
        "  a           1\n"
        "  long label  2\n"
        "\n"
        "Next\n"
        "  b  3\n");
}

TEST_CASE("any field of a record is shown, with its unit in the value") {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  const std::string json =
      R"({"schema":1,"grace_s":10,"late_ms":0.25,"rss_bytes":262144000,"max_timeout_s":null,)"
      R"("signal":true,"new_thing":"a\u001bb","list":[1,"two"],"children":[{"pid":7,"comm":"x"}],)"
      R"("empty":[],"odd_s":"text"})";
  REQUIRE(parser.parse(json).get_object().get(object) == simdjson::SUCCESS);
  Page page;
  add_fields(page, object, {"schema"}, 0);
  CHECK(std::move(page).text() ==
        "grace        10 s\n"
        "late         250 us\n"
        "rss          250 MiB\n"
        "max timeout  none\n"
        "signal       yes\n"
        "new thing    a\\x1bb\n"
        "list         1, two\n"
        "children     7 x\n"
        "odd s        text\n");
}

}  // namespace
}  // namespace filetimer::cli
