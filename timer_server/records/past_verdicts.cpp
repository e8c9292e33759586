// SPDX-License-Identifier: MIT
#include "timer_server/records/past_verdicts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>

#include <cmath>
#include <stdexcept>
#include <unordered_map>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/scope_name.hpp"

namespace filetimer {
namespace {

namespace dom = simdjson::dom;

// Ends the start for a failure that may end. Without its records a kill would be begun again.
void refuse_for_now(const std::string& path) {
  if (const Error error = system_error(fmt::format("cannot read '{}'", path)).value();
      is_for_now(error)) {
    throw std::runtime_error(error.message);
  }
}

// Returns the last `most` bytes of a regular file, or nothing without a file.
std::string read_tail(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    refuse_for_now(path);
    return {};
  }
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return {};
  }
  const auto size = static_cast<std::size_t>(st.st_size);
  std::size_t at = size > most ? size - most : 0;
  std::string text(size - at, '\0');
  std::size_t used = 0;
  while (used < text.size()) {
    const ssize_t got = retry_eintr([&] {
      return ::pread(fd.get(), text.data() + used, text.size() - used, static_cast<off_t>(at));
    });
    if (got < 0) {
      refuse_for_now(path);
    }
    if (got <= 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
    at += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

template <class Value>
Value value_or(const dom::element& record, std::string_view key, Value missing) {
  Value value = missing;
  return record[key].get(value) == simdjson::SUCCESS ? value : missing;
}

Duration duration_of(double seconds) {
  return Duration{std::llround(seconds * 1e9)};
}

PastVerdict verdict_from(const dom::element& record) {
  PastVerdict past;
  past.pid = static_cast<pid_t>(value_or<std::int64_t>(record, "pid", 0));
  past.start_time = value_or<std::uint64_t>(record, "start_time", 0);
  Expiry& expiry = past.expiry;
  expiry.id = value_or<std::string_view>(record, "id", {});
  expiry.incident = value_or<std::string_view>(record, "incident", {});
  expiry.scope.name = value_or<std::string_view>(record, "scope", {});
  expiry.scope.terms.is_idle = expiry.scope.name == kIdleScopeName;
  expiry.judged = {value_or<std::int64_t>(record, "mono_ns", 0)};
  ScopeTerms& terms = expiry.scope.terms;
  terms.acquired = {value_or<std::int64_t>(record, "acquired_mono_ns", 0)};
  terms.deadline = {value_or<std::int64_t>(record, "deadline_mono_ns", 0)};
  if (const double grace = value_or<double>(record, "grace_s", -1); grace >= 0) {
    terms.grace = grace_of(duration_of(grace));
  }
  terms.signal = static_cast<int>(value_or<std::int64_t>(record, "signal", 0));
  return past;
}

}  // namespace

std::vector<PastVerdict> read_past_verdicts(const std::string& log_path, std::string_view boot_id,
                                            std::string_view dir) {
  std::string text = read_tail(log_path, kMaxPastBytes);
  if (text.size() < kMaxPastBytes) {
    text.insert(0, read_tail(log_path + ".1", kMaxPastBytes - text.size()));
  }
  std::vector<PastVerdict> verdicts;
  std::unordered_map<std::string, std::size_t> by_id;
  dom::parser parser;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line(text.data() + start, end - start);
    start = end + 1;
    // Other events need not be parsed.
    const bool is_verdict = line.find("\"event\":\"expired\"") != line.npos;
    const bool is_end = line.find("\"event\":\"killed\"") != line.npos;
    const bool is_evidence = line.find("\"event\":\"evidence\"") != line.npos;
    const bool is_late = line.find("\"event\":\"released_late\"") != line.npos;
    dom::element record;
    if ((!is_verdict && !is_end && !is_evidence && !is_late) ||
        parser.parse(line.data(), line.size()).get(record) != simdjson::SUCCESS ||
        !record.is_object() || value_or<std::string_view>(record, "boot_id", {}) != boot_id) {
      continue;
    }
    const std::string id(value_or<std::string_view>(record, "id", {}));
    if (is_verdict && value_or<std::string_view>(record, "dir", {}) == dir) {
      if (by_id.contains(id)) {
        continue;  // written twice, on a disk that was full meanwhile
      }
      by_id[id] = verdicts.size();
      verdicts.push_back(verdict_from(record));
    } else if (const auto known = by_id.find(id); known != by_id.end()) {
      PastVerdict& past = verdicts[known->second];
      if (is_end) {
        past.is_finished = true;
      }
      past.has_evidence = past.has_evidence || is_evidence;
      if (is_late) {
        past.expiry.released_at = Instant{value_or<std::int64_t>(record, "mono_ns", 0)};
      }
    }
  }
  return verdicts;
}

}  // namespace filetimer
