// PyTorch's own timer, if /usr/bin/python3 has it.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/bench/processes.hpp"

namespace filetimer::bench {

class TorchServer {
 public:
  // Returns null if PyTorch is not installed. `max_interval` is as in PyTorch's agent.
  static std::unique_ptr<TorchServer> start(const std::string& fifo);

  [[nodiscard]] const std::string& fifo() const { return fifo_; }
  // Lets the server read the rest and returns the number of requests. No process may have the pipe
  // open for writing, because the server reads up to the end of file.
  std::uint64_t stop();
  // Returns the median microseconds of one `with expires()` with a name.
  [[nodiscard]] double client_cost_us(int count) const;

 private:
  TorchServer(std::string fifo, Pipe in, Pipe out, Child child);
  std::string fifo_;
  Pipe in_;
  Pipe out_;
  Child child_;
};

}  // namespace filetimer::bench
