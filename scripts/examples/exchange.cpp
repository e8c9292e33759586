// SPDX-License-Identifier: MIT
#include "exchange.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

namespace filetimer::examples {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return system_error("cannot make a pipe");
  }
  return Pipe{UniqueFd{ends[0]}, UniqueFd{ends[1]}};
}

bool take_fd(std::string_view& rest, char end_mark, UniqueFd& fd) {
  int number = -1;
  const char* const last = rest.data() + rest.size();
  const auto [end, ec] = std::from_chars(rest.data(), last, number);
  if (ec != std::errc{} || end == last || *end != end_mark ||
      ::fcntl(number, F_SETFD, FD_CLOEXEC) != 0) {  // not for children of this rank
    return false;
  }
  fd.reset(number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  return true;
}

}  // namespace

Result<std::vector<Exchange>> Exchange::make(int ranks) {
  std::vector<Exchange> all(static_cast<std::size_t>(ranks));
  for (int rank = 1; rank < ranks; ++rank) {
    auto up = make_pipe();
    auto down = make_pipe();
    if (!up || !down) {
      return tl::unexpected(up ? down.error() : up.error());
    }
    Exchange& other = all[static_cast<std::size_t>(rank)];
    other.rank_ = rank;
    other.peers_.push_back({0, std::move(down->read_end), std::move(up->write_end)});
    all[0].peers_.push_back({rank, std::move(up->read_end), std::move(down->write_end)});
  }
  return all;
}

std::string Exchange::inherit() const {
  std::string text;
  for (const Peer& peer : peers_) {
    ::fcntl(peer.in.get(), F_SETFD, 0);
    ::fcntl(peer.out.get(), F_SETFD, 0);
    fmt::format_to(std::back_inserter(text), "{}:{},", peer.in.get(), peer.out.get());
  }
  return text;
}

Result<Exchange> Exchange::from_text(int rank, const std::string& text) {
  Exchange exchange;
  exchange.rank_ = rank;
  for (std::string_view rest = text; !rest.empty();) {
    Peer peer;
    peer.rank = rank == 0 ? static_cast<int>(exchange.peers_.size()) + 1 : 0;
    if (!take_fd(rest, ':', peer.in) || !take_fd(rest, ',', peer.out)) {
      return failure(fmt::format("'{}' does not name the pipes of rank {}", text, rank));
    }
    exchange.peers_.push_back(std::move(peer));
  }
  return exchange;
}

Status Exchange::receive(const Peer& peer, std::span<float> numbers) {
  for (auto bytes = std::as_writable_bytes(numbers); !bytes.empty();) {
    const ssize_t n =
        retry_eintr([&] { return ::read(peer.in.get(), bytes.data(), bytes.size()); });
    if (n < 0) {
      return system_error(fmt::format("cannot read from rank {}", peer.rank));
    }
    if (n == 0) {
      return failure(fmt::format("rank {} is gone: its pipe was closed", peer.rank));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status Exchange::send(const Peer& peer, std::span<const float> numbers) {
  for (auto bytes = std::as_bytes(numbers); !bytes.empty();) {
    const ssize_t n =
        retry_eintr([&] { return ::write(peer.out.get(), bytes.data(), bytes.size()); });
    if (n < 0) {  // EPIPE, as a rank ignores SIGPIPE
      return system_error(fmt::format("rank {} is gone: cannot write to it", peer.rank));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status Exchange::mean_over_ranks(std::span<float> numbers) {
  if (rank_ != 0) {
    // Blocking writes cannot deadlock, because rank 0 reads before it writes.
    return send(peers_.front(), numbers).and_then([&] { return receive(peers_.front(), numbers); });
  }
  std::vector<float> theirs(numbers.size());
  for (const Peer& peer : peers_) {  // always in this order: the sum has the same bits in each run
    if (auto received = receive(peer, theirs); !received) {
      return received;
    }
    std::transform(numbers.begin(), numbers.end(), theirs.begin(), numbers.begin(), std::plus<>{});
  }
  const float share = 1.0F / static_cast<float>(peers_.size() + 1);
  for (float& number : numbers) {
    number *= share;
  }
  for (const Peer& peer : peers_) {
    if (auto sent = send(peer, numbers); !sent) {
      return sent;
    }
  }
  return {};
}

}  // namespace filetimer::examples
