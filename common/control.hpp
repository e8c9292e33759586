// The socket of control requests, which are packets (wire.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <string_view>

#include "common/posix.hpp"
#include "common/result.hpp"
#include "common/run_folder.hpp"

namespace filetimer {

// The address of a socket in a folder. An address has room for 107 bytes, so a longer
// path leads through a descriptor of the folder.
class ControlAddress {
 public:
  // Fails if the path is long and the folder cannot be opened.
  static Result<ControlAddress> in(const std::string& dir, std::string_view name = kControlName);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t size() { return sizeof(sockaddr_un); }

 private:
  sockaddr_un address_{};
  UniqueFd folder_;
};

}  // namespace filetimer
