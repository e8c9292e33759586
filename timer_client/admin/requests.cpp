// SPDX-License-Identifier: MIT
#include "timer_client/admin/requests.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>

#include "common/duration_text.hpp"
#include "common/json_fields.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

// How many scopes and ranks an error names.
constexpr std::size_t kMaxNamed = 8;

Duration from_seconds(double seconds) {
  constexpr double kMost = 1e9;  // far within what nanoseconds can hold
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, -kMost, kMost)));
}

int as_rank(std::int64_t number) {
  return static_cast<int>(std::clamp<std::int64_t>(number, -1, std::numeric_limits<int>::max()));
}

std::optional<int> rank_at(simdjson::dom::object object) {
  const auto rank = integer_at(object, "rank");
  return rank ? std::optional(as_rank(*rank)) : std::nullopt;
}

std::vector<int> ranks_at(simdjson::dom::object object, std::string_view key) {
  std::vector<int> ranks;
  for (const auto element : elements_at(object, key)) {
    if (const auto rank = as_integer(element)) {
      ranks.push_back(as_rank(*rank));
    }
  }
  return ranks;
}

std::vector<RendezvousResult::Member> members_at(simdjson::dom::object object) {
  std::vector<RendezvousResult::Member> members;
  for (const auto each : objects_at(object, "joined")) {
    members.push_back(
        {rank_at(each).value_or(-1), static_cast<pid_t>(integer_at(each, "pid").value_or(0))});
  }
  std::ranges::sort(members, {}, &RendezvousResult::Member::rank);
  return members;
}

// Returns what `read` returns for the JSON object `answer`; a default value if it is no object.
template <class Read>
auto with_answer(std::string_view answer, Read&& read) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  decltype(read(object)) result{};
  if (parser.parse(answer.data(), answer.size()).get_object().get(object) == simdjson::SUCCESS) {
    result = read(object);
  }
  return result;
}

// "3, 5, 7 and 12 more", of so many.
std::string list_of(const std::vector<std::string>& words, std::size_t count) {
  const auto named = std::span(words).first(std::min(words.size(), kMaxNamed));
  const std::string text = fmt::format("{}", fmt::join(named, ", "));
  return !named.empty() && named.size() < count
             ? fmt::format("{} and {} more", text, count - named.size())
             : text;
}

std::string list_of(const std::vector<int>& ranks) {
  std::vector<std::string> words(ranks.size());
  std::ranges::transform(ranks, words.begin(), [](int rank) { return std::to_string(rank); });
  return list_of(words, words.size());
}

}  // namespace

double wait_seconds(Duration wait) {
  return wait == kForever ? std::numeric_limits<double>::infinity()
                          : std::chrono::duration<double>(wait).count();
}

wire::Question question_of(std::string_view request, Duration wait) {
  wire::Question question;
  question.request = request;
  question.wait_s = wait_seconds(wait);
  return question;
}

wire::Question question_of(ShutdownMode mode, Duration wait) {
  wire::Question question = question_of("shutdown", wait);
  for (const ShutdownWords& each : kShutdownModes) {
    if (each.mode == mode) {
      question.graceful = each.graceful;
      question.force = each.force;
    }
  }
  return question;
}

wire::Question question_of(const RendezvousOptions& options) {
  wire::Question question = question_of("rendezvous", options.timeout.value());
  question.name = options.name;
  question.rank = options.rank;
  question.world = options.world;
  return question;
}

Obstacles obstacles_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    Obstacles found;
    found.open_scope_count = static_cast<std::size_t>(count_at(object, "open_scope_count"));
    for (const auto each : objects_at(object, "open_scopes")) {
      OpenScope scope;
      scope.pid = static_cast<pid_t>(integer_at(each, "pid").value_or(0));
      scope.rank = rank_at(each);
      scope.scope = text_at(each, "scope");
      scope.elapsed = from_seconds(number_at(each, "elapsed_s").value_or(0));
      if (const auto remaining = number_at(each, "remaining_s")) {
        scope.remaining = from_seconds(*remaining);
      }
      found.scopes.push_back(std::move(scope));
    }
    for (const auto each : objects_at(object, "workers")) {
      found.workers.push_back({static_cast<pid_t>(integer_at(each, "pid").value_or(0)),
                               text_at(each, "comm"), rank_at(each)});
    }
    return found;
  });
}

