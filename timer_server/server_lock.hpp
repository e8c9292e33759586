// One server a folder: an exclusive POSIX lock on the file `server`. The kernel frees it when the
// process ends, however it ends, and names the process that holds it. And the locked folder of a
// server around one COMMAND, where none is named.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include "common/mapped_file.hpp"
#include "common/result.hpp"

namespace filetimer {

// Locks the file, and makes it if it is missing. Fails with EBUSY if another server holds the lock.
// The error names the pid of that server if the kernel shows it. Afterwards no code in this process
// may open `path`: closing any descriptor of the file would drop the lock.
Result<FileLock> take_server_lock(const std::string& path);

struct FreshFolder {
  std::string path;
  FileLock lock;
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
