// A thread that plays a server that only answers control requests. It makes `requests` and
// `control` in an existing folder or one of its own, and calls the test's script for each request.
// It holds no lock on a status page.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/posix.hpp"
#include "common/wire.hpp"
#include "tests/support/files.hpp"

namespace filetimer::testing {

// Returns a socket that listens as `control` in the folder. Fails the test if it cannot.
UniqueFd listen_in(const std::string& dir, int backlog);

class AnsweringServer {
 public:
  // The connection of one request; closed when the script returns.
  class Answers {
   public:
    explicit Answers(UniqueFd connection) : connection_(std::move(connection)) {}
    // Writes a line, and adds its newline. Waits until the connection has room.
    void say(std::string_view line);
    void say_raw(std::string_view bytes);
    // Waits until the client has hung up.
    void wait_until_hung_up();

   private:
    UniqueFd connection_;
  };
  using Script = std::function<void(const wire::Question&, Answers&)>;

  explicit AnsweringServer(Script script, std::string dir = {});
  // Answers every request with this line.
  explicit AnsweringServer(const std::string& line, std::string dir = {});
  ~AnsweringServer();

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] std::string pipe() const { return dir_ + "/requests"; }
  // Returns the requests so far.
  [[nodiscard]] std::vector<wire::Question> asked() const;

 private:
  void run();

  std::optional<TempFolder> folder_;
  std::string dir_;
  Script script_;
  UniqueFd requests_;
  UniqueFd control_;
  UniqueFd end_;  // an eventfd
  mutable std::mutex mutex_;
  std::vector<wire::Question> asked_;
  std::thread thread_;
};

}  // namespace filetimer::testing
