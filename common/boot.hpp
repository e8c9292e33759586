// The boot and the pid namespace of this process. Times on CLOCK_MONOTONIC can be compared within
// one boot only.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace filetimer {

// The kernel's random number of a boot; all zeroes: not known.
using BootId = std::array<std::uint8_t, 16>;

inline constexpr const char* kBootIdPath = "/proc/sys/kernel/random/boot_id";

// Returns the id of this boot, which does not change while a process runs.
BootId this_boot();
// Returns the id as kBootIdPath has it; "unknown" for all zeroes.
std::string boot_id_text(const BootId& boot);

// Returns the inode of this process's pid namespace, or 0 if /proc cannot be read.
std::uint64_t this_pid_namespace();

}  // namespace filetimer
