// SPDX-License-Identifier: MIT
#include "common/boot.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <string_view>

#include "common/numbers.hpp"
#include "common/proc_files.hpp"

namespace filetimer {
namespace {

BootId read_boot() {
  BootId boot{};
  std::string digits = read_small_file(kBootIdPath).value_or("");
  std::erase(digits, '-');
  for (std::size_t i = 0; i < boot.size() && 2 * i < digits.size(); ++i) {
    boot[i] = number_from<std::uint8_t>(std::string_view(digits).substr(2 * i, 2), 16).value_or(0);
  }
  return boot;
}

// Read when the library is loaded: a child that is forked while another thread makes the static
// object would wait for that thread for ever.
[[maybe_unused]] const BootId boot_at_load = this_boot();

}  // namespace

BootId this_boot() {
  static const BootId boot = read_boot();
  return boot;
}

std::string boot_id_text(const BootId& boot) {
  if (boot == BootId{}) {
    return "unknown";
  }
  std::string text = fmt::format("{:02x}", fmt::join(boot, ""));
  for (const std::size_t at : {8U, 13U, 18U, 23U}) {
    text.insert(at, 1, '-');
  }
  return text;
}

std::uint64_t this_pid_namespace() {
  struct stat st {};
  return ::stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

}  // namespace filetimer