std::string open_scopes_text(const Obstacles& obstacles) {
  std::vector<std::string> words;
  for (const OpenScope& scope : obstacles.scopes) {
    words.push_back(fmt::format("'{}' of pid {}{}", printable(scope.scope), scope.pid,
                                scope.rank ? fmt::format(" (rank {})", *scope.rank) : ""));
  }
  return list_of(words, std::max(obstacles.open_scope_count, words.size()));
}

std::optional<Duration> granted_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) -> std::optional<Duration> {
    const auto wait_s = number_at(object, "wait_s");
    return wait_s ? std::optional(duration_from_seconds(*wait_s)) : std::nullopt;
  });
}

ServerStatus status_in(const std::string& answer) {
  auto status = with_answer(answer, [](simdjson::dom::object object) {
    const auto pid_at = [&](std::string_view key) {
      return static_cast<pid_t>(integer_at(object, key).value_or(0));
    };
    ServerStatus read;
    read.server_pid = pid_at("server_pid");
    read.server_version = text_at(object, "server_version");
    read.uptime = from_seconds(number_at(object, "uptime_s").value_or(0));
    read.dir = text_at(object, "dir");
    read.fifo = text_at(object, "fifo");
    read.log = text_at(object, "log");
    read.announcement = text_at(object, "announcement");
    read.workers = count_at(object, "workers");
    read.open_scopes = count_at(object, "open_scopes");
    read.requests = count_at(object, "requests");
    read.rejected = count_at(object, "rejected");
    read.expired = count_at(object, "expired");
    read.killed = count_at(object, "killed");
    read.kills_under_way = count_at(object, "kills_under_way");
    read.unkillable = count_at(object, "unkillable");
    read.askers = count_at(object, "askers");
    read.descriptors = count_at(object, "descriptors");
    if (simdjson::dom::object limits; object["limits"].get(limits) == simdjson::SUCCESS) {
      read.descriptor_limit = count_at(limits, "descriptors");
      read.worker_limit = count_at(limits, "workers");
    }
    read.log_trouble = text_at(object, "log_trouble");
    read.command_pid = pid_at("command_pid");
    return read;
  });
  status.json = answer;
  return status;
}

DrainResult drain_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    bool draining = false;
    if (object.at_key("draining").get_bool().get(draining) != simdjson::SUCCESS) {
      draining = false;
    }
    return DrainResult{draining, count_at(object, "open_scope_count")};
  });
}

RendezvousResult rendezvous_in(std::string_view answer) {
  return with_answer(answer, [](simdjson::dom::object object) {
    return RendezvousResult{integer_at(object, "round").value_or(0), members_at(object)};
  });
}

std::string members_text(const RendezvousResult& met) {
  std::vector<std::string> words;
  for (const auto& member : met.joined) {
    words.push_back(fmt::format("{} (pid {})", member.rank, member.pid));
  }
  return list_of(words, words.size());
}

ServerBusy busy_in(const Reply& reply) {
  Obstacles obstacles = obstacles_in(reply.answer);
  std::string what = reply.why;
  if (const std::string scopes = open_scopes_text(obstacles); !scopes.empty()) {
    what += "; open: " + scopes;
  }
  return {what, reply.why, reply.kind == Reply::Kind::kTimedOut, obstacles.open_scope_count,
          std::move(obstacles.scopes)};
}

RendezvousTimeoutError rendezvous_timeout_in(const Reply& reply, const std::string& name) {
  struct Ranks {
    std::vector<int> joined;
    std::vector<int> missing;
    std::vector<int> left;
  };
  Ranks ranks = with_answer(reply.answer, [](simdjson::dom::object object) {
    Ranks found;
    for (const auto& member : members_at(object)) {
      found.joined.push_back(member.rank);
    }
    found.missing = ranks_at(object, "missing");
    found.left = ranks_at(object, "left");
    return found;
  });
  std::string what = fmt::format("rendezvous '{}': {}", printable(name), reply.why);
  if (!ranks.missing.empty()) {
    what += "; missing: " + list_of(ranks.missing);
  }
  if (!ranks.left.empty()) {
    what += "; had joined and left: " + list_of(ranks.left);
  }
  return {what, name, std::move(ranks.joined), std::move(ranks.missing), std::move(ranks.left)};
}

}  // namespace filetimer
