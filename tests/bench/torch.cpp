// SPDX-License-Identifier: MIT
#include "tests/bench/torch.hpp"

#include <unistd.h>

namespace filetimer::bench {
namespace {

// Only this interpreter finds Debian's packages, not conda's or pyenv's.
constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kTorchScript = FILETIMER_BENCH_DIR "/torch_timer.py";

}  // namespace

TorchServer::TorchServer(std::string fifo, Pipe in, Pipe out, Child child)
    : fifo_(std::move(fifo)), in_(std::move(in)), out_(std::move(out)), child_(std::move(child)) {}

std::unique_ptr<TorchServer> TorchServer::start(const std::string& fifo) {
  if (::access(kPython, X_OK) != 0) {
    return nullptr;
  }
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Child child = spawn({kPython, kTorchScript, "server", fifo}, in.read.get(), out.write.get(), -1);
  in.read.reset();
  out.write.reset();
  if (read_line(out.read.get()) != "ready") {
    return nullptr;  // the script reports that it cannot import torch
  }
  return std::unique_ptr<TorchServer>(
      new TorchServer(fifo, std::move(in), std::move(out), std::move(child)));
}

std::uint64_t TorchServer::stop() {
  in_.write.reset();
  const std::string count = read_line(out_.read.get());
  child_.wait();
  return std::stoull(count);
}

double TorchServer::client_cost_us(int count) const {
  Pipe out = make_pipe();
  Child client = spawn({kPython, kTorchScript, "client", fifo_, std::to_string(count)}, -1,
                       out.write.get(), -1);
  out.write.reset();
  const double us = std::stod(read_line(out.read.get()));
  client.wait();
  return us;
}

}  // namespace filetimer::bench
