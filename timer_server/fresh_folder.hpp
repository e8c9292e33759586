// The runtime directory of a server around one COMMAND, where none is named.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "common/result.hpp"
#include "timer_server/server_lock.hpp"

namespace filetimer {

struct FreshFolder {
  std::string path;
  ServerLock lock;
};

// Makes a locked folder for one COMMAND in `parent`, so that two jobs of one user never share one.
// Makes `parent` if it is missing. Removes the fresh folders of servers that were killed more than
// an hour ago, 64 of them at most. The folder is locked before it gets its name, so a folder with
// its final name and without a lock has no server.
Result<FreshFolder> make_fresh_folder(const std::string& parent);

// Makes a locked folder for one COMMAND in $TMPDIR or /tmp, for a host on which the default folder
// cannot be used, because another user has taken its name. No server removes such a folder of a
// server that was killed.
Result<FreshFolder> make_private_folder();

}  // namespace filetimer
