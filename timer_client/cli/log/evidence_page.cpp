// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/evidence_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "timer_client/cli/text/phrases.hpp"
#include "timer_client/cli/text/record_time.hpp"

namespace filetimer::cli {
namespace {

// Of a stack the innermost frames say where it hangs. The whole of it is in the record.
constexpr std::size_t kKernelFramesShown = 16;
constexpr std::size_t kFramesShown = 24;
constexpr std::size_t kNamesShown = 8;

std::string size_text(double bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  return bytes >= 1024 * kMiB   ? fmt::format("{:.3g} GiB", bytes / (1024 * kMiB))
         : bytes >= 1000 * 1024 ? fmt::format("{:.3g} MiB", bytes / kMiB)
                                : fmt::format("{:.3g} KiB", bytes / 1024);
}

std::string call_text(const std::string& syscall, const std::string& descriptor) {
  return descriptor.empty() ? syscall : fmt::format("{} on {}", syscall, descriptor);
}

// "do_wait+0x8c/0x100" -> "do_wait"
std::string function_of(const std::string& frame) {
  return frame.substr(0, frame.find('+'));
}

// A line a frame: names of C++ and Python are long, and followed by a place.
void add_frames(Page& page, std::size_t indent, const std::vector<std::string>& frames) {
  const std::size_t shown = std::min(frames.size(), kFramesShown);
  for (std::size_t i = 0; i < shown; ++i) {
    page.item(indent, frames[i]);
  }
  if (frames.size() > shown) {
    page.item(indent, fmt::format("... {} more", frames.size() - shown));
  }
}

using ThreadGroup = std::vector<const ThreadEvidence*>;

// Threads in the same place are told once: a pool of 60 that waits for work is one line.
std::vector<ThreadGroup> by_place(const std::vector<ThreadEvidence>& threads) {
  const auto place = [](const ThreadEvidence& t) {
    return std::tie(t.comm, t.state, t.wchan, t.syscall, t.syscall_fd, t.doing, t.kernel_stack,
                    t.native_stack);
  };
  std::vector<ThreadGroup> groups;
  for (const ThreadEvidence& thread : threads) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return place(*group.front()) == place(thread);
    });
    if (same == groups.end()) {
      groups.push_back({&thread});
    } else {
      same->push_back(&thread);
    }
  }
  return groups;
}

// What it does, in the record's own words where it has some.
std::string doing_text(const ThreadEvidence& thread, const Number& cpu_percent) {
  if (!thread.doing.empty()) {
    // The call itself adds something where it says on what.
    return joined({thread.doing,
                   thread.syscall_fd.empty() ? "" : call_text(thread.syscall, thread.syscall_fd)},
                  ", ");
  }
  return joined({joined({thread.state, thread.wchan.empty() ? "" : "in " + thread.wchan}, " "),
                 call_text(thread.syscall, thread.syscall_fd),
                 cpu_percent ? fmt::format("{:.0f} % CPU", *cpu_percent) : ""},
                ", ");
}

void add_thread(Page& page, const ThreadGroup& group) {
  const ThreadEvidence& thread = *group.front();
  std::vector<std::int64_t> tids;
  Number cpu_s;
  Number cpu_percent;
  for (const ThreadEvidence* member : group) {
    if (member->tid) {
      tids.push_back(*member->tid);
    }
    cpu_s = member->cpu_s ? cpu_s.value_or(0) + *member->cpu_s : cpu_s;
    cpu_percent =
        member->cpu_percent ? cpu_percent.value_or(0) + *member->cpu_percent : cpu_percent;
  }
  page.item(4, joined({joined({pids_text(tids), thread.comm}, " "), doing_text(thread, cpu_percent),
                       cpu_s && thread.doing.empty() ? seconds_text(*cpu_s) + " CPU" : ""},
                      ", "));
  page.item(6, kernel_stack_text(thread.kernel_stack));
  add_frames(page, 6, thread.native_stack);
}

// Threads that stand in the same place are told once here too.
void add_python(Page& page, const Evidence& evidence) {
  if (evidence.python_threads.empty()) {
    return;
  }
  std::vector<std::pair<std::vector<std::string>, const PythonThread*>> groups;
  for (const PythonThread& thread : evidence.python_threads) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.second->frames == thread.frames;
    });
    if (same == groups.end()) {
      groups.push_back({{thread.name}, &thread});
    } else {
      same->first.push_back(thread.name);
    }
  }
  page.heading("What Python says it was doing (the most recent call first)");
  for (const auto& [names, thread] : groups) {
    page.item(2, "thread " + listed(names, kNamesShown));
    add_frames(page, 4, thread->frames);
  }
  if (evidence.python_threads_omitted > 0) {
    page.item(2, fmt::format("{} more threads did not fit into the record",
                             evidence.python_threads_omitted));
  }
}

}  // namespace

std::string kernel_stack_text(const std::vector<std::string>& frames) {
  std::vector<std::string> functions;
  for (const std::string& frame : frames) {
    functions.push_back(function_of(frame));
  }
  if (functions.size() > kKernelFramesShown) {
    functions.resize(kKernelFramesShown);
    functions.push_back(fmt::format("... {} more", frames.size() - kKernelFramesShown));
  }
  return joined(functions, " < ");
}

void add_evidence(Page& page, const std::optional<Evidence>& found) {
  if (found) {
    add_python(page, *found);
  }
  page.heading("What the kernel says it was doing");
  if (!found) {
    page.item(2, "There is no evidence record: gathering was off, or the server ended first.");
    return;
  }
  const Evidence& evidence = *found;
  const std::string named = evidence.state_name.empty()
                                ? evidence.state
                                : fmt::format("{} ({})", evidence.state, evidence.state_name);
  page.field("state",
             evidence.doing.empty()
                 ? joined({named, evidence.wchan.empty() ? "" : "in " + evidence.wchan}, ", ")
                 : joined({evidence.state, evidence.doing}, ", "));
  page.field("system call", call_text(evidence.syscall, evidence.syscall_fd));
  page.field("CPU time",
             joined({evidence.cpu_user_s ? seconds_text(*evidence.cpu_user_s) + " user" : "",
                     evidence.cpu_system_s ? seconds_text(*evidence.cpu_system_s) + " system" : ""},
                    ", "));
  page.field("memory", evidence.rss_bytes.value_or(-1) >= 0
                           ? size_text(*evidence.rss_bytes) + " resident"
                           : "");
  page.field("devices", joined(evidence.devices, ", "));
  std::vector<std::string> children;
  for (const ChildProcess& child : evidence.children) {
    children.push_back(joined({child.pid ? fmt::format("{}", *child.pid) : "", child.comm,
                               child.state.empty() ? "" : fmt::format("({})", child.state)},
                              " "));
  }
  page.field("children", joined(children, ", "));
  if (!evidence.threads.empty()) {
    page.field("threads", fmt::format("{}{}", evidence.threads.size(),
                                      evidence.threads_omitted > 0
                                          ? fmt::format(" and {} that did not fit into the record",
                                                        evidence.threads_omitted)
                                          : ""));
    for (const ThreadGroup& group : by_place(evidence.threads)) {
      add_thread(page, group);
    }
  }
  page.field("missing", evidence.missing);
}

}  // namespace filetimer::cli
