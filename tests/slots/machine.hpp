// The slot machine: random operations of a worker and a server on its scopes, each compared with
// the model. The server's side is the same for a worker's page and for the scopes of a worker that
// writes lines; what the worker does is in page.cpp and pipe.cpp. Every list of operations is run
// in a process of its own, so a crash or a hang is a fault as any other.
//
// The worker: acquire, renew, pause, resume, release [key, timeout, thread]; suspend, unsuspend (a
// paused region begins, ends) and end (of a thread) [thread]; fork (the child does the rest, then
// the parent does) [1: by a bare clone()]; idle (an idle timeout begins) [timeout], unidle. The
// server: look (reads all messages and slots), expire (gives its verdict on what the last look
// found due), finish and revoke (end the oldest kill), die, start (the next one) [1: verdicts were
// recorded].
// The machine: hour (passes), fill (the pipe is full until the next look), again (the runtime
// directory is removed and made again).
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/slots/model.hpp"
#include "tests/support/files.hpp"
#include "tests/support/histories.hpp"
#include "timer_server/scopes/worker_page.hpp"

namespace filetimer::slots {

using testing::expect;
using testing::Operation;
using testing::Operations;

inline std::string name_of(int key) {
  return fmt::format("k{}", key);
}

// A worker and its server, in one process.
class Machine {
 public:
  // `variant`: chooses --max-timeout, statistics and the like.
  Machine(unsigned variant, bool is_pipe);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;
  // Carries out the operations from there on. Then the worker leaves all scopes, all kills end, and
  // every slot must be free.
  void play(const Operations& operations, std::size_t from);

 protected:
  // What the worker, the machine and the kinds of server do that differ.
  virtual void use(const Operation& operation, int key, int thread) = 0;
  virtual void look();
  virtual void start(bool are_recorded) = 0;
  virtual void check();
  virtual void finish() = 0;

  void apply(const Operation& operation);
  // The next server finds the kills of this one.
  void adopt(bool are_recorded);
  void settle(std::size_t number, bool is_revoked);
  void end_kills();
  [[nodiscard]] WorkerPage::Scan scan_at(Instant now) const;
  ModelScope& scope(int key) { return model_.scopes[static_cast<std::size_t>(key)]; }
  [[nodiscard]] bool is_at(Instant time, int hour) const;

  struct Due {
    int key;
    int version;
    WorkerPage::Due place;
  };
  testing::TempFolder folder_;
  Model model_;
  Instant begin_;
  std::shared_ptr<WorkerPage> page_;
  std::vector<Due> due_;
  std::vector<WorkerPage::Due> kills_;  // as those of the model
  WorkerPage::Activity activity_;       // that the last look found
  Instant next_look_;                   // that the last look found
  Instant last_idle_verdict_;
  bool is_alive_ = true;        // the server
  std::function<void()> rest_;  // does the operations after the present one

 private:
  void expire();
  LostTime lost_;  // none
};

constexpr Duration kInexact = std::chrono::minutes{1};  // the machine runs in less than that
// A timeout or time of the model.
Duration hours(int count);

std::unique_ptr<Machine> page_machine(unsigned variant);
std::unique_ptr<Machine> pipe_machine(unsigned variant);

}  // namespace filetimer::slots
