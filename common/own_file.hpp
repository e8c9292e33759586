// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <string>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

struct OwnFile {
  UniqueFd fd;
  struct stat status {};  // as it was when the file was opened
};

// Opens a regular file of this user in a directory to which other programs may write: it never
// waits for the other end of a FIFO, follows no symlink, and checks the open file. `access` is
// O_RDONLY or O_RDWR. Errors call the file `name`, or by its quoted path if `name` is empty.
Result<OwnFile> open_own_file(const std::string& path, int access, std::string name = {});

}  // namespace filetimer
