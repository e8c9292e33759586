// A worker of our own client. Carries out commands from standard input, one a line, and answers
// each with a line. Dies with its parent.
//
// connect [IDLE_MS]: to the server of $FILETIMER_DIR, with an idle timeout. connect-early: whether
// a server is there or not.
//
// open NAME MS, pause NAME, resume NAME, release NAME: answered with
// yes or no.
//
// exit: exits at once.
// SPDX-License-Identifier: MIT
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <filetimer/timer_client.hpp>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace {

using namespace filetimer;
using std::chrono::milliseconds;

constexpr unsigned kLastResortSeconds = 100;

class ClientWorker {
 public:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::string name;
    long long ms = 0;
    words >> command;
    if (command == "connect" || command == "connect-early") {
      words >> ms;
      using Missing = ConnectOptions::Missing;
      const Missing missing = command == "connect" ? Missing::kWait : Missing::kIgnore;
      client_.emplace(TimerClient::connect({.missing = missing, .idle_timeout = milliseconds{ms}}));
      return "yes";
    }
    words >> name >> ms;
    if (command == "open") {
      scopes_.emplace(name, client_->expires(milliseconds{ms}, name));
      return "yes";
    }
    TimerScope& scope = scopes_.at(name);
    if (command == "pause") {
      return said(scope.pause());
    }
    if (command == "resume") {
      return said(scope.resume());
    }
    if (command == "release") {
      const bool in_time{scope.release()};
      scopes_.erase(name);
      return said(in_time);
    }
    return "unknown command";
  }

 private:
  static std::string said(bool is_so) { return is_so ? "yes" : "no"; }

  std::optional<TimerClient> client_;
  std::map<std::string, TimerScope> scopes_;
};

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  std::cout << "ready" << std::endl;
  ClientWorker worker;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "exit") {
      ::_exit(0);
    }
    std::cout << worker.answer(line) << std::endl;
  }
  ::_exit(0);
}
