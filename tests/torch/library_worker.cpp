// A worker that links filetimer::client, for tests against servers that are not ours.
//   library_worker PIPE healthy|hung|nested|flood SECONDS
// Prints "in" once its scopes are as the mode says, then lives until its standard input ends.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <optional>
#include <string>

namespace {

constexpr int kFlood = 3000;  // far more than a pipe holds

void wait_for_end_of_input() {
  while (std::getchar() != EOF) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: library_worker PIPE healthy|hung|nested|flood SECONDS\n", stderr);
    return 2;
  }
  const std::string mode = argv[2];
  const auto after = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::atof(argv[3])));
  filetimer::ConnectOptions options;
  options.fifo = argv[1];
  auto client = filetimer::TimerClient::connect(std::move(options));

  std::optional<filetimer::TimerScope> open;
  if (mode == "healthy") {
    auto scope = client.expires(after, "step");
    scope.renew(after);
  } else if (mode == "hung") {
    open.emplace(client.expires(after, "step"));
  } else if (mode == "nested") {
    open.emplace(client.expires(after, "step"));
    auto inner = client.expires(after, "step");  // left at once: must not disarm the outer one
  } else if (mode == "flood") {
    for (int i = 0; i < kFlood; ++i) {
      auto scope = client.expires(after, "step");
    }
  } else {
    std::fprintf(stderr, "library_worker: '%s' is not a mode\n", mode.c_str());
    return 2;
  }
  std::puts("in");
  std::fflush(stdout);
  wait_for_end_of_input();
  return 0;
}
