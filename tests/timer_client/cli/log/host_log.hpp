// The log of a made-up host: records at true times, shown on the clock that the host has then.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/timer_client/cli/cli_fixture.hpp"

namespace filetimer::cli {

inline constexpr std::int64_t kSecondUs = 1'000'000;

class HostLog {
 public:
  explicit HostLog(std::string host, std::int64_t clock_ahead_us = 0, std::string boot = {});

  // `at_us`: after three o'clock. `fields` begin with a comma.
  void add(const std::string& event, std::int64_t at_us, const std::string& fields = {});

  void add_text(const std::string& text) { text_ += text; }

  [[nodiscard]] std::int64_t mono_ns(std::int64_t at_us) const;
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string host_;
  std::string boot_;
  std::int64_t ahead_us_;
  std::string text_;
};

// Times in seconds after three o'clock.
struct MadeWorker {
  int pid = 0;
  std::optional<int> rank;
  std::string job;
  std::string scope;     // empty: it is in none
  double entered_s = 0;  // the scope
  double step_s = -1;    // when it entered `step` around that; negative: there is none
  double timeout_s = 30;
};

struct IncidentFields {
  bool tells_jobs = true;
  int unlisted = 0;
  int omitted = 0;
};

void add_incident(HostLog& log, double at_s, const std::string& id,
                  const std::vector<MadeWorker>& workers, const IncidentFields& fields = {});
// At its deadline, and a moment.
void add_expiry(HostLog& log, const std::string& id, const std::string& incident,
                const MadeWorker& worker);

// Returns the fields of a record that name the worker, with a comma before them.
std::string fields_of(const MadeWorker& worker);

// Runs a subcommand over a folder with the log.
Ran run_over(const HostLog& log, std::vector<std::string> words);

}  // namespace filetimer::cli
