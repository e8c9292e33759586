// SPDX-License-Identifier: MIT
#include "timer_client/cli/log/incident_record.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "common/json_fields.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

OpenScope read_open_scope(dom::object scope) {
  return {.pid = integer_at(scope, "pid"),
          .rank = integer_at(scope, "rank"),
          .tid = integer_at(scope, "tid"),
          .comm = text_at(scope, "comm"),
          .scope = text_at(scope, "scope"),
          .elapsed_s = number_at(scope, "elapsed_s"),
          .timeout_s = number_at(scope, "timeout_s"),
          .remaining_s = number_at(scope, "remaining_s")};
}

bool tells_job(dom::object worker) {
  return !text_at(worker, "job_id").empty();
}

}  // namespace

std::optional<Incident> read_incident(const Record& record, const std::string& job_id,
                                      const JobsOfPids& jobs) {
  dom::parser parser;
  dom::object object;
  if (parser.parse(record.raw).get_object().get(object) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  const std::vector<dom::object> scopes = objects_at(object, "open_scopes");
  const std::vector<dom::object> idle = objects_at(object, "in_no_scope");
  const bool tells_jobs = std::any_of(scopes.begin(), scopes.end(), tells_job) ||
                          std::any_of(idle.begin(), idle.end(), tells_job);
  std::set<std::pair<Integer, Integer>> told;  // pid and rank of whom we know whose they are
  const auto is_ours = [&](dom::object worker) {
    std::string job = text_at(worker, "job_id");
    const Integer pid = integer_at(worker, "pid");
    if (const auto known = jobs.find(pid.value_or(-1)); job.empty() && known != jobs.end()) {
      job = known->second;
    }
    if (job.empty() && tells_jobs && !job_id.empty()) {
      return false;  // it may be another job's
    }
    told.emplace(pid, integer_at(worker, "rank"));
    return job.empty() || job == job_id;
  };
  Incident incident{.id = record.incident,
                    .host = record.host,
                    .time_us = record.time_us,
                    .open_scopes = {},
                    .in_no_scope = {},
                    .unlisted = 0,
                    .omitted = count_at(object, "omitted"),
                    .tells_jobs = tells_jobs};
  for (const dom::object scope : scopes) {
    if (is_ours(scope)) {
      incident.open_scopes.push_back(read_open_scope(scope));
    }
  }
  for (const dom::object worker : idle) {
    if (is_ours(worker)) {
      incident.in_no_scope.push_back(
          {{}, integer_at(worker, "pid"), integer_at(worker, "rank"), text_at(worker, "comm")});
    }
  }
  incident.unlisted = std::max<std::int64_t>(
      count_at(object, "workers") - static_cast<std::int64_t>(told.size()), 0);
  return incident;
}

std::vector<OpenScope> read_open_scopes(const dom::object& record) {
  std::vector<OpenScope> scopes;
  for (const dom::object scope : objects_at(record, "open_scopes")) {
    scopes.push_back(read_open_scope(scope));
  }
  return scopes;
}

}  // namespace filetimer::cli
