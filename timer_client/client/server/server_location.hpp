// The paths by which a client finds its server.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

struct ServerLocation {
  std::string pipe;
  // The runtime directory: status page, pages, and pipes for answers. Empty: only the pipe is
  // known.
  std::string run_folder;
};

// Returns the place that `dir` names; empty: $FILETIMER_DIR, else the default directory.
ServerLocation locate_server(const std::string& dir);
// Returns the place of the pipe `fifo`; empty: that of `dir` or of $FILETIMER_DIR, else
// $TORCHELASTIC_TIMER_FILE, else that of the default directory.
ServerLocation locate_server(const std::string& dir, const std::string& fifo);

}  // namespace filetimer
