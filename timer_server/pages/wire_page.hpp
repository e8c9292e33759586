// The page that the server keeps for a worker that speaks on the pipe: the worker's timers as the
// table has them, in a file, so that they outlive this server and anybody can list them. The table
// is what counts; this is written behind it, once for each reading of the pipe, and what was opened
// and closed within one reading is never written at all. Written by pwrite, not through a mapping:
// a full file system is an error here, not a SIGBUS, and costs this process no memory. Loop thread
// only.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/result.hpp"
#include "timer_server/process.hpp"
#include "timer_server/worker_facts.hpp"

namespace filetimer {

struct ScopeTerms;

class WirePage {
 public:
  // A slot's number; the same that the table's scope carries.
  using SlotNumber = std::uint16_t;
  static constexpr SlotNumber kNone = 0xFFFF;

  explicit WirePage(std::string path) : path_(std::move(path)) {}

  // Each changes what is to be written; kNone is taken for a scope that has no slot.
  SlotNumber open(std::string_view id, std::size_t shown_bytes, const ScopeTerms& terms);
  void renew(SlotNumber slot, const ScopeTerms& terms);
  void expire(SlotNumber slot, const ScopeTerms& terms);
  void close(SlotNumber slot);
  // What a server before this one has kept: every slot that is not free. Read into memory, not
  // mapped: a hole of the file must be no SIGBUS.
  struct Kept {
    PageClaims claims;
    std::size_t slots = 0;
    std::vector<std::pair<SlotNumber, SlotReading>> scopes;
    UniqueFd file;  // open to go on with
  };
  static Result<Kept> read(const std::string& path);
  // Goes on with it: its scopes are open in their slots until each is closed.
  void take_over(Kept& kept);

  [[nodiscard]] bool has_changed() const { return !changes_.empty(); }
  // Writes what has changed; makes the file when there is something to keep. Who the worker is in
  // its job is written as soon as it is known. After an error the page is given up: its file is
  // removed, so that no server takes stale timers for open ones.
  Status save(const Process& worker, const std::optional<WorkerFacts>& facts);
  void remove();

 private:
  struct Change {
    SlotNumber slot = 0;
    std::int64_t word = 0;
    std::int64_t acquired = 0;
    std::int64_t timeout = 0;
    std::uint32_t grace_ms = 0;
    std::uint32_t soft_ms = 0;
    std::int32_t tid = 0;
    std::uint16_t signal = 0;
    std::uint16_t flags = 0;
    std::uint32_t shown_bytes = 0;
    bool has_name = false;  // else it is as it was
    std::string name;
  };

  Change& change_of(SlotNumber slot);
  void set_terms(Change& change, const ScopeTerms& terms) const;
  Status make_file(const Process& worker);
  Status write_facts(const WorkerFacts& facts);
  Status write(const Change& change);

  std::string path_;
  UniqueFd fd_;
  bool is_given_up_ = false;
  bool has_facts_ = false;
  std::uint32_t slots_ = 0;        // ever used
  std::uint32_t saved_slots_ = 0;  // as the header says
  std::vector<SlotNumber> free_;
  std::vector<SlotNumber> changed_;  // by slot: where its change is, plus 1; 0: none
  std::vector<Change> changes_;
};

}  // namespace filetimer
