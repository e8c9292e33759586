// The all-reduce of the example: rank 0 reads every other rank's numbers, and writes the mean back.
// Plain blocking pipes: a rank that hangs keeps all the others waiting in mean_over_ranks(), as a
// collective does in real training. A rank that died closes its pipes, which the others notice.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer::examples {

class Exchange {
 public:
  // The launcher's side: one Exchange for each rank, connected. Their descriptors are
  // close-on-exec until inherit() is called.
  static Result<std::vector<Exchange>> make(int ranks);

  // Makes the next program inherit this rank's pipes. Returns the text for from_text() in that
  // program. Called in the child between fork and exec.
  [[nodiscard]] std::string inherit() const;
  static Result<Exchange> from_text(int rank, const std::string& text);

  // Replaces `numbers` by their mean over all ranks. Every rank gets the same bits. Waits for the
  // slowest rank. An error names the rank that is gone.
  Status mean_over_ranks(std::span<float> numbers);

 private:
  struct Peer {
    int rank = 0;
    UniqueFd in;
    UniqueFd out;
  };
  static Status receive(const Peer& peer, std::span<float> numbers);
  static Status send(const Peer& peer, std::span<const float> numbers);

  int rank_ = 0;
  std::vector<Peer> peers_;  // rank 0: all others in order; the others: rank 0
};

}  // namespace filetimer::examples
