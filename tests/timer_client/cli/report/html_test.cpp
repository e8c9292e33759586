// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/html.hpp"

#include <doctest/doctest.h>

namespace filetimer::cli {
namespace {

TEST_CASE("markup in a text is text") {
  CHECK(html_text("<script>alert('a' & \"b\")</script>") ==
        "&lt;script&gt;alert(&#39;a&#39; &amp; &quot;b&quot;)&lt;/script&gt;");
  CHECK(html_text("größe → 1") == "größe → 1");
}

TEST_CASE("characters that hide or reorder text are visible") {
  CHECK(html_text("a\xE2\x80\xAE"
                  "b") == "a\\u202eb");
  CHECK(html_text("\xE2\x81\xA6x\xE2\x81\xA9") == "\\u2066x\\u2069");
  CHECK(html_text("\xEF\xBB\xBFx\xE2\x80\x8B") == "\\ufeffx\\u200b");
  CHECK(html_text("\xD8\x9C") == "\\u061c");
  CHECK(html_text("a\nb\x1b[2J\xff") == "a\\nb\\x1b[2J\\xff");
}

TEST_CASE("a long text is cut between characters") {
  CHECK(html_text("äöü", 3) == "äöü");
  CHECK(html_text("äöüx", 3) == "äöü...");
  CHECK(html_text("<<<<", 2) == "&lt;&lt;...");
  CHECK(html_text(std::string(65536, 'x'), 10) == "xxxxxxxxxx...");
}

}  // namespace
}  // namespace filetimer::cli
