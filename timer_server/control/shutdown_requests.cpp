// SPDX-License-Identifier: MIT
#include "timer_server/control/shutdown_requests.hpp"

#include <algorithm>
#include <utility>

namespace filetimer {

void ShutdownRequests::add(const Request& request, Instant now) {
  waiting_.push_back(request);
  next_look_ = now;
  next_news_ = now;
}

void ShutdownRequests::withdraw(Client client) {
  const auto left = std::ranges::find(waiting_, client, &Request::client);
  if (left == waiting_.end()) {
    return;
  }
  left->client = kNoClient;
  const auto before = std::ranges::find_if(waiting_, [&](const Request& other) {
    return other.client == kNoClient && &other != &*left;
  });
  if (before != waiting_.end()) {
    before->until = std::max(before->until, left->until);
    before->is_forced_then = before->is_forced_then || left->is_forced_then;
    before->waits_for_workers = before->waits_for_workers && left->waits_for_workers;
    waiting_.erase(left);
  }
}

std::vector<ShutdownRequests::Request> ShutdownRequests::take_all() {
  return std::exchange(waiting_, {});
}

std::vector<ShutdownRequests::Request> ShutdownRequests::take_overdue(Instant now) {
  std::vector<Request> overdue;
  std::erase_if(waiting_, [&](const Request& request) {
    if (request.until > now) {
      return false;
    }
    overdue.push_back(request);
    return true;
  });
  return overdue;
}

bool ShutdownRequests::all_wait_for_workers() const {
  return std::ranges::all_of(waiting_, &Request::waits_for_workers);
}

bool ShutdownRequests::note_look(Instant now) {
  next_look_ = waiting_.empty() ? Instant::never() : now + kLookPeriod;
  const bool is_time_for_news = now >= next_news_;
  if (is_time_for_news) {
    next_news_ = now + kNewsPeriod;
  }
  return is_time_for_news;
}

}  // namespace filetimer
