// Bytes of a log in, records out. A log may end in half a line, hold a line of somebody else's or
// of a later schema: those are skipped and counted, never fatal. Memory is bounded by the longest
// record allowed, whatever the size of the file.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace filetimer::cli {

inline constexpr std::int64_t kSchema = 1;

// What a record may lack.
using Integer = std::optional<std::int64_t>;
using Number = std::optional<double>;

// What the commands choose and show records by. What is absent, or not of the type it should have,
// is empty. The whole of the record is in `raw`.
struct Record {
  std::string raw;  // the line, without its newline
  std::string event;
  std::optional<std::int64_t> time_us;  // wall clock, since the epoch
  std::optional<std::int64_t> mono_ns;

  std::string host;
  std::string boot_id;
  std::string comm;
  std::optional<std::int64_t> pid;
  std::optional<std::int64_t> rank;

  std::string id;
  std::string incident;
  std::string scope;
  std::string reason;
  std::string verdict;
  std::string job_id;
  std::string name;     // of a rendezvous, or of the signal that ended a hook
  std::string version;  // of the server
  std::string dir;      // the runtime directory of the server

  std::optional<double> timeout_s;
  std::optional<double> elapsed_s;
  std::optional<double> overdue_ms;
  std::optional<double> dead_after_ms;
  std::optional<double> late_ms;
  std::optional<double> asked_s;
  std::optional<double> granted_s;

  std::optional<std::int64_t> deadline_mono_ns;
  std::optional<std::int64_t> count;
  std::optional<std::int64_t> workers;
  std::optional<std::int64_t> scopes;   // a count, also where the record lists them
  std::optional<std::int64_t> expired;  // a count, also where the record lists them
  std::optional<std::int64_t> killed;

  std::string state_name;
  std::string wchan;

  std::string result;  // of a hook
  std::optional<std::int64_t> exit_status;
  std::optional<double> late_s;  // of a deferral
  std::optional<double> given_s;
};

class RecordReader {
 public:
  // Takes each record in the order of the file; false ends the reading.
  using Sink = std::function<bool(Record&&)>;

  // The next bytes of the file, cut anywhere. False once the sink wanted no more.
  bool feed(std::string_view bytes, const Sink& sink);
  // The file ends here: what has no newline is a line too.
  bool finish(const Sink& sink);
  // Drops what is there of a line that will not be completed.
  void forget_half_line();

  // Lines that are no records.
  [[nodiscard]] std::size_t skipped() const { return skipped_; }

 private:
  bool take_line(std::string_view line, const Sink& sink);

  std::string half_line_;
  bool too_long_ = false;  // the line being read is over the limit: drop it up to its newline
  std::size_t skipped_ = 0;
};

}  // namespace filetimer::cli
