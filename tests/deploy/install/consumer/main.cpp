// A worker in another project's build, with an installed filetimer.
// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <cstdio>
#include <filetimer/timer_client.hpp>
#include <string_view>

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  auto client = filetimer::TimerClient::connect();
  const bool hangs = argc > 1 && std::string_view(argv[1]) == "hang";
  auto scope = client.expires(hangs ? 200ms : 60s, "consumed");
  while (hangs) {
    ::pause();
  }
  std::puts(scope.release() ? "left in time" : "left too late");
}
