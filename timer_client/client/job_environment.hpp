// Who this process is in its job, as the launchers' environment variables say.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

// Each empty when nothing tells. The server reads the same variables of workers without a page.
struct JobEnvironment {
  std::string rank;
  std::string local_rank;
  std::string job_id;
};

JobEnvironment job_environment();

}  // namespace filetimer
