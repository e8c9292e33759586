// SPDX-License-Identifier: MIT
#include "tests/bench/torch.hpp"

#include <unistd.h>

namespace filetimer::bench {
namespace {

// Only this interpreter finds Debian's packages, not conda's or pyenv's.
constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kTorchScript = FILETIMER_BENCH_DIR "/torch_timer.py";

}  // namespace

std::optional<TorchServer> TorchServer::start(const Plan& plan, const std::string& name) {
  if (!plan.with_torch || ::access(kPython, X_OK) != 0) {
    return std::nullopt;
  }
  const std::string fifo = plan.memory_dir + "/" + name;
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Child child = spawn({kPython, kTorchScript, "server", fifo}, in.read.get(), out.write.get(), -1);
  in.read.reset();
  out.write.reset();
  if (read_line(out.read.get()) != "ready") {
    return std::nullopt;  // the script reports that it cannot import torch
  }
  return TorchServer{fifo, std::move(in), std::move(out), std::move(child)};
}

void TorchServer::stop() {
  in.write.reset();
  child.wait();
}

double TorchServer::client_cost_us(int count) const {
  return std::stod(first_line_of({kPython, kTorchScript, "client", fifo, std::to_string(count)}));
}

Row without_torch(const Plan& plan, const std::string& measure) {
  return {.measure = measure, .note = plan.with_torch ? "not installed" : "left out"};
}

}  // namespace filetimer::bench
