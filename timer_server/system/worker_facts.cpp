// SPDX-License-Identifier: MIT
#include "timer_server/system/worker_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "common/limits.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

constexpr std::size_t kMaxEnvironBytes = std::size_t{1} << 20;
// In the middle of an exec() a process has no environment, for microseconds on an idle machine. No
// event announces the new one.
constexpr int kMaxReads = 20;
constexpr std::chrono::milliseconds kReadPeriod{1};

// Returns the value of the first entry NAME=VALUE of that name, or an empty text if there is none.
// Each entry has a zero byte after it.
std::string_view value_in_environ(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::string_view entry = take_until(block, '\0');
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

std::string_view first_value(std::string_view block, std::span<const char* const> names) {
  for (const char* const name : names) {
    if (const std::string_view value = value_in_environ(block, name); !value.empty()) {
      return value;
    }
  }
  return {};
}

std::optional<int> as_rank(std::string_view text) {
  const auto number = number_from<int>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

}  // namespace

WorkerFacts worker_facts_claimed(const PageClaims& claims) {
  WorkerFacts facts;
  facts.are_known = true;
  facts.rank = as_rank(claims.rank);
  facts.local_rank = as_rank(claims.local_rank);
  facts.job_id = utf8_prefix(claims.job_id, kMaxJobIdBytesShown);
  return facts;
}

void add_claims(WorkerFacts& facts, const WorkerFacts& claimed) {
  facts.rank = claimed.rank ? claimed.rank : facts.rank;
  facts.local_rank = claimed.local_rank ? claimed.local_rank : facts.local_rank;
  facts.job_id = facts.job_id.empty() ? claimed.job_id : facts.job_id;
  facts.comm = facts.comm.empty() ? claimed.comm : facts.comm;
}

WorkerFacts worker_facts_from(std::string_view cmdline, std::string_view environ_block,
                              std::span<const std::string> wanted) {
  WorkerFacts facts;
  facts.are_known = true;
  cmdline = cmdline.substr(0, cmdline.find_last_not_of('\0') + 1);
  facts.cmdline = utf8_prefix(cmdline, kMaxCmdlineBytesShown);
  std::ranges::replace(facts.cmdline, '\0', ' ');
  facts.rank = as_rank(first_value(environ_block, kRankVariables));
  facts.local_rank = as_rank(first_value(environ_block, kLocalRankVariables));
  facts.job_id = utf8_prefix(first_value(environ_block, kJobVariables), kMaxJobIdBytesShown);
  facts.step_id = utf8_prefix(first_value(environ_block, kStepVariables), kMaxJobIdBytesShown);
  for (const std::string& name : wanted) {
    if (!value_in_environ(environ_block, name).empty()) {
      facts.variables.push_back(name);
    }
  }
  return facts;
}

WorkerFacts read_worker_facts(pid_t pid, std::span<const std::string> wanted) {
  for (int reads = 1;; ++reads) {
    const auto cmdline = read_small_file(fmt::format("/proc/{}/cmdline", pid));
    const auto environment =
        read_small_file(fmt::format("/proc/{}/environ", pid), kMaxEnvironBytes);
    const bool is_missing = environment ? environment->empty() : is_for_now(environment.error());
    if (reads == kMaxReads || (!is_missing && (cmdline || !is_for_now(cmdline.error())))) {
      return worker_facts_from(cmdline.value_or(""), environment.value_or(""), wanted);
    }
    std::this_thread::sleep_for(kReadPeriod);
  }
}

}  // namespace filetimer
