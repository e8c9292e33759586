// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/evidence_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

// The innermost frames of a stack show where the thread hangs. The whole stack is in the JSON.
constexpr std::size_t kKernelFramesShown = 16;
constexpr std::size_t kFramesShown = 24;
constexpr std::size_t kThreadsNamed = 8;
constexpr std::size_t kBranchesShown = 8;   // of one call
constexpr std::size_t kDeepestBranch = 40;  // what is deeper is not moved to the right

// Adds one line for each frame: names of C++ and Python are long, and followed by a place.
void add_frames(Page& page, std::size_t indent, const std::vector<std::string>& frames) {
  for (std::size_t i = 0; i < std::min(frames.size(), kFramesShown); ++i) {
    page.item(indent, frames[i]);
  }
  if (frames.size() > kFramesShown) {
    page.item(indent, fmt::format("... {} more", frames.size() - kFramesShown));
  }
}

// Threads or processes in the same place.
struct PlaceGroup {
  std::vector<std::string> names{};
  std::string doing{};
  std::vector<std::string> kernel_stack{};
  std::vector<std::string> frames{};
};

// A pool of 60 threads that waits for work is one group.
void add_to_groups(PlaceGroup one, std::vector<PlaceGroup>& groups) {
  const auto same = std::ranges::find_if(groups, [&](const PlaceGroup& group) {
    return group.doing == one.doing && group.kernel_stack == one.kernel_stack &&
           group.frames == one.frames;
  });
  if (same == groups.end()) {
    groups.push_back(std::move(one));
    return;
  }
  std::ranges::move(one.names, std::back_inserter(same->names));
}

// Adds the groups under a heading, or nothing if there are none. Their names come after `prefix`.
void add_named_groups(Page& page, std::string_view title, const std::string& prefix,
                      const std::vector<PlaceGroup>& groups) {
  if (!groups.empty()) {
    page.heading(title);
  }
  for (const PlaceGroup& group : groups) {
    page.item(2, prefix + joined({listed(group.names, kThreadsNamed), group.doing}, " "));
    page.item(4, kernel_stack_text(group.kernel_stack));
    add_frames(page, 4, group.frames);
  }
}

// Returns what the thread does. The thread `first` has what this one leaves out, because it is the
// same.
std::string doing_of(dom::object thread, dom::object first) {
  const std::string own = text_at(thread, "doing");
  const std::string doing = own.empty() ? text_at(first, "doing") : own;
  const std::string state = joined({text_at(first, "state"), text_at(first, "wchan")}, " in ");
  const std::string file = text_at(thread, "syscall_fd");
  return joined({text_at(thread, "comm"), doing.empty() ? state : doing,
                 file.empty() ? "" : fmt::format("{} on {}", text_at(first, "syscall"), file)});
}

void add_omitted(Page& page, dom::object evidence, const char* key) {
  if (const std::int64_t count = count_at(evidence, key); count > 0) {
    page.item(2, counted(count, "more thread") + " did not fit into the record");
  }
}

// Adds the threads or the processes of the list `key`, whose numbers are `number`.
void add_processes(Page& page, std::string_view title, const char* number, const char* key,
                   dom::object evidence) {
  std::vector<PlaceGroup> groups;
  for (const dom::object each : objects_at(evidence, key)) {
    PlaceGroup thread{.names = {number_text(integer_at(each, number))},
                      .doing = doing_of(each, each),
                      .kernel_stack = texts_at(each, "stack"),
                      .frames = texts_at(each, "native_stack")};
    add_to_groups(thread, groups);
    for (const dom::object others : objects_at(each, "same_stack")) {
      thread.doing = doing_of(others, each);
      for (const dom::element tid : elements_at(others, "tids")) {
        thread.names = {number_text(as_integer(tid))};
        add_to_groups(thread, groups);
      }
    }
  }
  add_named_groups(page, title, "", groups);
}

// --- the stacks of many workers as one tree ---

struct MainStack {
  WorkerName worker;
  std::vector<std::string> frames;  // the innermost first

  // Returns the call so many below the outermost one; empty: the stack has ended.
  [[nodiscard]] std::string_view at(std::size_t depth) const {
    return depth < frames.size() ? std::string_view(frames[frames.size() - 1 - depth]) : "";
  }
};
using Stacks = std::vector<const MainStack*>;

