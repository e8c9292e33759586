// SPDX-License-Identifier: MIT
#include "common/boot.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

namespace filetimer {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

BootId read_boot() {
  BootId boot{};
  std::ifstream file(kBootIdPath);
  std::string text;
  file >> text;
  std::size_t digits = 0;
  for (const char c : text) {
    const int digit = hex_digit(c);
    if (digit < 0 || digits / 2 >= boot.size()) {
      continue;
    }
    auto& byte = boot[digits++ / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | digit);
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
  std::string text;
  for (std::size_t i = 0; i < boot.size(); ++i) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", dash ? "-" : "", boot[i]);
  }
  return text;
}

std::uint64_t this_pid_namespace() {
  struct stat st {};
  return ::stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

}  // namespace filetimer
