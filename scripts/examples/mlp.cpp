// SPDX-License-Identifier: MIT
#include "mlp.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

namespace filetimer::examples {
namespace {

constexpr std::size_t kHidden = 32;
// The layout of a layer in the array: one row of weights for each of its outputs, then its biases.
constexpr std::size_t kHiddenWeights = 0;
constexpr std::size_t kHiddenBiases = kHiddenWeights + kHidden * kPixels;
constexpr std::size_t kOutWeights = kHiddenBiases + kHidden;
constexpr std::size_t kOutBiases = kOutWeights + kClasses * kHidden;
constexpr std::size_t kParameters = kOutBiases + kClasses;

// out = weights * in + biases
void affine(const float* weights, const float* biases, std::span<const float> in,
            std::span<float> out) {
  for (std::size_t row = 0; row < out.size(); ++row) {
    out[row] = std::inner_product(in.begin(), in.end(), weights + row * in.size(), biases[row]);
  }
}

// Adds to the gradients of a layer, given the derivative of the loss by each of its outputs.
void add_affine_gradients(std::span<const float> in, std::span<const float> slope, float* weights,
                          float* biases) {
  for (std::size_t row = 0; row < slope.size(); ++row) {
    biases[row] += slope[row];
    float* const weights_row = weights + row * in.size();
    for (std::size_t column = 0; column < in.size(); ++column) {
      weights_row[column] += slope[row] * in[column];
    }
  }
}

void softmax(std::span<float> values) {
  const float largest = *std::max_element(values.begin(), values.end());
  float sum = 0;
  for (float& value : values) {
    value = std::exp(value - largest);  // from 0 to 1, whatever the values: no overflow
    sum += value;
  }
  for (float& value : values) {
    value /= sum;
  }
}

}  // namespace

struct Mlp::Activations {
  std::array<float, kHidden> hidden{};
  std::array<float, kClasses> probability{};
};

Mlp::Mlp(std::uint32_t seed) : parameters_(kParameters), gradients_(kParameters) {
  std::mt19937 random(seed);
  const auto fill = [&](std::size_t first, std::size_t count, std::size_t inputs) {
    const float widest = std::sqrt(6.0F / static_cast<float>(inputs));  // He et al., for ReLU
    std::uniform_real_distribution<float> weight(-widest, widest);
    std::generate_n(parameters_.begin() + static_cast<std::ptrdiff_t>(first), count,
                    [&] { return weight(random); });
  };
  fill(kHiddenWeights, kHidden * kPixels, kPixels);
  fill(kOutWeights, kClasses * kHidden, kHidden);
}

void Mlp::forward(const Digit& digit, Activations& out) const {
  const float* const p = parameters_.data();
  affine(p + kHiddenWeights, p + kHiddenBiases, digit.pixels, out.hidden);
  for (float& value : out.hidden) {
    value = std::max(value, 0.0F);
  }
  affine(p + kOutWeights, p + kOutBiases, out.hidden, out.probability);
  softmax(out.probability);
}

float Mlp::forward_backward(std::span<const Digit> batch) {
  std::fill(gradients_.begin(), gradients_.end(), 0.0F);
  float* const g = gradients_.data();
  const float share = 1.0F / static_cast<float>(batch.size());
  float loss = 0;
  Activations layers;
  for (const Digit& digit : batch) {
    forward(digit, layers);
    loss -= std::log(std::max(layers.probability[digit.label], 1e-9F)) * share;

    std::array<float, kClasses> out_slope = layers.probability;
    out_slope[digit.label] -= 1;
    for (float& slope : out_slope) {
      slope *= share;
    }
    add_affine_gradients(layers.hidden, out_slope, g + kOutWeights, g + kOutBiases);

    std::array<float, kHidden> hidden_slope{};
    for (std::size_t unit = 0; unit < kHidden; ++unit) {
      if (layers.hidden[unit] <= 0) {
        continue;  // ReLU passes nothing back here
      }
      for (std::size_t c = 0; c < kClasses; ++c) {
        hidden_slope[unit] += out_slope[c] * parameters_[kOutWeights + c * kHidden + unit];
      }
    }
    add_affine_gradients(digit.pixels, hidden_slope, g + kHiddenWeights, g + kHiddenBiases);
  }
  return loss;
}

void Mlp::step(float learning_rate) {
  std::transform(parameters_.begin(), parameters_.end(), gradients_.begin(), parameters_.begin(),
                 [=](float value, float slope) { return value - learning_rate * slope; });
}

double Mlp::accuracy(std::span<const Digit> digits) const {
  Activations layers;
  const auto recognised = std::count_if(digits.begin(), digits.end(), [&](const Digit& digit) {
    forward(digit, layers);
    const auto& p = layers.probability;
    return std::max_element(p.begin(), p.end()) - p.begin() == digit.label;
  });
  return static_cast<double>(recognised) / static_cast<double>(digits.size());
}

}  // namespace filetimer::examples
