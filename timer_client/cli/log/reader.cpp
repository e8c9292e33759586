// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "common/limits.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"
#include "common/text.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

std::string_view view_at(dom::object object, std::string_view key) {
  return value_as<std::string_view>(object.at_key(key)).value_or("");
}

// --- events ---

constexpr Event kOtherEvent{"", false, {"name", "reason"}};
constexpr Event kEvents[] = {
    {"server_started", false, {"version"}},
    {"server_stopped", false, {"expired", "killed", "reason"}},
    {"incident", true, {"expired", "workers"}},
    {"expired", false, {"timeout_s", "overdue_ms"}},
    {"evidence", true, {"state_name", "wchan"}},
    {"evidence_command",
     true,
     {"drop_in", "result", "name", "exit_status", "reason", "duration_ms"}},
    {"peer_evidence", true, {"state_name", "wchan"}},
    {"killed", false, {"verdict", "reason"}},
    {"warned", false, {"elapsed_s", "timeout_s", "reason"}},
    {"deferred", false, {"reason", "given_s"}},
    {"released_late", false, {"late_ms", "reason"}},
    {"left_open", false, {"elapsed_s", "timeout_s"}},
    {"worker_ended", true, {}},
    {"hook", false, {"result", "name", "exit_status", "reason", "duration_ms"}},
    {"rejected", false, {"count", "reason"}},
    {"rendezvous", false, {"name", "reason"}},
    {"rendezvous_timeout", false, {"name", "reason"}}};

// --- lines ---

constexpr std::string_view kBlank = " \t\r";
// A record begins with this. Inside a JSON string its quote would be escaped, so where this stands
// in a line a record begins, or the line is no JSON.
constexpr std::string_view kRecordStart = "{\"schema\"";

// --- opening logs ---

constexpr std::string_view kLogSuffix = ".jsonl";

std::string why_not(const std::string& what, const std::string& path) {
  return system_error(fmt::format("{} '{}'", what, path)).value().message;
}

class Opener {
 public:
  // Opens what a word of the user means.
  void take_word(const std::string& word) {
    struct stat status {};
    if (word == kStandardInput || ::stat(word.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      open(word);
    } else if (!take_folder(word)) {
      opened.problems.push_back(fmt::format("no log (*{}) in folder '{}'", kLogSuffix, word));
    }
  }

  // Opens what is meant where the user names nothing.
  void take_own(const RunFolder& folder) {
    std::string known = link_target(folder.path(kLogLinkName));
    if (const std::string own = folder.path(kLogName);
        known.empty() && !folder.was_named && ::access(own.c_str(), F_OK) == 0) {
      known = own;  // a server was given this directory by name
    }
    if (!known.empty()) {
      open_with_rotated(known, fmt::format(" (the log of the last server in '{}')", folder.dir));
    }
    const auto path = default_log_path(folder);
    if (!path) {
      if (known.empty()) {
        opened.problems.emplace_back(
            "no log is known: expected FILE, --dir, $FILETIMER_DIR, $XDG_STATE_HOME or $HOME");
      }
    } else if (known.empty() || (!folder.was_named && ::access(path->c_str(), F_OK) == 0)) {
      // Servers around a COMMAND, whose folders have gone with them, wrote there, too.
      open_with_rotated(*path, folder.was_named
                                   ? fmt::format(" (the default log of '{}')", folder.dir)
                                   : " (the default place: no FILE, no --dir, no $FILETIMER_DIR)");
    }
  }

  OpenedLogs opened;

 private:
  // Opens the logs in it by name, and those of the folders below. Returns whether there is any, or
  // a problem.
  bool take_folder(const std::string& path) {
    Directory folder(path);
    if (!folder) {
      opened.problems.push_back(why_not("cannot read folder", path));
      return true;
    }
    std::set<std::string> names;
    while (const char* const name = folder.next()) {
      if (name[0] != '.') {  // snapshots of a file system are old copies
        names.insert(path + (path.ends_with('/') ? "" : "/") + name);
      }
    }
    bool has_any = false;
    for (const std::string& inside : names) {
      struct stat status {};
      const bool is_there = ::lstat(inside.c_str(), &status) == 0;
      if (is_there && S_ISDIR(status.st_mode)) {
        has_any = take_folder(inside) || has_any;
      } else if (inside.ends_with(kLogSuffix) ||
                 inside.ends_with(fmt::format("{}{}", kLogSuffix, kRotatedSuffix))) {
        // A log that cannot be looked at is opened, too, which says why. What is no regular file
        // may have no end.
        if (::stat(inside.c_str(), &status) != 0 || S_ISREG(status.st_mode)) {
          open(inside);
          has_any = true;
        }
      }
    }
    return has_any;
  }

  // Opens a server's log and the one before it, either of which may be missing.
  void open_with_rotated(const std::string& path, const std::string& why) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      opened.problems.push_back(fmt::format("'{}' is not a regular file{}", path, why));
      return;  // it may have no end
    }
    const std::string rotated = path + std::string(kRotatedSuffix);
    if (::lstat(path.c_str(), &status) == 0 || ::lstat(rotated.c_str(), &status) != 0) {
      open(path, why);
    }
    // Opened second: if the server rotates between the two, both are the same file.
    if (::lstat(rotated.c_str(), &status) == 0) {
      open(rotated);
    }
  }

  // Opens a log, unless it is open. `why` it is meant is part of the problem.
  void open(const std::string& path, const std::string& why = {}) {
    UniqueFd file = path == kStandardInput ? UniqueFd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0))
                                           : open_file(path.c_str(), O_RDONLY);
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0) {
      opened.problems.push_back(why_not("cannot open", path) + why);
    } else if (status.st_ino == 0 || known_.emplace(status.st_dev, status.st_ino).second) {
      opened.logs.emplace_back(path, std::move(file));
    }
  }

  std::set<std::pair<dev_t, ino_t>> known_;
};

