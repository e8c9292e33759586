// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/stack_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kFrameCharacters = 200;
// The innermost frames say where a stack is; the server's records have at most 128.
constexpr std::size_t kMaxFrames = 256;
constexpr std::size_t kMostBranches = 16;  // of one call
constexpr std::size_t kMostCalls = 1000;   // of a tree; each has about 100 bytes

void sort_by_count(std::vector<StackTree::Node>& nodes) {
  std::ranges::stable_sort(nodes, {}, &StackTree::Node::count);
  for (StackTree::Node& node : nodes) {
    sort_by_count(node.calls);
  }
}

class TreeWriter {
 public:
  explicit TreeWriter(const std::vector<WorkerName>& odd) : odd_(odd) {}

  std::string html(const std::vector<StackTree::Node>& roots) {
    html_ = "<div class=tree>";
    add_all(roots);
    return std::move(html_) + "</div>\n";
  }

 private:
  void add_all(const std::vector<StackTree::Node>& nodes) {
    html_ += "<ul>";
    const std::size_t shown = nodes.size() <= kMostBranches ? nodes.size() : kMostBranches - 1;
    for (std::size_t i = 0; i < shown; ++i) {
      add(nodes[i]);
    }
    if (shown < nodes.size()) {
      std::size_t stacks = 0;
      for (std::size_t i = shown; i + 1 < nodes.size(); ++i) {
        stacks += nodes[i].count;
      }
      html_ += fmt::format("<li><small>{} in {} other branches</small></li>",
                           counted(stacks, "worker"), nodes.size() - 1 - shown);
      add(nodes.back());
    }
    html_ += "</ul>\n";
  }

  void add(const StackTree::Node& first) {
    html_ += "<li>";
    // Calls that all workers here have in common need no list of their own.
    const StackTree::Node* node = &first;
    for (;;) {
      if (calls_ == kMostCalls) {
        html_ += fmt::format("<small>{} further in</small></li>", counted(node->count, "worker"));
        return;
      }
      ++calls_;
      html_ += fmt::format("<code>{}</code>", html_text(node->frame, kFrameCharacters));
      if (node->calls.size() != 1 || !node->workers.empty()) {
        break;
      }
      html_ += "<br>";
      node = &node->calls[0];
    }
    if (!node->workers.empty()) {
      const bool is_odd = std::ranges::all_of(
          node->workers, [&](const WorkerName& worker) { return is_among(odd_, worker); });
      html_ += fmt::format(" <strong{}>{}</strong>", is_odd ? " class=odd" : "",
                           html_text(workers_text(node->workers)));
    }
    if (node->calls.size() > 1) {
      html_ += fmt::format(" <small>{}</small>", counted(node->count, "worker"));
    }
    if (!node->calls.empty()) {
      add_all(node->calls);
    }
    html_ += "</li>";
  }

  const std::vector<WorkerName>& odd_;
  std::string html_;
  std::size_t calls_ = 0;
};

}  // namespace

void StackTree::add(const WorkerName& worker, const std::vector<std::string>& frames) {
  std::vector<Node>* calls = &roots_;
  Node* last = nullptr;
  for (std::size_t i = std::min(frames.size(), kMaxFrames); i > 0; --i) {
    const std::string& frame = frames[i - 1];
    auto at = std::find_if(calls->begin(), calls->end(),
                           [&](const Node& node) { return node.frame == frame; });
    if (at == calls->end()) {
      calls->push_back({.frame = frame});
      at = calls->end() - 1;
    }
    last = &*at;
    ++last->count;
    calls = &last->calls;
  }
  if (last != nullptr) {
    last->workers.push_back(worker);
  }
}

std::vector<StackTree::Node> StackTree::sorted() const {
  std::vector<Node> roots = roots_;
  sort_by_count(roots);
  return roots;
}

std::string html_of(const StackTree& tree, const std::vector<WorkerName>& odd) {
  return TreeWriter(odd).html(tree.sorted());
}

}  // namespace filetimer::cli
