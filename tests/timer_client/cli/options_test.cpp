// SPDX-License-Identifier: MIT
#include "timer_client/cli/commands/options.hpp"

#include <doctest/doctest.h>
#include <signal.h>

using filetimer::cli::parse_signal;

TEST_CASE("signals are read by name, with or without SIG, and by number") {
  CHECK(parse_signal("TERM") == SIGTERM);
  CHECK(parse_signal("SIGTERM") == SIGTERM);
  CHECK(parse_signal("15") == SIGTERM);
  CHECK(parse_signal("KILL") == SIGKILL);
  CHECK(parse_signal("SIGUSR1") == SIGUSR1);
  CHECK(parse_signal("0") == 0);
  CHECK(parse_signal("64") == 64);
  CHECK(parse_signal("RTMIN") == SIGRTMIN);
  CHECK(parse_signal("RTMIN+2") == SIGRTMIN + 2);
  CHECK(parse_signal("SIGRTMAX-1") == SIGRTMAX - 1);
}

TEST_CASE("a word that is not a signal is an error that quotes it") {
  for (const char* word : {"", "TERMINATE", "term", "-1", "65", "999", "9x", "SIG", "RTMIN-1",
                           "RTMIN+99", "RTMAX+1", "RTMIN+-1", "9 "}) {
    const auto signal = parse_signal(word);
    REQUIRE_MESSAGE(!signal, word);
    CHECK(signal.error().message.find("'" + std::string(word) + "'") != std::string::npos);
  }
}
