// Where a client meets its server.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

struct ServerLocation {
  std::string pipe;
  // Where the status page and the pages are, and where the pipes for answers are made. Empty: it is
  // not known, and there is nothing but the pipe.
  std::string run_folder;
};

// Returns the place that `dir` names; empty: $FILETIMER_DIR, else the default directory.
ServerLocation locate_server(const std::string& dir);
// Returns the place of the pipe `fifo`; empty: that of `dir` or of $FILETIMER_DIR, else
// $TORCHELASTIC_TIMER_FILE, else that of the default directory.
ServerLocation locate_server(const std::string& dir, const std::string& fifo);

}  // namespace filetimer
