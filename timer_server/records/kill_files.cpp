// SPDX-License-Identifier: MIT
#include "timer_server/records/kill_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "common/due.hpp"
#include "common/json_fields.hpp"
#include "common/json_writer.hpp"
#include "common/mapped_file.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"
#include "common/scope_page.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

namespace dom = simdjson::dom;

constexpr std::int64_t kKillFileVersion = 1;
// A line that begins so is a stage, and any other a record.
constexpr std::string_view kStage = "{\"stage\":";

JsonWriter begin_stage(std::string_view name) {
  JsonWriter json;
  json.field("stage", name);
  return json;
}

// Returns 0 for a number that is missing.
std::int64_t number_in(const dom::object& object, std::string_view key) {
  return integer_at(object, key).value_or(0);
}

void write_expiry(JsonWriter& json, const Expiry& expiry) {
  const SlotReading& scope = expiry.scope;
  json.begin_object()
      .field("id", expiry.id)
      .field("incident", expiry.incident)
      .field("scope", scope.name)
      .field("judged_ns", expiry.judged.ns)
      .field("acquired_ns", scope.acquired.ns)
      .field("deadline_ns", scope.deadline.ns)
      .field("signal", scope.signal)
      .field("idle", int{scope.has(slot_flag::kIdle)})
      .given("signal_first", int{scope.has(slot_flag::kSignalFirst)})
      .field("grace_ms", scope.grace() ? std::int64_t{*scope.grace_ms} : -1)
      .end_object();
}

Expiry expiry_in(const dom::object& object) {
  Expiry expiry;
  expiry.id = text_at(object, "id");
  expiry.incident = text_at(object, "incident");
  expiry.judged = {number_in(object, "judged_ns")};
  SlotReading& scope = expiry.scope;
  scope.name = text_at(object, "scope");
  scope.acquired = {number_in(object, "acquired_ns")};
  scope.deadline = {number_in(object, "deadline_ns")};
  scope.signal = static_cast<int>(number_in(object, "signal"));
  // Servers up to 0.2.0 have noted the name only, which a scope of the worker may have as well.
  const bool is_idle = integer_at(object, "idle").value_or(scope.name == kIdleScopeName) != 0;
  scope.flags = static_cast<std::uint16_t>(
      (is_idle ? slot_flag::kIdle : 0) |
      (number_in(object, "signal_first") != 0 ? slot_flag::kSignalFirst : 0));
  const std::int64_t grace = integer_at(object, "grace_ms").value_or(-1);
  scope.grace_ms = grace < 0 ? kNoSigkill : grace_ms_of(std::chrono::milliseconds{grace});
  return expiry;
}

SentSignal signal_in(const dom::object& object) {
  SentSignal sent;
  sent.signal = static_cast<int>(number_in(object, "signal"));
  sent.when = {number_in(object, "wall_ns"), {number_in(object, "mono_ns")}};
  for (const dom::element pid : elements_at(object, "pids")) {
    sent.pids.push_back(static_cast<pid_t>(value_as<std::int64_t>(pid).value_or(0)));
  }
  for (const dom::element start : elements_at(object, "starts")) {
    sent.starts.push_back(static_cast<std::uint64_t>(value_as<std::int64_t>(start).value_or(0)));
  }
  return sent;
}

KillVerdict verdict_in(const dom::object& object) {
  constexpr std::array kOthers{KillVerdict::kDead, KillVerdict::kAlreadyGone,
                               KillVerdict::kUnkillable};
  const auto* const found = std::ranges::find(kOthers, text_at(object, "verdict"), verdict_name);
  return found == kOthers.end() ? KillVerdict::kSpared : *found;
}

void apply(KillState& kill, Process& worker, const dom::object& object, std::string_view boot_id) {
  const std::string stage = text_at(object, "stage");
  if (stage == "judged") {
    worker.pid = static_cast<pid_t>(number_in(object, "pid"));
    worker.start_time = static_cast<std::uint64_t>(number_in(object, "start_time"));
    kill.is_of_this_boot = text_at(object, "boot_id") == boot_id;
    kill.may_have_stopped = number_in(object, "dry_run") == 0;
    for (const dom::object scope : objects_at(object, "scopes")) {
      kill.expiries.push_back(expiry_in(scope));
    }
  } else if (stage == "recorded") {
    kill.is_recorded = true;
  } else if (stage == "evidence") {
    kill.has_evidence = true;
  } else if (stage == "released") {
    const auto released = std::ranges::find(kill.expiries, text_at(object, "id"), &Expiry::id);
    if (released != kill.expiries.end()) {
      released->released_at = Instant{number_in(object, "mono_ns")};
    }
  } else if (stage == "signalled") {
    kill.may_have_stopped = true;  // by the server after one with --dry-run
    kill.sent.push_back(signal_in(object));
  } else if (stage == "cancelled") {
    std::ranges::move(texts_at(object, "scopes"), std::back_inserter(kill.cancelled));
    kill.cancelled_before = kill.cancelled.size();
  } else if (stage == "ended") {
    kill.verdict = verdict_in(object);
  } else if (stage == "hook") {
    kill.has_hook = true;
  }
}

