// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

// Removes the pages in `folder` of processes that were killed while no server ran. For a client
// that finds no server: a server removes such pages itself, and without one they would fill the
// memory that the directory is in, one for each run. A page stays if a process holds its lock, if
// the process that it names is alive, if a server has ever registered it (the next server records
// its scopes), and beyond the first kMaxPagesLookedAt. No page of this process may be in `folder`
// but under a name that begins with this pid: closing a descriptor of it would drop its lock.
void remove_abandoned_pages(const std::string& folder) noexcept;

inline constexpr int kMaxPagesLookedAt = 256;

}  // namespace filetimer
