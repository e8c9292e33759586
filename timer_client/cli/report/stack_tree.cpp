// SPDX-License-Identifier: MIT
#include "timer_client/cli/report/stack_tree.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "timer_client/cli/report/html.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kFrameCharacters = 200;
// The innermost frames say where a stack is; the server's records have at most 128.
constexpr std::size_t kMaxFrames = 256;

void sort_by_count(std::vector<StackTree::Node>& nodes) {
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const auto& a, const auto& b) { return a.count() < b.count(); });
  for (StackTree::Node& node : nodes) {
    sort_by_count(node.calls);
  }
}

void write_node(const StackTree::Node& node, std::string_view counted_as, std::string& html);

void write_nodes(const std::vector<StackTree::Node>& nodes, std::string_view counted_as,
                 std::string& html) {
  html += "<ul>";
  for (const StackTree::Node& node : nodes) {
    write_node(node, counted_as, html);
  }
  html += "</ul>\n";
}

void write_node(const StackTree::Node& first, std::string_view counted_as, std::string& html) {
  html += "<li>";
  // Calls that all workers here have in common need no list of their own.
  const StackTree::Node* node = &first;
  for (;;) {
    html += fmt::format("<code>{}</code>", html_text(node->frame, kFrameCharacters));
    if (node->calls.size() != 1 || !node->workers.empty()) {
      break;
    }
    html += "<br>";
    node = &node->calls[0];
  }
  if (!node->workers.empty()) {
    html += fmt::format(" <strong>{}</strong>", html_text(workers_text(node->workers)));
  }
  if (node->calls.size() > 1) {
    html += fmt::format(" <small>{}</small>", counted(node->count(), counted_as));
  }
  if (!node->calls.empty()) {
    write_nodes(node->calls, counted_as, html);
  }
  html += "</li>";
}

}  // namespace

std::size_t StackTree::Node::count() const {
  std::size_t count = workers.size();
  for (const Node& call : calls) {
    count += call.count();
  }
  return count;
}

void StackTree::add(const WorkerName& worker, const std::vector<std::string>& frames) {
  std::vector<Node>* calls = &roots_;
  Node* last = nullptr;
  const std::size_t omitted = frames.size() - std::min(frames.size(), kMaxFrames);
  for (std::size_t i = omitted; i < frames.size(); ++i) {
    const std::string& frame = frames[i];
    auto at = std::find_if(calls->begin(), calls->end(),
                           [&](const Node& node) { return node.frame == frame; });
    if (at == calls->end()) {
      calls->push_back({frame, {}, {}});
      at = calls->end() - 1;
    }
    last = &*at;
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

std::string html_of(const StackTree& tree, std::string_view counted_as) {
  std::string html = "<div class=tree>";
  write_nodes(tree.sorted(), counted_as, html);
  return html + "</div>\n";
}

}  // namespace filetimer::cli
