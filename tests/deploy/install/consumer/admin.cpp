// An administrator's program that is built against an installed filetimer, by somebody else's build.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <filetimer/admin.hpp>

int main() {
  const auto status = filetimer::AdminClient().status();
  std::printf("answered: %lld open\n", static_cast<long long>(status.open_scopes));
}
