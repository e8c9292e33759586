// SPDX-License-Identifier: MIT
#include "timer_client/client/server/server_location.hpp"

#include <sys/stat.h>

#include "common/run_folder.hpp"

namespace filetimer {
namespace {

bool is_same_file(const std::string& one, const std::string& other) {
  struct stat first {};
  struct stat second {};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

ServerLocation locate_server(const std::string& dir) {
  const RunFolder folder = resolve_run_folder(dir);
  return {.pipe = folder.path(kPipeName), .run_folder = folder.dir};
}

ServerLocation locate_server(const std::string& dir, const std::string& fifo) {
  ServerLocation place = locate_server(dir);
  const std::string pipe = resolve_pipe(dir, fifo);
  // A pipe elsewhere, given or from $TORCHELASTIC_TIMER_FILE, belongs to that directory if the
  // caller names the directory, or if the directory's pipe is the same file.
  if (pipe != place.pipe && dir.empty() && !is_same_file(place.pipe, pipe)) {
    place.run_folder.clear();
  }
  place.pipe = pipe;
  return place;
}

}  // namespace filetimer
