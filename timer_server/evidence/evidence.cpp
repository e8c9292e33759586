// SPDX-License-Identifier: MIT
#include "timer_server/evidence/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "common/limits.hpp"

namespace filetimer {
namespace {

constexpr std::size_t kMaxMissingBytes = 2048;

// A thread with less CPU time than this counts as waiting.
constexpr double kWaitingPercent = 5;

// The size of a thread in the record without its frames. Frames leave this much room for each
// thread behind them.
constexpr std::size_t kBytesPerThread = 400;
// Likewise of a thread that has the stacks of another one.
constexpr std::size_t kBytesPerOther = 8;
// The room that the threads leave for each child whose main thread was read.
constexpr std::size_t kBytesPerChild = 1024;
// The Python stacks leave the other half of the record to `threads` and `children`.
constexpr std::size_t kMaxPythonBytes = kMaxEvidenceBytes / 2;

std::string_view state_name(char state) {
  constexpr std::pair<char, std::string_view> kNames[] = {
      {'R', "running"}, {'S', "sleeping"}, {'D', "uninterruptible sleep"},
      {'T', "stopped"}, {'t', "traced"},   {'Z', "zombie"},
      {'X', "dead"},    {'I', "idle"}};
  const auto* const found =
      std::ranges::find_if(kNames, [&](const auto& each) { return each.first == state; });
  return found == std::end(kNames) ? "unknown" : found->second;
}

void write_activity(JsonWriter& json, const ThreadEvidence& thread) {
  json.field("state", std::string_view(&thread.state, 1))
      .given("wchan", thread.wchan)
      .given("syscall", thread.syscall)
      .given("syscall_nr", thread.syscall_number)
      .given("syscall_fd", thread.syscall_fd)
      .field("doing", activity_of(thread));
}

// Writes frames until the whole record has `limit` bytes, then the number of the others.
void write_frames(JsonWriter& json, std::string_view key, const std::vector<std::string>& frames,
                  std::size_t limit) {
  if (frames.empty()) {
    return;
  }
  json.begin_array(key);
  std::size_t written = 0;
  for (; written < frames.size() && json.size() + frames[written].size() < limit; ++written) {
    json.element(frames[written]);
  }
  if (written < frames.size()) {
    json.element(
        fmt::format("... {} more, for which the record has no room", frames.size() - written));
  }
  json.end_array();
}

std::size_t others_of(const ThreadEvidence& thread) {
  std::size_t count = 0;
  for (const SameStack& others : thread.same_stack) {
    count += others.tids.size();
  }
  return count;
}

// Returns how many threads have no room.
std::size_t write_same_stack(JsonWriter& json, const ThreadEvidence& thread, std::size_t limit) {
  std::size_t omitted = 0;
  const std::string doing = activity_of(thread);
  json.begin_array("same_stack");
  for (const SameStack& others : thread.same_stack) {
    if (json.size() > limit) {
      omitted += others.tids.size();
      continue;
    }
    json.begin_object().field("comm", others.comm);
    if (others.doing != doing) {
      json.field("doing", others.doing);
    }
    json.given("syscall_fd", others.syscall_fd).array("tids", others.tids).end_object();
  }
  json.end_array();
  return omitted;
}

void write_threads(JsonWriter& json, const Evidence& evidence) {
  const std::size_t children_read = std::min(evidence.children.size(), kMaxChildrenRead);
  const std::size_t most_bytes = kMaxEvidenceBytes - children_read * kBytesPerChild;
  std::size_t omitted = evidence.threads_omitted;
  std::size_t others_left = 0;
  for (const ThreadEvidence& thread : evidence.threads) {
    others_left += others_of(thread);
  }
  std::size_t threads_left = std::min(evidence.threads.size(), kMaxStacksShown);
  json.begin_array("threads");
  for (const ThreadEvidence& thread : evidence.threads) {
    if (json.size() > most_bytes || threads_left == 0) {
      omitted += 1 + others_of(thread);
      continue;
    }
    const std::size_t needed = threads_left * kBytesPerThread + others_left * kBytesPerOther;
    const std::size_t limit = most_bytes - std::min(needed, most_bytes);
    --threads_left;
    others_left -= others_of(thread);
    json.begin_object().field("tid", thread.tid).field("comm", thread.comm);
    write_activity(json, thread);
    json.fixed("cpu_s", thread.cpu_s, 2).given_fixed("cpu_percent", thread.cpu_percent, 0);
    write_frames(json, "stack", thread.stack, limit);
    write_frames(json, "native_stack", thread.native_stack, limit);
    if (!thread.same_stack.empty()) {
      omitted += write_same_stack(json, thread, most_bytes);
    }
    json.end_object();
  }
  json.end_array();
  json.given("threads_omitted", omitted);
}

void write_children(JsonWriter& json, const Evidence& evidence) {
  std::size_t limit = json.size();
  json.begin_array("children");
  for (const ThreadEvidence& child : evidence.children) {
    limit += kBytesPerChild;
    json.begin_object().field("pid", child.tid).field("comm", child.comm);
    if (child.sampled != Instant{}) {
      write_activity(json, child);
      write_frames(json, "stack", child.stack, limit);
    } else {
      json.field("state", std::string_view(&child.state, 1));
    }
    json.end_object();
  }
  json.end_array();
}

void write_python(JsonWriter& json, const Evidence& evidence) {
  if (evidence.python_threads.empty()) {
    return;
  }
  const std::size_t limit = std::max(json.size(), kMaxPythonBytes);
  std::size_t omitted = 0;
  json.begin_array("python_threads");
  for (const PythonThread& thread : evidence.python_threads) {
    if (json.size() + kBytesPerThread > limit) {
      omitted += 1 + thread.same_stack.size();
      continue;
    }
    json.begin_object()
        .given("ident", thread.ident)
        .given("name", thread.name)
        .given("current", thread.is_current);
    write_frames(json, "frames", thread.frames, limit);
    if (!thread.same_stack.empty()) {
      json.begin_array("same_stack");
      for (const PythonThread& other : thread.same_stack) {
        json.begin_object().given("ident", other.ident).given("name", other.name).end_object();
      }
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
  json.given("python_threads_omitted", omitted);
}

// Returns the sum over all threads, which exceeds 100 when several of them run.
std::optional<double> total_cpu_percent(const Evidence& evidence) {
  std::optional<double> sum;
  for (const ThreadEvidence& thread : evidence.threads) {
    if (thread.cpu_percent) {
      sum = sum.value_or(0) + *thread.cpu_percent;
    }
    for (const SameStack& others : thread.same_stack) {
      sum = sum ? *sum + others.cpu_percent : sum;
    }
  }
  return sum;
}

}  // namespace

std::string_view name_of(EvidenceLevel level) {
  return std::array<std::string_view, 3>{"none", "proc", "stacks"}.at(
      static_cast<std::size_t>(level));
}

void Evidence::add_missing(std::string_view reason) {
  if (!reason.empty() && missing.size() + reason.size() < kMaxMissingBytes) {
    missing.append(missing.empty() ? "" : "; ").append(reason);
  }
}

std::string activity_of(const ThreadEvidence& thread) {
  const std::string& place = thread.wchan.empty() ? thread.syscall : thread.wchan;
  const bool waits = thread.state == 'S' || thread.state == 'D' || thread.state == 'I';
  std::string text(state_name(thread.state));
  if (waits) {
    text = thread.state == 'D' ? "waiting uninterruptibly" : "waiting";
    text += place.empty() || place == "running" ? "" : " in " + place;
  }
  if (!thread.cpu_percent) {
    return text;
  }
  if (waits && *thread.cpu_percent >= kWaitingPercent) {
    text += " at that moment";
  } else if (thread.state == 'R' && *thread.cpu_percent < kWaitingPercent) {
    text = "ready to run";  // other threads have the CPU, or the thread was woken just now
  }
  return text + fmt::format(" ({:.0f} % CPU)", *thread.cpu_percent);
}

Evidence folded(const Evidence& evidence) {
  Evidence folded = evidence;
  folded.threads.clear();
  using Place = std::tuple<pid_t, std::vector<std::string>, std::string>;
  std::map<Place, std::size_t> places;
  for (const ThreadEvidence& thread : evidence.threads) {
    const auto found =
        std::ranges::find(evidence.threads, thread.native_stack_of, &ThreadEvidence::tid);
    const ThreadEvidence& owner = found == evidence.threads.end() ? thread : *found;
    const pid_t native = owner.native_stack.empty() ? 0 : owner.tid;
    const std::string doing =
        native != 0 || !thread.stack.empty()
            ? ""
            : fmt::format("{} {} {}", thread.state, thread.wchan, thread.syscall);
    const auto [place, is_new] =
        places.try_emplace({native, thread.stack, doing}, folded.threads.size());
    if (is_new) {
      folded.threads.push_back(thread);
      folded.threads.back().native_stack = owner.native_stack;
      continue;
    }
    std::vector<SameStack>& same = folded.threads[place->second].same_stack;
    const SameStack other{thread.comm, activity_of(thread), thread.syscall_fd, {}};
    auto alike = std::ranges::find_if(same, [&](const SameStack& each) {
      return std::tie(each.comm, each.doing, each.syscall_fd) ==
             std::tie(other.comm, other.doing, other.syscall_fd);
    });
    alike = alike == same.end() ? same.insert(alike, other) : alike;
    alike->tids.push_back(thread.tid);
    alike->cpu_percent += thread.cpu_percent.value_or(0);
  }
  folded.python_threads.clear();
  std::map<std::vector<std::string>, std::size_t> of_python;
  for (const PythonThread& thread : evidence.python_threads) {
    const auto [place, is_new] = of_python.try_emplace(thread.frames, folded.python_threads.size());
    if (is_new || thread.is_current) {
      folded.python_threads.push_back(thread);
    } else {
      folded.python_threads[place->second].same_stack.push_back(thread);
      folded.python_threads[place->second].same_stack.back().frames.clear();
    }
  }
  return folded;
}

void write_evidence(JsonWriter& json, const Evidence& evidence) {
  if (!evidence.threads.empty()) {
    write_activity(json, evidence.threads.front());
    json.field("state_name", state_name(evidence.threads.front().state))
        .fixed("cpu_user_s", evidence.cpu_user_s, 2)
        .fixed("cpu_system_s", evidence.cpu_system_s, 2)
        .given_fixed("cpu_percent", total_cpu_percent(evidence), 0)
        .field("rss_bytes", evidence.rss_bytes);
    write_python(json, evidence);
    write_threads(json, evidence);
    write_children(json, evidence);
    json.array("devices", evidence.devices)
        .given_fixed("held_ms", evidence.held_ms, 3)
        .fixed("gathered_ms", evidence.gathered_ms, 3);
  }
  json.given("missing", evidence.missing);
}

}  // namespace filetimer
