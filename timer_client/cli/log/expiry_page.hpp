// All that logs say about one expiry, as a page: first what happened, in one sentence, then the
// record, where the ranks were, the evidence, and what was done.
// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/log/record.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {

// The page of one expiry.
class ExpiryPage {
 public:
  // The records and their incident, for a page as it is shown, have to live as long as this.
  ExpiryPage(ExpiryKey key, const IncidentRecords& records, const Incident& incident);

  [[nodiscard]] std::string page(bool colour) const;

  // Returns what happened, in one sentence; empty: no record was of this expiry.
  [[nodiscard]] std::string headline() const;
  // Returns labels and values of what a person needs next, without those that no record has.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> facts() const;

 private:
  [[nodiscard]] const Record* find(std::string_view event) const;
  [[nodiscard]] bool is_in_timeline(const Moment& moment) const;
  [[nodiscard]] const Record& base() const;  // its verdict, or its first record

  // A warning has an id of its own, and one record.
  [[nodiscard]] bool is_of_warning() const;
  [[nodiscard]] std::string outcome() const;
  [[nodiscard]] std::string end_of_command() const;
  [[nodiscard]] std::string whom_it_may_have_waited_for() const;
  void add_headline(Page& page) const;
  void add_open_scopes(Page& page) const;
  void add_evidence(Page& page) const;
  void add_peers_of_incident(Page& page) const;
  void add_command_outputs(Page& page) const;
  void add_timeline(Page& page) const;
  void add_outcome(Page& page) const;

  ExpiryKey key_;
  const Incident& incident_;
  const Worker* worker_ = nullptr;  // the one that expired
  std::deque<ParsedRecord> own_;    // the records of this expiry
  // The `peer_evidence` records of its incident, the `server_stopped` records of its host, and,
  // where several scopes of the worker expired together, their other `expired` records and the
  // `evidence` record of the first: only the records of the first scope say what all share.
  std::deque<ParsedRecord> shared_;
};

}  // namespace filetimer::cli
