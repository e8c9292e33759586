// SPDX-License-Identifier: MIT
#include "timer_server/questions/askers.hpp"

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

Askers::Askers(sd_event* loop, std::size_t most, std::function<void(Id)> on_withdrawn)
    : loop_(loop), most_(most), on_withdrawn_(std::move(on_withdrawn)) {}

std::optional<Askers::Id> Askers::add(UniqueFd pipe, std::string_view refusal) {
  if (askers_.size() >= most_) {
    (void)write_some(pipe.get(), fmt::format("{}\n", refusal));
    return std::nullopt;
  }
  askers_[++last_id_].pipe = std::move(pipe);
  return last_id_;
}

bool Askers::has_left(Id id) const {
  const auto found = askers_.find(id);
  if (found == askers_.end()) {
    return true;
  }
  pollfd pipe{found->second.pipe.get(), 0, 0};
  return ::poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0;
}

void Askers::watch(Id id) {
  if (const auto found = askers_.find(id); found != askers_.end()) {
    watch(id, found->second, 0);
  }
}

void Askers::watch(Id id, Asker& asker, std::uint32_t events) {
  asker.source.reset();
  asker.source = watch_io(loop_, asker.pipe.get(), events, kOrdinary, [this, id] { on_event(id); });
}

void Askers::on_event(Id id) {
  const auto found = askers_.find(id);
  if (found == askers_.end()) {
    return;
  }
  std::string& unread = found->second.unread;
  if (unread.empty()) {
    askers_.erase(found);
    on_withdrawn_(id);
    return;
  }
  unread.erase(0, write_some(found->second.pipe.get(), unread));
  if (unread.empty()) {
    askers_.erase(found);
  }
}

// An answer of up to kMaxAtomicWrite bytes is written as a whole or not at all.
void Askers::tell(Id id, const std::string& answer) {
  const auto found = askers_.find(id);
  if (found == askers_.end() || answer.size() >= kMaxAtomicWrite) {
    return;
  }
  (void)write_some(found->second.pipe.get(), answer + '\n');
}

void Askers::finish(Id id, std::string answer) {
  const auto found = askers_.find(id);
  if (found == askers_.end()) {
    return;
  }
  Asker& asker = found->second;
  answer += '\n';
  answer.erase(0, write_some(asker.pipe.get(), answer));
  if (answer.empty()) {
    askers_.erase(found);
    return;
  }
  asker.unread = std::move(answer);
  asker.until = Instant::now() + kUnreadLimit;
  watch(id, asker, EPOLLOUT);
}

void Askers::finish_at_exit(Id id, const std::string& answer) {
  const auto found = askers_.find(id);
  if (found != askers_.end()) {
    (void)write_some(found->second.pipe.get(), answer + '\n');
    (void)found->second.pipe.release();
    askers_.erase(found);
  }
}

Instant Askers::advance(Instant now) {
  Instant next = Instant::never();
  std::erase_if(askers_, [&](const auto& entry) {
    const bool is_over = entry.second.until <= now;
    next = is_over ? next : std::min(next, entry.second.until);
    return is_over;
  });
  return next;
}

}  // namespace filetimer
