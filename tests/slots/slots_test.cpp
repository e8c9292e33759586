// Random operations on the scopes of a worker, on its page and on the request pipe, agree with the
// model. A sequence that does not is shrunk and printed. FILETIMER_SLOTS="FIRST COUNT" runs those
// seeds in place of the usual ones; tests/slots/found keeps each sequence that has found a fault.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/slots/machine.hpp"

using namespace filetimer::slots;

namespace {

constexpr unsigned kSeeds = 300;  // some seconds

void run_seeds(const Kit& kit) {
  unsigned first = 1;
  unsigned count = kSeeds;
  if (const char* const chosen = std::getenv("FILETIMER_SLOTS")) {
    std::istringstream(chosen) >> first >> count;
  }
  for (unsigned seed = first; seed < first + count; ++seed) {
    const Ops ops = random_ops(kit, seed);
    if (run(kit, seed, ops)) {
      FAIL("seed ", seed, ": ", shortest(kit, seed, ops));
    }
  }
}

}  // namespace

TEST_CASE("a worker's page agrees with the model in random sequences of both sides' steps") {
  run_seeds(page_kit());
}

TEST_CASE("the scopes of a worker of the pipe agree with the model in random sequences") {
  run_seeds(pipe_kit());
}

// A line: kit, variant, a colon, the operations.
TEST_CASE("the sequences that have found a fault agree with the model") {
  std::ifstream found(FILETIMER_SOURCE_DIR "/tests/slots/found");
  int count = 0;
  for (std::string line; std::getline(found, line);) {
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const Kit& kit = line.starts_with("page") ? page_kit() : pipe_kit();
    const auto variant = static_cast<unsigned>(std::stoi(line.substr(line.find(' '))));
    CHECK_MESSAGE(!run(kit, variant, ops_of(line.substr(line.find(':') + 1))), line);
    ++count;
  }
  CHECK(count > 0);
}