// Adds the workers of stacks that are one down to `depth`, the calls that they have in common from
// there on, and then a branch for each other call, the fewest workers first: the worker that is
// elsewhere is on top.
void add_branch(Page& page, std::size_t indent, const Stacks& stacks, std::size_t depth) {
  std::vector<WorkerName> workers;
  for (const MainStack* const stack : stacks) {
    workers.push_back(stack->worker);
  }
  page.item(indent, workers_text(workers));
  std::map<std::string_view, Stacks> branches;
  for (;; ++depth) {
    branches.clear();
    for (const MainStack* const stack : stacks) {
      branches[stack->at(depth)].push_back(stack);
    }
    if (branches.size() > 1) {
      break;
    }
    if (branches.begin()->first.empty()) {
      return;
    }
    page.item(indent + 2, branches.begin()->first);
  }
  std::vector<Stacks> sorted;
  for (auto& [call, in_it] : branches) {
    sorted.push_back(std::move(in_it));
  }
  std::ranges::stable_sort(sorted, {}, &Stacks::size);
  std::size_t left_out = 0;  // workers
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i + 1 < kBranchesShown || i + 1 == sorted.size()) {
      add_branch(page, std::min(indent + 2, kDeepestBranch), sorted[i], depth);
    } else {
      left_out += sorted[i].size();
    }
  }
  if (left_out > 0) {
    page.item(indent + 2, fmt::format("and {} more in {} other places", left_out,
                                      sorted.size() - kBranchesShown));
  }
}

}  // namespace

std::vector<std::string> python_frames_of_main_thread(dom::object evidence) {
  std::vector<std::string> frames;
  for (const dom::object thread : objects_at(evidence, "python_threads")) {
    if (frames.empty() || flag_at(thread, "current")) {
      frames = texts_at(thread, "frames");
    }
  }
  return frames;
}

std::vector<std::string> native_frames_of_main_thread(dom::object evidence) {
  const std::vector<dom::object> threads = objects_at(evidence, "threads");
  std::vector<std::string> frames;
  if (!threads.empty()) {
    frames = texts_at(threads[0], "native_stack");
  }
  for (std::string& frame : frames) {
    const std::size_t plus = std::min(frame.find("+0x"), frame.size());
    if (const std::size_t space = frame.find(' ', plus); space != frame.npos) {
      frame.erase(plus, space - plus);
    }
  }
  return frames;
}

std::string kernel_stack_text(const std::vector<std::string>& frames) {
  std::vector<std::string> functions;
  for (const std::string& frame : frames) {
    functions.push_back(frame.substr(0, frame.find('+')));
  }
  if (functions.size() > kKernelFramesShown) {
    functions.resize(kKernelFramesShown);
    functions.push_back(fmt::format("... {} more", frames.size() - kKernelFramesShown));
  }
  return joined(functions, " < ");
}

void add_python_stacks(Page& page, dom::object evidence) {
  std::vector<PlaceGroup> groups;
  for (const dom::object thread : objects_at(evidence, "python_threads")) {
    std::vector<dom::object> all = objects_at(thread, "same_stack");
    all.insert(all.begin(), thread);
    for (const dom::object each : all) {
      const std::string name = text_at(each, "name");
      add_to_groups({.names = {name.empty() ? text_at(each, "ident") : name},
                     .frames = texts_at(thread, "frames")},
                    groups);
    }
  }
  if (!groups.empty()) {
    add_named_groups(page, "Python stacks (the most recent call first)", "thread ", groups);
    add_omitted(page, evidence, "python_threads_omitted");
  }
}

void add_threads(Page& page, dom::object evidence) {
  add_processes(page, "Threads", "tid", "threads", evidence);
  add_omitted(page, evidence, "threads_omitted");
}

void add_children(Page& page, dom::object evidence) {
  add_processes(page, "Children", "pid", "children", evidence);
}

void add_merged_stacks(Page& page, const Incident& incident) {
  std::vector<MainStack> python;
  std::vector<MainStack> native;
  dom::parser parser;
  for (const Worker& worker : incident.workers) {
    const auto evidence =
        worker.evidence.empty() ? std::nullopt : parse_record(parser, worker.evidence);
    if (evidence) {
      python.push_back({worker.name, python_frames_of_main_thread(evidence->fields)});
      native.push_back({worker.name, native_frames_of_main_thread(evidence->fields)});
      // Without frames: what the worker does, or why there are none.
      for (const char* const key : {"doing", "missing"}) {
        if (std::string text = evidence->text(key);
            python.back().frames.empty() && native.back().frames.empty() && !text.empty()) {
          native.back().frames.push_back(std::move(text));
        }
      }
    }
  }
  for (const auto& [title, stacks] :
       {std::pair("Merged Python stacks", &python), {"Merged stacks", &native}}) {
    Stacks known;
    for (const MainStack& stack : *stacks) {
      if (!stack.frames.empty()) {
        known.push_back(&stack);
      }
    }
    // What is known of the worker that is shown alone is in its evidence.
    const bool is_of_shown =
        known.size() == 1 && is_among({incident.shown.worker}, known[0]->worker);
    if (!known.empty() && !is_of_shown) {
      page.heading(fmt::format("{} of main threads (the outermost call first)", title));
      add_branch(page, 2, known, 0);
    }
  }
}

}  // namespace filetimer::cli
