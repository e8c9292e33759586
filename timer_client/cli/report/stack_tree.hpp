// The stacks of many workers as one tree: what they have in common is there once, and each branch
// ends at the workers that are there.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "timer_client/cli/log/incident.hpp"

namespace filetimer::cli {

class StackTree {
 public:
  // A call, and the calls that it has made in some of the stacks.
  struct Node {
    std::string frame;
    std::vector<Node> calls{};
    std::vector<WorkerName> workers{};  // whose stack ends here
    std::size_t count = 0;              // of the workers here and below
  };

  // Adds a stack, the innermost frame first.
  void add(const WorkerName& worker, const std::vector<std::string>& frames);

  // Returns the outermost frames. The calls of each are in the order of the number of workers, the
  // fewest first: the worker that is elsewhere is on top.
  [[nodiscard]] std::vector<Node> sorted() const;
  [[nodiscard]] bool is_empty() const { return roots_.empty(); }

 private:
  std::vector<Node> roots_;
};

// Returns the tree as nested lists of HTML, with the names of the workers `odd` in red.
// A call with very many branches has those with the fewest workers and the one with the most; of a
// tree with very many calls the rest is counted.
std::string html_of(const StackTree& tree, const std::vector<WorkerName>& odd);

}  // namespace filetimer::cli
