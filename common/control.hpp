// Control requests: their socket, and a request as a packet (docs/protocol.md). Answers are JSON
// objects, one a line.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/posix.hpp"
#include "common/result.hpp"

namespace filetimer {

// The address of the socket `control` in a folder. An address has room for 107 bytes, so a longer
// path leads through a descriptor of the folder.
class ControlAddress {
 public:
  // Fails if the path is long and the folder cannot be opened.
  static Result<ControlAddress> in(const std::string& dir);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t size() { return sizeof(sockaddr_un); }

 private:
  sockaddr_un address_{};
  UniqueFd folder_;
};

namespace wire {

struct Question {
  std::string request;
  double wait_s = 0;  // infinite: as long as the server grants
  std::string graceful;
  bool force = false;
  bool off = false;
  std::string name;
  std::optional<int> rank;
  std::optional<int> world;
  std::optional<int> worker;  // a pid
  friend bool operator==(const Question&, const Question&) = default;

  // Calls `each` with the key and the place of each field.
  template <class Self, class Each>
  static void visit(Self& self, Each&& each) {
    each("request", self.request);
    each("wait_s", self.wait_s);
    each("graceful", self.graceful);
    each("force", self.force);
    each("off", self.off);
    each("name", self.name);
    each("rank", self.rank);
    each("world", self.world);
    each("worker", self.worker);
  }
};

// Returns the packet of a request, without empty fields.
std::string format_question(const Question& question);

// Reads a packet strictly, as Parser reads a line. Only the server links this function.
Result<Question> parse_question(std::string_view packet);

}  // namespace wire
}  // namespace filetimer
