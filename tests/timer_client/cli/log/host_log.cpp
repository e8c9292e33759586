// SPDX-License-Identifier: MIT
#include "tests/timer_client/cli/log/host_log.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace filetimer::cli {
namespace {

std::int64_t to_us(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e6);
}

}  // namespace

HostLog::HostLog(std::string host, std::int64_t clock_ahead_us, std::string boot)
    : host_(std::move(host)),
      boot_(boot.empty() ? "boot of " + host_ : std::move(boot)),
      ahead_us_(clock_ahead_us) {}

void HostLog::add(const std::string& event, std::int64_t at_us, const std::string& fields) {
  const std::int64_t us = at_us + ahead_us_;
  text_ += fmt::format(
      R"({{"schema":1,"event":"{}","time":"2026-11-21T03:{:02}:{:02}.{:06}Z","mono_ns":{},)"
      R"("host":"{}","boot_id":"{}"{}}})"
      "\n",
      event, us / (60 * kSecondUs), us / kSecondUs % 60, us % kSecondUs, mono_ns(at_us), host_,
      boot_, fields);
}

std::int64_t HostLog::mono_ns(std::int64_t at_us) const {
  // Each host has been up for another time.
  return static_cast<std::int64_t>(1'000'000'000'000 + 7'000'000'000 * host_.back()) + at_us * 1000;
}

std::string fields_of(const MadeWorker& worker) {
  return fmt::format(R"(,"pid":{}{}{})", worker.pid,
                     worker.rank ? fmt::format(R"(,"rank":{})", *worker.rank) : "",
                     worker.job.empty() ? "" : fmt::format(R"(,"job_id":"{}")", worker.job));
}

Ran run_over(const HostLog& log, std::vector<std::string> words) {
  const TempFolder folder;
  folder.write("log.jsonl", log.text());
  words.push_back(folder.path());
  return run_command(words);
}

void add_incident(HostLog& log, double at_s, const std::string& id,
                  const std::vector<MadeWorker>& workers, const IncidentFields& fields) {
  std::string scopes;
  std::string idle;
  std::set<int> pids;
  for (const MadeWorker& worker : workers) {
    pids.insert(worker.pid);
    MadeWorker listed = worker;
    listed.job = fields.tells_jobs ? worker.job : "";
    const std::string who = fmt::format(R"({{"comm":"t"{})", fields_of(listed));
    const auto open = [&](const std::string& scope, double entered_s, double timeout_s) {
      scopes += fmt::format(
          R"({}{},"scope":"{}","elapsed_s":{:.6f},"timeout_s":{},"remaining_s":{:.6f}}})",
          scopes.empty() ? "" : ",", who, scope, at_s - entered_s, timeout_s,
          entered_s + timeout_s - at_s);
    };
    if (worker.step_s >= 0) {
      open("step", worker.step_s, 600);
    }
    if (!worker.scope.empty()) {
      open(worker.scope, worker.entered_s, worker.timeout_s);
    } else if (worker.step_s < 0) {
      idle += fmt::format("{}{}}}", idle.empty() ? "" : ",", who);
    }
  }
  log.add("incident", to_us(at_s),
          fmt::format(R"(,"incident":"{}","workers":{},"open_scopes":[{}],"in_no_scope":[{}],)"
                      R"("omitted":{})",
                      id, pids.size() + static_cast<std::size_t>(fields.unlisted), scopes, idle,
                      fields.omitted));
}

void add_expiry(HostLog& log, const std::string& id, const std::string& incident,
                const MadeWorker& worker) {
  const std::int64_t deadline_us = to_us(worker.entered_s + worker.timeout_s);
  log.add("expired", deadline_us + 100,
          fmt::format(R"({},"start_time":7,"comm":"t","id":"{}"{},)"
                      R"("scope":"{}","elapsed_s":{},"timeout_s":{},"overdue_ms":0.1,)"
                      R"("acquired_mono_ns":{},"deadline_mono_ns":{})",
                      fields_of(worker), id,
                      incident.empty() ? "" : fmt::format(R"(,"incident":"{}")", incident),
                      worker.scope, worker.timeout_s + 1e-4, worker.timeout_s,
                      log.mono_ns(to_us(worker.entered_s)), log.mono_ns(deadline_us)));
}

}  // namespace filetimer::cli
