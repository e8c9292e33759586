// A worker of our own client, told step by step what to do with its scopes: commands on standard
// input, one a line, each answered with a line. Dies with its parent.
//
// connect [IDLE_MS]: to the server of $FILETIMER_DIR, with an idle timeout.
//
// open NAME MS, renew NAME MS, pause NAME, resume NAME, release NAME: say yes or no.
//
// left NAME: its remaining time in ms, and "paused" if it is.
//
// enter NAME, leave: an unlimited region.
//
// exit: leaves all as it is.
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
#include <vector>

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
    if (command == "connect") {
      words >> ms;
      ConnectOptions options;
      options.idle_timeout = milliseconds{ms};
      client_.emplace(TimerClient::connect(std::move(options)));
      return "yes";
    }
    if (command == "leave") {
      regions_.pop_back();
      return "yes";
    }
    words >> name >> ms;
    if (command == "enter") {
      regions_.push_back(std::unique_ptr<UnlimitedRegion>(
          new UnlimitedRegion(client_->unlimited(name))));  // made in its place
      return "yes";
    }
    if (command == "open") {
      scopes_.emplace(name, client_->expires(milliseconds{ms}, name));
      return "yes";
    }
    TimerScope& scope = scopes_.at(name);
    if (command == "renew") {
      return said(scope.renew(milliseconds{ms}));
    }
    if (command == "pause") {
      return said(scope.pause());
    }
    if (command == "resume") {
      return said(scope.resume());
    }
    if (command == "left") {
      const auto times = scope.times();
      return times ? std::to_string(times->remaining / milliseconds{1}) +
                         (times->is_paused ? " paused" : "")
                   : "no";
    }
    if (command == "release") {
      const bool in_time = scope.release();
      scopes_.erase(name);
      return said(in_time);
    }
    return "unknown command";
  }

 private:
  static std::string said(bool is_so) { return is_so ? "yes" : "no"; }

  std::optional<TimerClient> client_;
  std::map<std::string, TimerScope> scopes_;
  std::vector<std::unique_ptr<UnlimitedRegion>> regions_;
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
