// SPDX-License-Identifier: MIT
#include "timer_server/control/control_clients.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <utility>

#include "common/duration_text.hpp"
#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

// Returns how many bytes were written. An error counts as all of them: the client is gone.
std::size_t write_some(int connection, std::string_view text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const std::string_view packet = text.substr(written, kAnswerPacketBytes);
    const ssize_t sent =
        retry_eintr([&] { return ::send(connection, packet.data(), packet.size(), MSG_NOSIGNAL); });
    if (sent < 0) {
      return errno == EAGAIN ? written : text.size();
    }
    written += static_cast<std::size_t>(sent);
  }
  return written;
}

}  // namespace

JsonWriter begin_answer(std::string_view kind) {
  JsonWriter json;
  json.field("version", wire::kVersion).field("answer", kind);
  return json;
}

std::string answer_with_reason(std::string_view kind, std::string_view reason) {
  return begin_answer(kind).field("reason", reason).finish();
}

std::string first_of(const std::vector<std::int64_t>& numbers, std::size_t most) {
  return listed(mapped(numbers, [](std::int64_t number) { return std::to_string(number); }), most);
}

std::string too_many_wait(std::size_t others) {
  return fmt::format("{} clients wait for an answer: there is no room for another", others);
}

ControlClients::ControlClients(EventLoop& loop, std::size_t most,
                               std::function<void(Id)> on_withdrawn)
    : loop_(loop), most_(most), on_withdrawn_(std::move(on_withdrawn)) {}

void ControlClients::listen(UniqueFd socket) {
  source_.reset();
  socket_ = std::move(socket);
  wait_for_clients(Instant::now());
}

void ControlClients::wait_for_clients(Instant now) {
  try {
    source_ = watch_io(loop_, socket_.get(), EPOLLIN, kOrdinary, [this] { accept(); });
    listen_again_ = Instant::never();
  } catch (const std::system_error&) {
    listen_again_ = now + kListenAgain;
  }
}

bool ControlClients::accept() {
  UniqueFd connection(retry_eintr(
      [&] { return ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }));
  if (!connection) {
    if (errno != EAGAIN && errno != ECONNABORTED) {
      source_.reset();
      listen_again_ = Instant::now() + kListenAgain;
    }
    return false;
  }
  const auto refuse = [&connection](std::string_view why) {
    (void)write_some(connection.get(), answer_with_reason("refused", why) + '\n');
    return true;
  };
  if (clients_.size() >= most_) {
    return refuse(too_many_wait(clients_.size()));
  }
  const Id id = ++last_id_;
  Client client;
  try {
    client.source =
        watch_io(loop_, connection.get(), EPOLLIN, kOrdinary, [this, id] { on_event(id); });
  } catch (const std::system_error& error) {
    return refuse(error.what());
  }
  socklen_t size = sizeof client.process;
  ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &client.process, &size);
  client.connection = std::move(connection);
  client.until = Instant::now() + kPatience;
  on_event(clients_.emplace(id, std::move(client)).first->first);  // most requests are there
  return true;
}

void ControlClients::accept_all() {
  for (std::size_t left = kMaxWaitingClients + 1; left > 0 && accept(); --left) {
  }
}

void ControlClients::on_event(Id id) {
  Client& client = clients_.at(id);
  if (!client.has_asked) {
    receive(id, client);
  } else if (!client.unread.empty()) {
    client.unread.erase(0, write_some(client.connection.get(), client.unread));
    if (client.unread.empty()) {
      clients_.erase(id);
    }
  } else {
    clients_.erase(id);
    on_withdrawn_(id);
  }
}

void ControlClients::receive(Id id, Client& client) {
  std::array<char, kMaxControlBytes + 1> packet{};
  const ssize_t got =
      retry_eintr([&] { return ::recv(client.connection.get(), packet.data(), packet.size(), 0); });
  if (got > 0) {
    client.has_asked = true;
    client.until = Instant::never();
    client.source->change_events(0);  // a hang-up is reported
    asked_.push_back({id, client.process, {packet.data(), static_cast<std::size_t>(got)}});
  } else if (got == 0 || errno != EAGAIN) {
    clients_.erase(id);
  }
}

std::optional<ControlClients::Asked> ControlClients::take() {
  if (asked_.empty()) {
    return std::nullopt;
  }
  Asked next = std::move(asked_.front());
  asked_.pop_front();
  return next;
}

bool ControlClients::has_left(Id id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return true;
  }
  pollfd connection{found->second.connection.get(), 0, 0};
  return ::poll(&connection, 1, 0) > 0;
}

bool ControlClients::grant(Id id, Duration wait) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return false;
  }
  found->second.is_waiting = true;
  tell(id, begin_answer("granted").field("wait_s", in_seconds(wait)).finish());
  return true;
}

std::size_t ControlClients::count_waiting() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(clients_, [](const auto& entry) { return entry.second.is_waiting; }));
}

void ControlClients::tell(Id id, const std::string& answer) {
  const auto found = clients_.find(id);
  if (found != clients_.end() && answer.size() < kAnswerPacketBytes) {
    (void)write_some(found->second.connection.get(), answer + '\n');
  }
}

void ControlClients::finish(Id id, std::string answer) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  Client& client = found->second;
  client.is_waiting = false;
  client.unread = std::move(answer) + '\n';
  client.until = Instant::now() + kPatience;
  client.source->change_events(EPOLLOUT);
  on_event(id);
}

void ControlClients::finish_at_exit(Id id, const std::string& answer) {
  const auto found = clients_.find(id);
  if (found != clients_.end()) {
    (void)write_some(found->second.connection.get(), answer + '\n');
    (void)found->second.connection.release();
    clients_.erase(found);
  }
}

Instant ControlClients::advance(Instant now) {
  if (now >= listen_again_) {
    wait_for_clients(now);
  }
  Instant next = listen_again_;
  std::erase_if(clients_, [&](const auto& entry) {
    const Client& client = entry.second;
    const bool is_over = client.until <= now;
    if (is_over) {
      messages::warning("the client with pid {} has not {} within {}: dropped", client.process.pid,
                        client.unread.empty() ? "asked" : "read its answer",
                        duration_text(kPatience));
    }
    next = is_over ? next : std::min(next, client.until);
    return is_over;
  });
  return next;
}

}  // namespace filetimer
