// Which boot of which machine this is: a time on CLOCK_MONOTONIC means something within one boot.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace filetimer {

// The kernel's random number of this boot; all zeroes where /proc does not tell.
using BootId = std::array<std::uint8_t, 16>;

BootId this_boot();
// As /proc/sys/kernel/random/boot_id writes it; "unknown" for all zeroes.
std::string boot_id_text(const BootId& boot);

// The inode of this process's pid namespace; 0 where /proc does not tell.
std::uint64_t this_pid_namespace();

}  // namespace filetimer
