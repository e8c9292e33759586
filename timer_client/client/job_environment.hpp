// The place of this process in its job, from the launchers' environment variables.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer {

// A field is empty if it is not known. The server reads the same variables of workers without a
// page.
struct JobEnvironment {
  std::string rank;
  std::string local_rank;
  std::string job_id;
};

// Reads the variables of this process.
JobEnvironment job_environment();

}  // namespace filetimer
