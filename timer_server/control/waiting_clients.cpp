// SPDX-License-Identifier: MIT
#include "timer_server/control/waiting_clients.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "common/limits.hpp"

namespace filetimer {
namespace {

// Returns how many bytes were written. An error counts as all of them: the client is gone.
std::size_t write_some(int pipe, std::string_view text) {
  const ssize_t written = retry_eintr([&] { return ::write(pipe, text.data(), text.size()); });
  return written >= 0 ? static_cast<std::size_t>(written) : errno == EAGAIN ? 0 : text.size();
}

}  // namespace

WaitingClients::WaitingClients(EventLoop& loop, std::size_t most,
                               std::function<void(Id)> on_withdrawn)
    : loop_(loop), most_(most), on_withdrawn_(std::move(on_withdrawn)) {}

std::optional<WaitingClients::Id> WaitingClients::add(UniqueFd pipe, std::string_view refusal) {
  if (clients_.size() >= most_) {
    (void)write_some(pipe.get(), fmt::format("{}\n", refusal));
    return std::nullopt;
  }
  clients_[++last_id_].pipe = std::move(pipe);
  return last_id_;
}

bool WaitingClients::has_left(Id id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return true;
  }
  pollfd pipe{found->second.pipe.get(), 0, 0};
  return ::poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0;
}

void WaitingClients::watch(Id id) {
  if (const auto found = clients_.find(id); found != clients_.end()) {
    watch(id, found->second, 0);
  }
}

void WaitingClients::watch(Id id, Client& client, std::uint32_t events) {
  client.source.reset();
  client.source =
      watch_io(loop_, client.pipe.get(), events, kOrdinary, [this, id] { on_event(id); });
}

void WaitingClients::on_event(Id id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  std::string& unread = found->second.unread;
  if (unread.empty()) {
    clients_.erase(found);
    on_withdrawn_(id);
    return;
  }
  unread.erase(0, write_some(found->second.pipe.get(), unread));
  if (unread.empty()) {
    clients_.erase(found);
  }
}

// An answer of up to kMaxAtomicWrite bytes is written as a whole or not at all.
void WaitingClients::tell(Id id, const std::string& answer) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || answer.size() >= kMaxAtomicWrite) {
    return;
  }
  (void)write_some(found->second.pipe.get(), answer + '\n');
}

void WaitingClients::finish(Id id, std::string answer) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  Client& client = found->second;
  answer += '\n';
  answer.erase(0, write_some(client.pipe.get(), answer));
  if (answer.empty()) {
    clients_.erase(found);
    return;
  }
  client.unread = std::move(answer);
  client.until = Instant::now() + kUnreadLimit;
  watch(id, client, EPOLLOUT);
}

void WaitingClients::finish_at_exit(Id id, const std::string& answer) {
  const auto found = clients_.find(id);
  if (found != clients_.end()) {
    (void)write_some(found->second.pipe.get(), answer + '\n');
    (void)found->second.pipe.release();
    clients_.erase(found);
  }
}

Instant WaitingClients::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(clients_, [&](const auto& entry) {
    const bool is_over = entry.second.until <= now;
    next = is_over ? next : std::min(next, entry.second.until);
    return is_over;
  });
  return next;
}

}  // namespace filetimer
