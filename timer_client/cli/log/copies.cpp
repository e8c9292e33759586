// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/copies.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>

#include "common/limits.hpp"
#include "timer_client/cli/log/record.hpp"

namespace filetimer::cli {
namespace {

constexpr std::size_t kFirstLook = 4096;  // most first lines are shorter
constexpr std::size_t kEndCompared = 4096;

// A file that begins with a record.
struct Beginning {
  LogFile* file = nullptr;
  std::size_t bytes = 0;  // of the file, now
  std::size_t line_bytes = 0;
};

// Returns the first line without its newline; nothing if the file has none as long as a record may
// be, or cannot be read twice.
std::optional<std::string> first_line(const LogFile& file, std::size_t bytes) {
  std::string line;
  for (std::size_t look = kFirstLook;; look *= 8) {
    line.resize(std::min({look, bytes, kMaxRecordBytes + 1}));
    line.reserve(line.size() + kLinePadding);
    if (!read_at(file.fd.get(), line.data(), line.size(), 0)) {
      return std::nullopt;
    }
    if (const std::size_t end = line.find('\n'); end != line.npos) {
      line.resize(end);
      return line;
    }
    if (line.size() < look) {
      return std::nullopt;
    }
  }
}

bool have_same_bytes(const LogFile& a, const LogFile& b, std::size_t begin, std::size_t end) {
  std::string of_a(end - begin, '\0');
  std::string of_b(end - begin, '\0');
  return read_at(a.fd.get(), of_a.data(), of_a.size(), begin) &&
         read_at(b.fd.get(), of_b.data(), of_b.size(), begin) && of_a == of_b;
}

// A log is only ever appended to, so two that begin alike, and are alike where the shorter one
// ends, are alike up to there.
bool is_copy(const Beginning& shorter, const Beginning& longer) {
  const std::size_t end = shorter.bytes;
  return shorter.line_bytes == longer.line_bytes &&
         have_same_bytes(*shorter.file, *longer.file, 0, shorter.line_bytes) &&
         have_same_bytes(*shorter.file, *longer.file, end - std::min(end, kEndCompared), end);
}

// Returns what distinguishes the record from those of all servers; empty if it is no record, or
// does not say.
std::string identity_in(const std::string& line) {
  const auto record = parse_record(line);
  return record && record->mono_ns && !record->host.empty()
             ? fmt::format("{}\n{}\n{}", record->host, record->boot_id, *record->mono_ns)
             : std::string();
}

}  // namespace

std::string leave_out_copies(std::vector<LogFiles>& logs) {
  std::unordered_map<std::string, Beginning> kept;
  Beginning first_copy;
  const Beginning* kept_of_first = nullptr;
  std::size_t copies = 0;
  for (LogFiles& log : logs) {
    for (LogFile& file : log.files) {
      struct stat status {};
      if (::fstat(file.fd.get(), &status) != 0) {
        continue;
      }
      Beginning now{.file = &file, .bytes = static_cast<std::size_t>(status.st_size)};
      const auto line = first_line(file, now.bytes);
      const std::string identity = line ? identity_in(*line) : std::string();
      if (identity.empty()) {
        continue;
      }
      now.line_bytes = line->size();
      const auto [at, is_new] = kept.try_emplace(identity, now);
      Beginning& other = at->second;
      const bool is_longer = now.bytes > other.bytes;
      if (is_new || !(is_longer ? is_copy(other, now) : is_copy(now, other))) {
        continue;
      }
      const Beginning& copy = is_longer ? other : now;
      if (++copies == 1) {
        first_copy = copy;
        kept_of_first = &other;
      }
      copy.file->fd.reset();
      other = is_longer ? now : other;
    }
  }
  const std::string note =
      copies == 0 ? std::string()
                  : fmt::format("'{}' is {} copy of '{}'", first_copy.file->path,
                                first_copy.bytes == kept_of_first->bytes ? "a" : "an older",
                                kept_of_first->file->path);
  for (LogFiles& log : logs) {
    std::erase_if(log.files, [](const LogFile& file) { return !file.fd; });
  }
  std::erase_if(logs, [](const LogFiles& log) { return log.files.empty(); });
  return copies == 0   ? std::string()
         : copies == 1 ? note + ": not read"
                       : fmt::format("{}, and {} more file{} of others: not read", note, copies - 1,
                                     copies == 2 ? " is a copy" : "s are copies");
}

}  // namespace filetimer::cli
