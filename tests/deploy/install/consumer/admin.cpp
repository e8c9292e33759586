// An administrator's program in another project's build, with an installed filetimer.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <filetimer/admin.hpp>

int main() {
  const auto status = filetimer::AdminClient().status();
  std::printf("answered: %lld open\n", static_cast<long long>(status.open_scopes));
}