// A shell may allow no more than 1,024.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// --- reading them as one ---

// The blocks of all logs together take this much memory, unless records are longer than a block.
constexpr std::size_t kAllBlocksBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastBlockBytes = std::size_t{4} << 10;
constexpr std::size_t kMostBlockBytes = std::size_t{64} << 10;

// The next line of a log, by its place among the next lines of all logs: the latest time in its log
// so far, then the monotonic time, then whether its log is not the rotated one. Records behind a
// clock that was set back, or without a time, stay where they are in their log.
using NextLine = std::tuple<Integer, Integer, bool, std::size_t, std::string_view>;

}  // namespace

// --- records ---

std::optional<Record> parse_record(dom::parser& parser, std::string_view line) {
  dom::object object;
  if (line.empty() ||
      parser.parse(line.data(), line.size()).get_object().get(object) != simdjson::SUCCESS ||
      integer_at(object, "schema") != kSchema) {
    return std::nullopt;
  }
  Record record{.line = line,
                .fields = object,
                .event = view_at(object, "event"),
                .host = view_at(object, "host"),
                .boot_id = view_at(object, "boot_id"),
                .id = view_at(object, "id"),
                .incident = view_at(object, "incident"),
                .scope = view_at(object, "scope"),
                .job_id = view_at(object, "job_id"),
                .time_us = parse_rfc3339(view_at(object, "time")),
                .mono_ns = integer_at(object, "mono_ns"),
                .pid = integer_at(object, "pid"),
                .rank = integer_at(object, "rank")};
  return record.event.empty() ? std::nullopt : std::optional(record);
}

std::optional<Record> parse_record(std::string_view line) {
  static thread_local dom::parser parser{2 * kMaxRecordBytes};
  return parse_record(parser, line);
}

// --- events ---

std::span<const Event> known_events() {
  return kEvents;
}

const Event& event_of(const Record& record) {
  const auto* const event = std::ranges::find(kEvents, record.event, &Event::name);
  return event == std::end(kEvents) ? kOtherEvent : *event;
}

std::string in_few_words(const Record& record) {
  const Number dead_after_ms = record.number("dead_after_ms");
  std::vector<std::string> parts;
  for (const std::string_view key : event_of(record).fields) {
    if (key.empty()) {
      break;
    }
    const bool is_word = key == "verdict" || key == "result";
    const bool is_usual = (key == "result" && record.text(key) == "exited") ||
                          (key == "count" && record.integer(key) == 1);
    if (key == "verdict" && dead_after_ms) {
      parts.push_back("dead after " + seconds_text(*dead_after_ms / 1e3));
    } else if (!is_usual) {
      parts.push_back(is_word ? with_spaces(record.text(key)) : field_text(record.fields, key));
    }
  }
  return joined(parts);
}

// --- logs ---

const Record* LogReader::next() {
  while (auto line = next_line()) {
    const std::size_t begin = line->find_first_not_of(kBlank);
    if (begin == line->npos) {
      continue;  // nothing was lost
    }
    *line = line->substr(begin, line->find_last_not_of(kBlank) - begin + 1);
    record_ = parse_record(*line);
    if (!record_) {
      ++skipped_;
      // A writer that died in the middle of a line leaves its half in front of the next record.
      const std::size_t next = line->rfind(kRecordStart);
      if (next != line->npos && next > 0) {
        record_ = parse_record(line->substr(next));
      }
    }
    if (record_) {
      return &*record_;
    }
  }
  return nullptr;
}

std::optional<std::string_view> LogReader::next_line() {
  for (;;) {
    std::size_t end = buffer_.find('\n', searched_);
    if (end == buffer_.npos) {
      if (fill()) {
        continue;
      }
      // What has no newline at the end of a file is a line, too, unless its rest may come.
      if (begin_ == buffer_.size() || (is_followed_ && !next_)) {
        if (!go_on()) {
          return std::nullopt;
        }
        continue;
      }
      end = buffer_.size();
    }
    const auto line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = searched_ = std::min(end + 1, buffer_.size());
    if (line.size() <= kMaxRecordBytes) {
      return line;
    }
    ++skipped_;
  }
}

