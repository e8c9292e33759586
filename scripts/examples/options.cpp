// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "common/duration_text.hpp"

namespace filetimer::examples {
namespace {

constexpr int kUsageError = 2;

// Parses "2:20" as rank 2, step 20. Returns nothing for another form.
std::optional<HangAt> parse_hang(const std::string& text) {
  HangAt at;
  const char* const last = text.data() + text.size();
  const auto [colon, rank_error] = std::from_chars(text.data(), last, at.rank);
  if (rank_error != std::errc{} || colon == last || *colon != ':') {
    return std::nullopt;
  }
  const auto [end, step_error] = std::from_chars(colon + 1, last, at.step);
  return step_error == std::errc{} && end == last ? std::optional(at) : std::nullopt;
}

// Beside the program when both were moved together, else where the source was built.
std::string default_data_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path() / "digits.csv";
  return !error && std::filesystem::exists(beside, error) ? beside.string() : DIGITS_CSV;
}

}  // namespace

std::optional<int> parse_options(int argc, const char* const* argv, Options& options) {
  options.data = default_data_path();
  CLI::App app{"Trains a small network on handwritten digits, each phase in a filetimer scope."};
  app.add_option("--ranks", options.ranks, "processes that share the work")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "batches for each of them")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the split, the weights and the batches")
      ->capture_default_str();
  std::string timeout = duration_text(options.timeout);
  app.add_option("--timeout", timeout, "of each phase; exchange gets twice as much")
      ->capture_default_str();
  std::string hang;
  app.add_option("--hang", hang, "RANK:STEP: this rank hangs in this step, counted from 1");
  app.add_option("--data", options.data, "the digits, as CSV")->capture_default_str();
  try {
    app.parse(argc, argv);
    const auto parsed = parse_duration(timeout);
    if (!parsed) {
      throw CLI::ValidationError("--timeout", parsed.error().message);
    }
    options.timeout = *parsed;
    if (!hang.empty()) {
      const auto at = parse_hang(hang);
      if (!at || at->rank < 0 || at->rank >= options.ranks || at->step < 1 ||
          at->step > options.steps) {
        throw CLI::ValidationError(
            "--hang", fmt::format("'{}' is not RANK:STEP with a rank from 0 to {} and a step "
                                  "from 1 to {}",
                                  hang, options.ranks - 1, options.steps));
      }
      options.hang = *at;
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  return std::nullopt;
}

}  // namespace filetimer::examples
