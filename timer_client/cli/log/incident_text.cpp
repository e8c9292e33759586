// Workers, scopes and evidence as text, for the pages of `show` and `dump` and for the report.
// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kRangesListed = 16;  // every second rank of many would fill the page

// --- evidence ---

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

// Where a thread or a process is.
struct ThreadPlace {
  std::string doing{};
  std::vector<std::string> kernel_stack{};
  std::vector<std::string> frames{};
  friend auto operator<=>(const ThreadPlace&, const ThreadPlace&) = default;
};
struct PlacedThread {
  std::string name;
  ThreadPlace place;
};

// Adds those that were placed under a heading, or nothing if there are none. A pool of 60 threads
// that waits for work is one item. The names come after `prefix`.
void add_placed(Page& page, std::string_view title, const std::string& prefix,
                const std::vector<PlacedThread>& all) {
  if (!all.empty()) {
    page.heading(title);
  }
  for (const std::vector<PlacedThread>& group : grouped(all, &PlacedThread::place)) {
    const std::vector<std::string> names = mapped(group, &PlacedThread::name);
    const ThreadPlace& place = group[0].place;
    page.item(2, prefix + joined({listed(names, kThreadsNamed), place.doing}, " "));
    page.item(4, kernel_stack_text(place.kernel_stack));
    add_frames(page, 4, place.frames);
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
  std::vector<PlacedThread> all;
  for (const dom::object each : objects_at(evidence, key)) {
    ThreadPlace place{.doing = doing_of(each, each),
                      .kernel_stack = texts_at(each, "stack"),
                      .frames = texts_at(each, "native_stack")};
    all.push_back({number_text(integer_at(each, number)), place});
    for (const dom::object others : objects_at(each, "same_stack")) {
      place.doing = doing_of(others, each);
      for (const dom::element tid : elements_at(others, "tids")) {
        all.push_back({number_text(value_as<std::int64_t>(tid)), place});
      }
    }
  }
  add_placed(page, title, "", all);
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
  page.item(indent, workers_text(mapped(stacks, &MainStack::worker)));
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
  auto sorted = mapped(branches, [](const auto& branch) { return branch.second; });
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

std::string worker_text(const WorkerName& worker) {
  const std::string process = worker.pid ? fmt::format("pid {}", *worker.pid) : "";
  const std::string rank = worker.rank ? fmt::format("rank {}", *worker.rank) : "";
  const std::string& what = rank.empty() ? process : rank;
  const std::string more = joined({rank.empty() ? "" : process, worker.comm});
  const std::string text = what.empty()   ? (more.empty() ? "a worker" : more)
                           : more.empty() ? what
                                          : fmt::format("{} ({})", what, more);
  return worker.host.empty() ? text : fmt::format("{} on {}", text, worker.host);
}

std::string workers_text(const std::vector<WorkerName>& workers) {
  std::vector<std::int64_t> ranks;
  for (const WorkerName& worker : workers) {
    if (worker.rank) {
      ranks.push_back(*worker.rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> texts;
  std::size_t named = 0;
  for (std::size_t begin = 0; begin < ranks.size() && texts.size() < kRangesListed;) {
    std::size_t last = begin;
    while (last + 1 < ranks.size() && ranks[last] < ranks[last + 1] &&
           ranks[last] + 1 == ranks[last + 1]) {
      ++last;
    }
    if (last - begin < 2) {  // two neighbours read better one by one
      last = begin;
    }
    texts.push_back(last == begin ? fmt::format("{}", ranks[begin])
                                  : fmt::format("{}-{}", ranks[begin], ranks[last]));
    begin = last + 1;
    named = begin;
  }
  if (!texts.empty()) {
    texts[0].insert(0, ranks.size() == 1 ? "rank " : "ranks ");
  }
  for (const WorkerName& worker : workers) {
    if (!worker.rank && texts.size() < kRangesListed) {
      texts.push_back(worker_text(worker));
      ++named;
    }
  }
  return fmt::format(
      "{}{}", fmt::join(texts, ", "),
      named < workers.size() ? fmt::format(" and {} more", workers.size() - named) : "");
}

std::string signal_text(dom::object sent) {
  const std::string name = text_at(sent, "name");
  const Integer number = integer_at(sent, "signal");
  return name.empty() && number ? fmt::format("signal {}", *number) : name;
}

std::string times_text(const Scope& scope) {
  if (scope.kind == Scope::Kind::kEnded) {
    return seconds_text(scope.end_s - scope.begin_s);
  }
  const std::string elapsed = seconds_text(std::min(scope.known_s, scope.end_s) - scope.begin_s);
  return joined({scope.timeout_s ? fmt::format("{} of {}", elapsed, seconds_text(*scope.timeout_s))
                                 : elapsed + ", no deadline",
                 scope.is_paused ? "paused" : ""});
}

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
  std::vector<std::string> functions =
      mapped(frames, [](const std::string& frame) { return frame.substr(0, frame.find('+')); });
  if (functions.size() > kKernelFramesShown) {
    functions.resize(kKernelFramesShown);
    functions.push_back(fmt::format("... {} more", frames.size() - kKernelFramesShown));
  }
  return joined(functions, " < ");
}

void add_python_stacks(Page& page, dom::object evidence) {
  std::vector<PlacedThread> all;
  for (const dom::object thread : objects_at(evidence, "python_threads")) {
    std::vector<dom::object> same = objects_at(thread, "same_stack");
    same.insert(same.begin(), thread);
    for (const dom::object each : same) {
      const std::string name = text_at(each, "name");
      all.push_back(
          {name.empty() ? text_at(each, "ident") : name, {.frames = texts_at(thread, "frames")}});
    }
  }
  if (!all.empty()) {
    add_placed(page, "Python stacks (the most recent call first)", "thread ", all);
    add_omitted(page, evidence, "python_threads_omitted");
  }
}

void add_threads_and_children(Page& page, dom::object evidence) {
  add_processes(page, "Threads", "tid", "threads", evidence);
  add_omitted(page, evidence, "threads_omitted");
  add_processes(page, "Children", "pid", "children", evidence);
}

void add_merged_stacks(Page& page, const Incident& incident) {
  std::vector<MainStack> python;
  std::vector<MainStack> native;
  for (const Worker& worker : incident.workers) {
    if (const auto evidence = parse_record(worker.evidence)) {
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
