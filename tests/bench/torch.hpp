// PyTorch's own timer, where /usr/bin/python3 has it: what a user of it has today.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/bench/processes.hpp"

namespace filetimer::bench {

class TorchServer {
 public:
  // Null when PyTorch is not installed. `max_interval` as PyTorch's agent sets it.
  static std::unique_ptr<TorchServer> start(const std::string& fifo);

  [[nodiscard]] const std::string& fifo() const { return fifo_; }
  // Lets it read what is left and gives the number of requests it counted. Nobody may have the
  // pipe open for writing: it reads until end-of-file.
  std::uint64_t stop();
  // Microseconds of one `with expires()`, the median, named and with the default scope.
  struct ClientCost {
    double named_us = 0;
    double default_us = 0;
  };
  [[nodiscard]] ClientCost client_cost(int count) const;

 private:
  TorchServer(std::string fifo, Pipe in, Pipe out, Child child);
  std::string fifo_;
  Pipe in_;
  Pipe out_;
  Child child_;
};

}  // namespace filetimer::bench
