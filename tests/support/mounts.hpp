// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <string>

namespace filetimer::testing {

// Moves this thread, and processes that it forks, into a new mount namespace, whose mounts no other
// process sees. Returns false if the test lacks the privileges.
inline bool enter_mount_namespace() {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Mounts a file system in memory at `folder`; `options` as for mount(8).
inline bool mount_tmpfs(const std::string& folder, const char* options) {
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options) == 0;
}

// For FILETIMER_SKIP. Privileges are not the only reason: in a chroot, / may not be a mount point.
inline constexpr const char* kNoMounts = "this machine does not allow a new mount namespace";

}  // namespace filetimer::testing