// Reads a block behind what there is, in which no line ends. False at the end of the file, or if it
// cannot be read.
bool LogReader::fill() {
  if (!problem_.empty()) {
    return false;
  }
  buffer_.erase(0, std::exchange(begin_, 0));
  // One byte over the limit is enough to know that the line is too long.
  searched_ = std::min(buffer_.size(), kMaxRecordBytes + 1);
  buffer_.resize(searched_ + block_bytes_);
  const ssize_t bytes =
      retry_eintr([&] { return ::read(file_.get(), &buffer_[searched_], block_bytes_); });
  if (bytes < 0) {
    problem_ = system_error(fmt::format("cannot read '{}'", path_)).value().message;
  }
  buffer_.resize(searched_ + static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return bytes > 0;
}

// Returns whether there is more to read: the file that has taken this one's place, or of this one
// what the server wrote to it before the rename.
bool LogReader::go_on() {
  if (next_) {
    file_ = std::move(next_);
    return true;
  }
  struct stat here {};
  struct stat there {};
  if (is_followed_ && problem_.empty() && ::fstat(file_.get(), &here) == 0 &&
      ::stat(path_.c_str(), &there) == 0 &&
      (here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
    next_ = open_file(path_.c_str(), O_RDONLY);
  }
  return bool(next_);
}

bool LogReader::rewind() {
  begin_ = searched_ = skipped_ = 0;
  buffer_.clear();
  problem_.clear();
  return start_ >= 0 && ::lseek(file_.get(), start_, SEEK_SET) == start_;
}

// --- the logs that a user names ---

OpenedLogs open_logs(const std::string& dir, const std::vector<std::string>& files) {
  allow_many_descriptors();
  Opener opener;
  for (const std::string& word : files) {
    opener.take_word(word);
  }
  if (files.empty()) {
    opener.take_own(resolve_run_folder(dir));
  }
  return std::move(opener.opened);
}

std::vector<std::string> problems_of(const std::vector<LogReader>& logs) {
  std::vector<std::string> problems = mapped(logs, &LogReader::problem);
  std::erase(problems, "");
  return problems;
}

std::string skipped_text(const std::vector<LogReader>& logs) {
  std::size_t skipped = 0;
  for (const LogReader& log : logs) {
    skipped += log.skipped();
  }
  if (skipped == 0) {
    return {};
  }
  return fmt::format("skipped {} that {} in {}", counted(skipped, "line"),
                     skipped == 1 ? "is no record" : "are no records", names_of(logs));
}

std::string names_of(const std::vector<LogReader>& logs) {
  if (logs.empty()) {
    return "no log";
  }
  return fmt::format("'{}'{}", logs[0].path(),
                     logs.size() == 1 ? "" : " and " + counted(logs.size() - 1, "more file"));
}

bool is_new(const Record& record, KnownRecords& known) {
  const bool may_be_repeated =
      record.mono_ns && (!record.id.empty() || record.event == "worker_ended");
  return !may_be_repeated || known.insert(std::hash<std::string_view>{}(record.line)).second;
}

KnownRecords read_merged(std::vector<LogReader>& logs,
                         const std::function<bool(const Record&)>& sink) {
  KnownRecords known;
  const auto give = [&](const Record& record) { return !is_new(record, known) || sink(record); };
  if (logs.size() == 1) {
    for (const Record* record = logs[0].next(); record != nullptr && give(*record);) {
      record = logs[0].next();
    }
    return known;
  }
  std::vector<Integer> latest_us(logs.size());
  std::priority_queue<NextLine, std::vector<NextLine>, std::greater<>> next;
  const auto queue = [&](std::size_t log) {
    if (const Record* const record = logs[log].next()) {
      latest_us[log] = std::max(latest_us[log], record->time_us);
      next.emplace(latest_us[log], record->mono_ns, !logs[log].path().ends_with(kRotatedSuffix),
                   log, record->line);
    }
  };
  for (std::size_t log = 0; log < logs.size(); ++log) {
    logs[log].set_block_bytes(
        std::clamp(kAllBlocksBytes / logs.size(), kLeastBlockBytes, kMostBlockBytes));
    queue(log);
  }
  while (!next.empty()) {
    const std::size_t log = std::get<std::size_t>(next.top());
    // Parsed again: the records of other logs have used the parser since. Whole records of all logs
    // would take more memory than that takes time.
    const auto record = parse_record(std::get<std::string_view>(next.top()));
    next.pop();
    if (record && !give(*record)) {
      return known;
    }
    queue(log);
  }
  return known;
}

}  // namespace filetimer::cli
