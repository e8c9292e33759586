// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <string>

namespace filetimer::testing {

// Gives this thread, and processes that it forks, a mount namespace of its own, from which no mount
// reaches other processes. False where that takes privileges that the test lacks.
inline bool enter_mount_namespace() {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Mounts a file system in memory there; `options` as for mount(8).
inline bool mount_tmpfs(const std::string& folder, const char* options) {
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options) == 0;
}

// For FILETIMER_SKIP. Not only privileges: in a chroot, / may be no mount point.
inline constexpr const char* kNoMounts = "no mount namespace of the test's own can be made here";

}  // namespace filetimer::testing