Result<std::string> text_of(const std::string& path) {
  const auto file = open_own_file(path, O_RDONLY);
  FILETIMER_TRY(file);
  std::string text(static_cast<std::size_t>(file->status.st_size), '\0');
  if (!read_at(file->fd.get(), text.data(), text.size(), 0)) {
    return system_error(fmt::format("cannot read '{}'", path));
  }
  return text;
}

// Returns nothing if the file has no verdict. Fails if the file is of another version.
Result<std::optional<KillState>> kill_in(const std::string& path, const std::string& text,
                                         std::string_view boot_id) {
  KillState kill;
  Process worker;
  worker.uid = ::geteuid();
  std::vector<std::string> records;  // behind the last stage
  dom::parser parser;
  // A line without a newline was not written to its end.
  std::string_view rest = std::string_view(text).substr(0, text.rfind('\n') + 1);
  while (!rest.empty()) {
    const std::string_view line = take_until(rest, '\n');
    if (!line.starts_with(kStage)) {
      records.emplace_back(line);
      continue;
    }
    dom::object object;
    const auto error = parser.parse(line.data(), line.size()).get_object().get(object);
    if (error == simdjson::MEMALLOC) {
      throw std::bad_alloc();  // the file is whole
    }
    if (error != simdjson::SUCCESS) {
      break;
    }
    dom::element version;
    if (object.at_key("version").get(version) == simdjson::SUCCESS &&
        integer_at(object, "version") != kKillFileVersion) {
      return failure(fmt::format("'{}' is of version {}: expected {}", path,
                                 simdjson::minify(version), kKillFileVersion));
    }
    kill.is_recorded = kill.is_recorded && records.empty();  // these may not be synced
    apply(kill, worker, object, boot_id);
    std::ranges::move(records, std::back_inserter(kill.records));
    records.clear();
  }
  WorkerFacts& facts = *kill.worker.facts;
  if (dom::object first;
      !kill.records.empty() &&
      parser.parse(kill.records[0]).get_object().get(first) == simdjson::SUCCESS) {
    worker.uid = static_cast<uid_t>(integer_at(first, "uid").value_or(worker.uid));
    worker.comm = text_at(first, "comm");
    facts.cmdline = text_at(first, "cmdline");
    facts.rank = integer_at(first, "rank");
    facts.local_rank = integer_at(first, "local_rank");
    facts.job_id = text_at(first, "job_id");
    facts.step_id = text_at(first, "step_id");
    facts.are_known = !facts.cmdline.empty();
  }
  const bool has_worker = worker.pid > 0;
  kill.worker.process = std::make_shared<const Process>(std::move(worker));
  return has_worker && !kill.expiries.empty() ? std::optional(std::move(kill)) : std::nullopt;
}

}  // namespace

std::optional<KillState::Means> KillState::means() const {
  std::optional<Means> means;
  for (const Expiry& expiry : expiries) {
    if (expiry.scope.signal <= 0 || expiry.released_at) {
      continue;
    }
    const SlotReading& scope = expiry.scope;
    const std::optional<Duration> grace = scope.grace();
    const bool is_alone = scope.has(slot_flag::kSignalFirst) && scope.signal != SIGKILL && !grace;
    if (!means || (means->is_for_worker_alone && !is_alone)) {
      means = {scope.signal, grace, is_alone};
    } else if (grace && (!means->grace || *grace < *means->grace)) {
      means->grace = grace;
    }
  }
  return means;
}

KillFiles::KillFiles(const std::string& dir, std::string boot_id)
    : folder_(fmt::format("{}/{}", dir, kKillsName)), boot_id_(std::move(boot_id)) {}

std::vector<KillState> KillFiles::read() const {
  std::vector<KillState> kills;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder_, error), end; !error && file != end;
       file.increment(error)) {
    const std::string path = file->path().string();
    const auto text = text_of(path);
    if (!text && is_for_now(text.error())) {
      throw std::runtime_error(text.error().message);
    }
    auto kill =
        text.and_then([&](const std::string& read) { return kill_in(path, read, boot_id_); });
    if (!kill) {
      messages::warning("{}: left alone", kill.error().message);
    } else if (*kill) {
      // The next stage must not stand behind half a stage, nor behind the records of one.
      const std::size_t last = text->rfind(kStage, text->rfind('\n'));
      (void)!::truncate(path.c_str(), static_cast<off_t>(text->find('\n', last) + 1));
      kills.push_back(std::move(**kill));
    } else if (text->empty() || text->starts_with(R"({"s)")) {  // a record or a stage
      ::unlink(path.c_str());
    }
  }
  if (error && error.value() != ENOENT) {
    throw std::runtime_error(fmt::format("cannot read '{}': {}", folder_, error.message()));
  }
  std::ranges::sort(kills, {}, [](const KillState& kill) {
    return std::pair(kill.expiries.front().judged, kill.expiries.front().id);
  });
  return kills;
}

