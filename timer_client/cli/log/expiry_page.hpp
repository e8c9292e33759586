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
  // The same of another scope of this worker that expired together with it: of these only the first
  // one's records say what all share.
  [[nodiscard]] const Record* find_shared(std::string_view event) const;
  [[nodiscard]] bool is_in_timeline(const Moment& moment) const;
  [[nodiscard]] const Record& base() const;  // its verdict, or its first record

  // A warning has an id of its own, and one record.
  [[nodiscard]] bool is_of_warning() const;
  [[nodiscard]] std::string outcome() const;
  [[nodiscard]] std::string end_of_command() const;
  [[nodiscard]] std::string whom_it_may_have_waited_for() const;
  void add_headline(Page& page) const;
  void add_open_scopes(Page& page) const;
  void add_ranks(Page& page) const;
  void add_evidence(Page& page) const;
  void add_peers_of_incident(Page& page) const;
  void add_command_outputs(Page& page) const;
  static void add_command_output(Page& page, const Record& command);
  void add_timeline(Page& page) const;
  void add_outcome(Page& page) const;

  ExpiryKey key_;
  const Incident& incident_;
  std::deque<ParsedRecord> own_;  // of this expiry
  // `expired` and `evidence` of its worker with other ids, `evidence_command` and `peer_evidence`
  // of any incident, and `server_stopped` of any server.
  std::deque<ParsedRecord> siblings_;
};

}  // namespace filetimer::cli
