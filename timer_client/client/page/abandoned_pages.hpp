// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

// Removes the pages in `folder` of processes that were killed while no server ran. A client that
// finds no server calls it: a server removes such pages itself, and without a server each run would
// leave one in the memory that holds the directory. A page stays if a process holds its lock, if
// the process that it names is alive, if a server has ever registered it (the next server records
// its scopes), or if it is not among the first kMaxPagesLookedAt. Every page of this process in
// `folder` must have a name that begins with this pid: such names are skipped, because closing a
// descriptor of the page would drop its lock.
void remove_abandoned_pages(const std::string& folder) noexcept;

inline constexpr int kMaxPagesLookedAt = 256;

}  // namespace filetimer
