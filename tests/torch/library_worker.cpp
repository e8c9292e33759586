// A worker with timers on a bare pipe, for tests against PyTorch's server.
//   library_worker PIPE healthy|hung|nested|flood SECONDS
// Prints "in" after it has opened the scopes of the mode, then runs until its standard input ends.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <cstdlib>
#include <filetimer/pipe_client.hpp>
#include <string>

namespace {

using filetimer::PipeClient;

constexpr int kFlood = 3000;  // far more than a pipe holds

// Calls `send` until the line is in the pipe.
template <class Send>
void insist(const Send& send) {
  while (send() != PipeClient::Sent::kYes) {
  }
}

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
  const PipeClient pipe(argv[1]);
  const auto acquire = [&](const char* name) { insist([&] { return pipe.acquire(after, name); }); };
  const auto release = [&](const char* name) { insist([&] { return pipe.release(name); }); };

  if (mode == "healthy") {
    acquire("step");
    acquire("step");  // renews it
    release("step");
  } else if (mode == "hung") {
    acquire("step");
  } else if (mode == "nested") {
    acquire("step");
    acquire("inner");
    release("inner");  // must not disarm the outer one
  } else if (mode == "flood") {
    for (int i = 0; i < kFlood; ++i) {
      acquire("step");
      release("step");
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
