// A plugin with a copy of the library of its own.
// SPDX-License-Identifier: MIT
#include <filetimer/timer_client.hpp>
#include <utility>

extern "C" [[gnu::visibility("default")]] void use_client(const char* dir) {
  filetimer::ConnectOptions options;
  options.dir = dir;
  static auto& client =
      *new filetimer::TimerClient(filetimer::TimerClient::connect(std::move(options)));
  (void)client.expires(std::chrono::hours{1}, "step").release();
}
