// A small network for the digits: 64 pixels, one hidden layer with ReLU, softmax over 10 classes.
// All parameters, and likewise all gradients, are one array, so that ranks can exchange them whole.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "digits.hpp"

namespace filetimer::examples {

class Mlp {
 public:
  // The same seed gives the same initial parameters in every rank.
  explicit Mlp(std::uint32_t seed);

  // Forward and backward over a batch. Returns the mean loss (cross-entropy) and leaves the mean
  // gradients in gradients().
  float forward_backward(std::span<const Digit> batch);

  // Makes one step of gradient descent with gradients().
  void step(float learning_rate);

  [[nodiscard]] std::span<float> gradients() { return gradients_; }
  // Returns the fraction of `digits` that are recognised, 0 to 1.
  [[nodiscard]] double accuracy(std::span<const Digit> digits) const;

 private:
  struct Activations;
  void forward(const Digit& digit, Activations& out) const;

  std::vector<float> parameters_;
  std::vector<float> gradients_;
};

}  // namespace filetimer::examples