void KillFiles::begin(const WorkerIdentity& worker, std::span<const Expiry> expiries,
                      std::span<const std::string> records, bool is_dry_run) {
  JsonWriter json = begin_stage("judged");
  json.field("version", kKillFileVersion)
      .field("pid", worker.process->pid)
      .field("start_time", worker.process->start_time)
      .field("boot_id", boot_id_)
      .field("dry_run", is_dry_run ? 1 : 0)
      .begin_array("scopes");
  for (const Expiry& expiry : expiries) {
    write_expiry(json, expiry);
  }
  json.end_array();
  append(expiries.front().id, records, json.finish(), true);
}

void KillFiles::note_recorded(const std::string& id) {
  append(id, {}, begin_stage("recorded").finish());
}

void KillFiles::note_evidence(const std::string& id, const std::string& record) {
  append(id, {&record, 1}, begin_stage("evidence").finish());
}

void KillFiles::note_release(const std::string& id, const Expiry& expiry,
                             const std::string& record) {
  JsonWriter json = begin_stage("released");
  json.field("id", expiry.id).field("mono_ns", expiry.released_at->ns);
  append(id, {&record, 1}, json.finish());
}

void KillFiles::note_signal(const std::string& id, const SentSignal& sent) {
  JsonWriter json = begin_stage("signalled");
  json.field("signal", sent.signal).field("mono_ns", sent.when.mono.ns);
  json.field("wall_ns", sent.when.wall_ns).array("pids", sent.pids).array("starts", sent.starts);
  append(id, {}, json.finish());
}

void KillFiles::note_cancelled(const std::string& id, std::span<const std::string> scopes) {
  append(id, {}, begin_stage("cancelled").array("scopes", scopes).finish());
}

void KillFiles::end(const std::string& id, KillVerdict verdict,
                    std::span<const std::string> records) {
  // A kill that has ended must not be continued. A file can be removed when none can be written.
  if (!append(id, records, begin_stage("ended").field("verdict", verdict_name(verdict)).finish())) {
    ::unlink(path_of(id).c_str());
  }
}

void KillFiles::note_hook(const std::string& id) {
  if (std::ranges::find(ended_, id, &Ended::id) != ended_.end()) {
    append(id, {}, begin_stage("hook").finish());
  }
}

// A kill continues without its file, so a full directory spares no hung worker.
bool KillFiles::append(const std::string& id, std::span<const std::string> records,
                       const std::string& stage, bool is_first) {
  std::string text;
  for (const std::string& record : records) {
    text += record + '\n';
  }
  text += stage + '\n';
  const std::string path = path_of(id);
  const int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | (is_first ? O_CREAT | O_TRUNC : 0);
  UniqueFd file = open_file(path.c_str(), flags, 0600);
  if (!file && errno != ENOENT) {
    file = open_file(path.c_str(), flags, 0600);  // no descriptor was left, perhaps
  }
  if (!file && is_first && errno == ENOENT && ::mkdir(folder_.c_str(), 0700) == 0) {
    (void)!::chmod(folder_.c_str(), 0700);  // the umask may forbid its own user the search
    file = open_file(path.c_str(), flags, 0600);
  }
  const ssize_t size = static_cast<ssize_t>(text.size());
  const ssize_t written =
      file ? retry_eintr([&] { return ::write(file.get(), text.data(), text.size()); }) : -1;
  if (written > 0 && written < size) {
    // The next stage must not stand behind half a line.
    (void)!::ftruncate(file.get(), ::lseek(file.get(), 0, SEEK_CUR) - written);
    errno = ENOSPC;
  }
  if (written != size && !has_trouble_) {
    messages::warning("{}: if this server is killed, the next one may judge a scope again",
                      system_error(fmt::format("cannot write '{}'", path)).value().message);
  }
  has_trouble_ = written != size;
  return !has_trouble_;
}

void KillFiles::remove_after(std::span<const Expiry> expiries, const Process* living,
                             std::uint64_t record_number) {
  const std::string& id = expiries.front().id;
  const bool is_kept = living != nullptr && std::ranges::any_of(expiries, [](const Expiry& expiry) {
                         return expiry.scope.has(slot_flag::kIdle);
                       });
  if (is_kept) {
    std::string& kept = kept_[{living->pid, living->start_time}];
    if (!kept.empty() && kept != id) {
      ended_.push_back({std::move(kept), record_number});
    }
    kept = id;
  }
  ended_.push_back({id, record_number, is_kept});
}

void KillFiles::forget(const Process& worker) {
  if (const auto kept = kept_.find({worker.pid, worker.start_time}); kept != kept_.end()) {
    ended_.push_back({std::move(kept->second), ended_.empty() ? 0 : ended_.back().record_number});
    kept_.erase(kept);
  }
}

void KillFiles::remove_synced(std::uint64_t synced) {
  for (; !ended_.empty() && ended_.front().record_number <= synced; ended_.pop_front()) {
    const Ended& ended = ended_.front();
    // A file that stays must not make the next server run the hook again.
    if (ended.is_kept || (::unlink(path_of(ended.id).c_str()) != 0 && errno != ENOENT)) {
      note_recorded(ended.id);
    }
  }
}

}  // namespace filetimer
