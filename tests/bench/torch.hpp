// PyTorch's own timer, if /usr/bin/python3 has it.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tests/bench/processes.hpp"
#include "tests/bench/sections.hpp"

namespace filetimer::bench {

struct TorchServer {
  std::string fifo;
  Pipe in;
  Pipe out;
  Child child;

  // Returns nothing if PyTorch is not installed, or is to be left out. Its pipe is made under that
  // name.
  static std::optional<TorchServer> start(const Plan& plan, const std::string& name);

  // Lets the server read the rest. No process may have the pipe open for writing, because the
  // server reads up to the end of file.
  void stop();
  // Returns the median microseconds of one `with expires()` with a name.
  [[nodiscard]] double client_cost_us(int count) const;
};

// Returns the row in place of a measurement without PyTorch.
Row without_torch(const Plan& plan, const std::string& measure);

}  // namespace filetimer::bench
