// A small training job with a deadline on each of its phases: data-parallel gradient descent over
// handwritten digits, in N processes of this host that exchange gradients after every batch.
//
//   timer_server -- digits_trainer --ranks 4 --timeout 2s --hang 2:20
//
// makes rank 2 hang in step 20. The other ranks then wait for it in `exchange`, as in real
// training, until the server kills rank 2 for its `forward` scope.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filetimer/timer_client.hpp>
#include <random>
#include <vector>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "digits.hpp"
#include "launcher.hpp"
#include "mlp.hpp"
#include "options.hpp"

namespace filetimer::examples {
namespace {

constexpr std::size_t kBatch = 32;  // for each rank
constexpr float kLearningRate = 0.5F;
constexpr int kStepsBetweenReports = 50;

// Hangs as after a lost message: in a read that never returns.
[[noreturn]] void hang() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) == 0) {
    char byte = 0;
    [[maybe_unused]] const auto never =
        ::read(ends[0], &byte, 1);  // this process has both ends, so there is no end of file
  }
  ::pause();
  std::abort();
}

class Trainer {
 public:
  Trainer(const Options& options, Rank self)
      : options_(options), self_(std::move(self)), client_(connect()), random_(seed()) {}

  Status train() {
    {
      auto scope = client_.expires(options_.timeout, "load");
      auto digits = load_digits(options_.data, options_.seed);
      if (!digits) {
        return tl::unexpected(digits.error());
      }
      digits_ = std::move(*digits);
    }
    const auto started = std::chrono::steady_clock::now();
    for (int step = 1; step <= options_.steps; ++step) {
      if (auto trained = train_step(step); !trained) {
        trained.error().message += fmt::format(", in step {}", step);
        return trained;
      }
    }
    if (self_.rank == 0) {
      const auto took = std::chrono::steady_clock::now() - started;
      fmt::print("accuracy {:.3f} on {} held-out digits, after {} steps of {} ranks in {}\n",
                 model_.accuracy(digits_.held_out), digits_.held_out.size(), options_.steps,
                 self_.world_size, duration_for_reading(took));
    }
    return {};
  }

 private:
  Status train_step(int step) {
    {
      auto scope = client_.expires(options_.timeout, "load");
      load_batch();
    }
    {
      auto scope = client_.expires(options_.timeout, "forward");
      if (self_.rank == options_.hang.rank && step == options_.hang.step) {
        fmt::print(stderr, "digits_trainer: rank {} (pid {}) hangs in forward, step {}\n",
                   self_.rank, ::getpid(), step);
        hang();
      }
      report(step, model_.forward_backward(batch_));
    }
    {
      // Here a rank waits for the slowest one's `forward`. With twice the time, the scope of the
      // rank that hangs expires first, and not those of the ranks that wait for it.
      auto scope = client_.expires(std::min(2 * options_.timeout, kMaxTimeout), "exchange");
      if (auto exchanged = self_.exchange.mean_over_ranks(model_.gradients()); !exchanged) {
        return exchanged;
      }
    }
    auto scope = client_.expires(options_.timeout, "step");
    model_.step(kLearningRate);
    return {};
  }

  // Random digits of this rank's share: every world_size-th row.
  void load_batch() {
    const auto ranks = static_cast<std::size_t>(self_.world_size);
    const auto first = static_cast<std::size_t>(self_.rank);
    const std::size_t share = digits_.training.size() / ranks;
    batch_.clear();
    while (batch_.size() < kBatch) {
      batch_.push_back(digits_.training[first + ranks * (random_() % share)]);
    }
  }

  void report(int step, float loss) const {
    if (self_.rank == 0 && (step == 1 || step % kStepsBetweenReports == 0)) {
      fmt::print("step {:4}  loss {:.3f}\n", step, loss);
      std::fflush(stdout);
    }
  }

  [[nodiscard]] TimerClient connect() const {
    TimerClient client = TimerClient::connect();
    if (self_.rank == 0 && !client.is_watched()) {
      fmt::print(stderr, "digits_trainer: running unwatched\n");
    }
    return client;
  }

  // Each rank draws other batches, from the same seed.
  [[nodiscard]] std::uint32_t seed() const {
    return options_.seed * kMostRanks + static_cast<std::uint32_t>(self_.rank);
  }

  const Options& options_;
  Rank self_;
  TimerClient client_;
  std::mt19937 random_;
  Digits digits_;
  std::vector<Digit> batch_;
  Mlp model_{options_.seed};
};

int be_rank(const Options& options, Rank self) {
  ::signal(SIGPIPE, SIG_IGN);  // so that write() fails if a peer has died
  const int rank = self.rank;
  try {
    Trainer trainer(options, std::move(self));
    if (auto trained = trainer.train(); !trained) {
      fmt::print(stderr, "digits_trainer: rank {}: {}\n", rank, trained.error().message);
      return EXIT_FAILURE;
    }
  } catch (const TimerError& error) {
    fmt::print(stderr, "digits_trainer: rank {}: {}\n", rank, error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

int be_launcher(const Options& options, char* const* argv) {
  const auto all_well = launch(options.ranks, argv);
  if (!all_well) {
    fmt::print(stderr, "digits_trainer: {}\n", all_well.error().message);
    return EXIT_FAILURE;
  }
  if (!*all_well) {
    fmt::print(stderr, "digits_trainer: the training failed\n");
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

int run(int argc, char** argv) {
  Options options;
  if (const auto status = parse_options(argc, argv, options)) {
    return *status;
  }
  auto self = this_rank();
  if (!self) {
    fmt::print(stderr, "digits_trainer: {}\n", self.error().message);
    return EXIT_FAILURE;
  }
  return *self ? be_rank(options, std::move(**self)) : be_launcher(options, argv);
}

}  // namespace
}  // namespace filetimer::examples

int main(int argc, char** argv) {
  return filetimer::examples::run(argc, argv);
}
