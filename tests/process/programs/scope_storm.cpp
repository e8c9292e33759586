// A worker that enters very many short scopes with random deadlines through the client library, and
// holds a few of them until the server has judged them. Prints what the log must have in the end:
//   held SCOPES   the scopes that are judged, each once (by name, "held-SEED-N")
//   late N        the number of scopes that were left after their verdict
// Arguments: RUNFOLDER LOG SEED SCOPES HELD.
// SPDX-License-Identifier: MIT
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filetimer/timer_client.hpp>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>

namespace {

constexpr unsigned kLastResortSeconds = 100;
constexpr std::chrono::milliseconds kLook{2};

bool is_in_log(const std::string& log, const std::string& scope) {
  std::ifstream file(log);
  const std::string name = "\"scope\":\"" + scope + "\"";
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"event\":\"killed\"") != line.npos && line.find(name) != line.npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

int main(int, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  const std::string log = argv[2];
  const unsigned seed = static_cast<unsigned>(std::stoul(argv[3]));
  const int scopes = std::stoi(argv[4]);
  const int held = std::stoi(argv[5]);
  filetimer::ConnectOptions options;
  options.dir = argv[1];
  filetimer::TimerClient client = filetimer::TimerClient::connect(std::move(options));
  filetimer::ScopeOptions observed;
  observed.signal = 0;
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> timeout_us(200, 5000);
  std::uniform_int_distribution<int> close_call(50, 110);  // percent of the timeout
  const int stride = scopes / held;
  int late = 0;
  int early = 0;
  for (int i = 0; i < scopes; ++i) {
    const std::chrono::microseconds timeout(timeout_us(random));
    if (i % stride == stride / 2) {
      const std::string name = "held-" + std::to_string(seed) + "-" + std::to_string(i / stride);
      auto scope = client.expires(timeout, name, observed);
      while (!is_in_log(log, name)) {
        std::this_thread::sleep_for(kLook);
      }
      early += scope.release() ? 1 : 0;
    } else {
      auto scope = client.expires(timeout, i % 2 == 0 ? "even" : "odd", observed);
      if (i % 3 == 0) {
        auto inner = client.expires(timeout, "even", observed);
        late += inner.release() ? 0 : 1;
      }
      if (i % 500 == 7) {
        // Left just before, at, or after its deadline: either side may come first.
        const auto until = std::chrono::steady_clock::now() + timeout * close_call(random) / 100;
        while (std::chrono::steady_clock::now() < until) {
        }
      }
      late += scope.release() ? 0 : 1;
    }
  }
  std::cout << "late " << late << " early " << early << std::endl;
  return early == 0 ? 0 : 1;
}
