// A client's connection to the control socket of a server, or of the part that has the socket.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "common/limits.hpp"
#include "common/posix.hpp"
#include "common/run_folder.hpp"
#include "tests/support/bound.hpp"

namespace filetimer::testing {

class ControlConnection {
 public:
  explicit ControlConnection(const std::string& dir)
      : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const auto address = ControlAddress::in(dir);
    REQUIRE(address.has_value());
    REQUIRE(::connect(fd_.get(), address->get(), ControlAddress::size()) == 0);
  }
  void send(std::string_view packet) const {
    REQUIRE(::send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(packet.size()));
  }
  // Returns everything that can be read now, and "END" at the end of the file.
  std::string read() {
    std::string text = std::exchange(read_, {});
    std::array<char, kAnswerPacketBytes> bytes{};
    ssize_t got = 0;
    while ((got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0)) > 0) {
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return got == 0 ? text + "END" : text;
  }
  // Waits for the next line and returns it; empty at the end of the file.
  std::string line() {
    while (read_.find('\n') == read_.npos && !read_.ends_with("END")) {
      REQUIRE(is_readable_within(fd_.get(), kBound));
      read_ += read();
    }
    const std::size_t end = std::min(read_.find('\n'), read_.size());
    const std::string line = read_.substr(0, end);
    read_.erase(0, end + 1);
    return line == "END" ? "" : line;
  }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string read_;
};

}  // namespace filetimer::testing
