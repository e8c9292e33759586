// A thread that plays a server that only answers control requests. It makes `requests` and
// `replies` in an existing folder, and calls the test's script for each request. It holds no lock
// on a status page, so a client detects it by the reader of its pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/posix.hpp"

namespace filetimer::testing {

struct AskedQuestion {
  std::string request;
  std::string reply;
  double wait_s = 0;
  pid_t pid = 0;
  std::string graceful;
  bool force = false;
  bool off = false;
  std::string name;
  std::optional<int> rank;
  std::optional<int> world;
};

class AnsweringServer {
 public:
  // The reply pipe of one request; closed when the script returns.
  class Answers {
   public:
    explicit Answers(UniqueFd pipe, AnsweringServer& server)
        : pipe_(std::move(pipe)), server_(server) {}
    // Writes a line, and adds its newline. Waits until the pipe has room.
    void say(std::string_view line);
    void say_raw(std::string_view bytes);
    // The server goes: no process reads `requests` from now on. The answers' pipe stays open.
    void stop_reading();
    // Waits until the client has closed its pipe.
    void wait_until_hung_up();

   private:
    UniqueFd pipe_;
    AnsweringServer& server_;
  };
  using Script = std::function<void(const AskedQuestion&, Answers&)>;

  // Whether the server opens the reply pipe.
  enum class Opens { kYes, kNo };

  AnsweringServer(std::string dir, Script script, Opens opens = Opens::kYes);
  // Answers every request with this line.
  AnsweringServer(std::string dir, std::string line);
  AnsweringServer(const AnsweringServer&) = delete;
  AnsweringServer& operator=(const AnsweringServer&) = delete;
  ~AnsweringServer();

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] std::string pipe() const { return dir_ + "/requests"; }
  // Returns the requests so far.
  [[nodiscard]] std::vector<AskedQuestion> asked() const;
  // Returns the names in `replies`.
  [[nodiscard]] std::vector<std::string> reply_names() const;

 private:
  void run();
  void answer(const std::string& line);

  std::string dir_;
  Script script_;
  Opens opens_;
  UniqueFd requests_;
  UniqueFd end_;  // an eventfd
  mutable std::mutex mutex_;
  std::vector<AskedQuestion> asked_;
  std::thread thread_;
};

}  // namespace filetimer::testing
