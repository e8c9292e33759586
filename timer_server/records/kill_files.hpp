// The state of kills as files in the runtime directory, from which the next server continues.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "timer_server/records/records.hpp"

namespace filetimer {

// The verdicts of one worker that are carried out together, and what became of them.
struct KillState {
  WorkerIdentity worker;
  std::vector<Expiry> expiries;  // the earliest deadline first; in a file without their places
  std::vector<SentSignal> sent;
  std::vector<std::string> cancelled;  // other scopes of the worker; in the file once it has died

  // Of one that this server has begun.
  std::vector<SlotReading> open_scopes;    // of this worker, the expired ones included
  std::shared_ptr<const CpuSample> early;  // from before the deadline; null: none
  std::uint64_t record_number = 0;         // of the last record; 0: none is queued, or it is synced

  // Of one that an earlier server has begun, as its file has it.
  bool is_of_this_boot = true;
  bool may_have_stopped = false;     // targets; not by servers with --dry-run alone
  std::vector<std::string> records;  // of the verdicts, and of the outcomes if it has ended
  bool is_recorded = false;          // the records of the verdicts, or of the outcomes, are synced
  bool has_evidence = false;
  std::optional<KillVerdict> verdict;  // none: the kill has not ended
  bool has_hook = false;               // its hook was started
  std::size_t cancelled_before = 0;    // how many of the cancelled scopes the file had

  // Returns the id of the kill.
  [[nodiscard]] const std::string& id() const { return expiries.front().id; }

  // Returns the first signal, and the time after which SIGKILL follows it, if SIGKILL does: the
  // signal of the earliest expiry that has one and whose scope was not released since, and the
  // shortest grace period of such expiries. One whose signal is for the worker alone counts only if
  // there is no other. Returns nothing if the worker is to be spared.
  struct Means {
    int signal = 0;
    std::optional<Duration> grace;
    // The worker acts on it: its scope is signalled first, and no SIGKILL follows.
    bool is_for_worker_alone = false;
    [[nodiscard]] bool ends_in_sigkill() const { return signal == SIGKILL || grace; }
    bool operator==(const Means&) const = default;
  };
  [[nodiscard]] std::optional<Means> means() const;
};

// Keeps one file for each kill, `kills/ID`, from the verdict until the record of the outcome is
// synced. If the server is killed meanwhile, the next one has all that it needs to go on, and the
// records that may not have reached the log. A file has the lines
//
//   RECORD                        `expired`, and `released_late` before the signal
//   {"stage":"judged",...}        version 1, the worker, and the terms of its expired scopes
//   {"stage":"recorded"}          the records so far are synced
//   RECORD                        `evidence`
//   {"stage":"evidence"}
//   RECORD                        `released_late` after the verdict
//   {"stage":"released",...}      the scope and when
//   {"stage":"signalled",...}     a signal was sent
//   {"stage":"cancelled",...}     the worker has died, and these of its other scopes have ended
//   RECORD                        `killed`
//   {"stage":"ended",...}         the outcome
//   {"stage":"hook"}              --on-expiry was started; if that was before the file was removed
//
// Records count once the next stage stands behind them, because a server may be killed while it
// writes. The directory is in memory: a file costs microseconds and no sync.
class KillFiles {
 public:
  // The folder `kills` of the runtime directory `dir` is made with the first file.
  KillFiles(const std::string& dir, std::string boot_id);

  // Returns the kills in the folder, the oldest first. Removes kill files without a verdict. Throws
  // std::runtime_error if a file cannot be read for now: its kill would be begun again.
  [[nodiscard]] std::vector<KillState> read() const;

  // Note the verdicts of a kill, that its records are synced, its evidence, a late release, a
  // signal, the scopes that the kill has cancelled, and the outcome. `id` is that of the kill's
  // first expiry. begin() may be called again, as after a lack of memory for the log.
  void begin(const WorkerIdentity& worker, std::span<const Expiry> expiries,
             std::span<const std::string> records, bool is_dry_run = false);
  void note_recorded(const std::string& id);
  void note_evidence(const std::string& id, const std::string& record);
  void note_release(const std::string& id, const Expiry& expiry, const std::string& record);
  void note_signal(const std::string& id, const SentSignal& sent);
  void note_cancelled(const std::string& id, std::span<const std::string> scopes);
  void end(const std::string& id, KillVerdict verdict, std::span<const std::string> records);
  // Notes that the hook is started.
  void note_hook(const std::string& id);

  // Lets the file of a kill that has ended be removed when the log has synced the record
  // `record_number`. The file of an idle timeout whose worker lives is kept until forget(), or
  // until another one of the worker is kept: it says that the timeout was judged. `living`: null if
  // the worker has exited.
  void remove_after(std::span<const Expiry> expiries, const Process* living,
                    std::uint64_t record_number);
  void forget(const Process& worker);
  // Removes the files of kills whose outcomes are synced.
  void remove_synced(std::uint64_t synced);

 private:
  using ProcessKey = std::pair<pid_t, std::uint64_t>;
  struct Ended {
    std::string id;
    std::uint64_t record_number = 0;
    bool is_kept = false;
  };

  [[nodiscard]] std::string path_of(const std::string& id) const { return folder_ + '/' + id; }
  // Appends records and the line of the stage behind them. Returns whether they are written.
  bool append(const std::string& id, std::span<const std::string> records, const std::string& stage,
              bool is_first = false);

  const std::string folder_;
  const std::string boot_id_;
  std::deque<Ended> ended_;                 // in the order of their records; their files exist
  std::map<ProcessKey, std::string> kept_;  // by worker: the id
  bool has_trouble_ = false;                // the last file could not be written
};

}  // namespace filetimer
