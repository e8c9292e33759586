// All that logs say about one expiry, as a page: first what happened, in one sentence, then the
// record, where the ranks were, the evidence, and what was done.
// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
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
  // The records have to live as long as this.
  ExpiryPage(ExpiryKey key, const IncidentRecords& records);

  [[nodiscard]] std::string page(bool colour) const;

  // Returns what happened, in one sentence; empty: no record was of this expiry.
  [[nodiscard]] std::string headline() const;
  // Returns labels and values of what a person needs next, without those that no record has.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> facts() const;
  // Returns the worker, after a record of this expiry.
  [[nodiscard]] ExpiredWorker expired_worker() const;

 private:
  // A copy of a record with all that it views.
  struct Kept {
    std::string line;
    simdjson::dom::parser parser;
    Record record;
  };
  using Records = std::vector<std::unique_ptr<const Kept>>;

  void take(const Record& record);
  static void keep(const Record& record, Records& records);
  [[nodiscard]] const Record* find(std::string_view event) const;
  // The same of another scope of this worker that expired together with it: of these only the first
  // one's records say what all share.
  [[nodiscard]] const Record* find_shared(std::string_view event) const;
  [[nodiscard]] bool came_before(const Record& record) const;

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
  const IncidentRecords& records_;
  Records own_;       // of this expiry
  Records warnings_;  // `warned` and `deferred` of its host, which name no expiry
  // `expired` and `evidence` of its worker with other ids, `evidence_command` and `peer_evidence`
  // of any incident, and `server_stopped` of any server.
  Records siblings_;
};

}  // namespace filetimer::cli
