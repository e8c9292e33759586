// The slot machine: random operations of a worker and a server on its scopes, each compared with
// the model. Every run of a sequence is a process of its own, so a crash or a hang is a fault as
// any other. An operation that is not possible does nothing, so every part of a sequence is one.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/slots/model.hpp"

namespace filetimer::slots {

enum class Kind : unsigned char {
  // The worker: [key, timeout, thread].
  kAcquire,
  kRenew,
  kRelease,
  kPause,
  kResume,
  kSuspend,    // begins a paused region: [thread]
  kUnsuspend,  // ends it: [thread]
  kEndThread,  // [thread], not the main one
  kFork,       // the child does the rest, then the parent does: [1: by a bare clone()]
  kIdle,       // an idle timeout begins: [timeout]
  kUnidle,
  // The server.
  kLook,    // reads all messages and slots
  kExpire,  // gives its verdict on what the last look found due
  kFinish,  // ends the oldest kill
  kRevoke,  // revokes the verdict of the oldest kill
  kDie,     // is killed
  kStart,   // the next one starts: [1: verdicts were recorded]
  // The machine.
  kHour,       // an hour passes
  kFill,       // the pipe is full until the next look
  kMakeAgain,  // the runtime directory is removed and made again
};

struct Op {
  Kind kind = Kind::kHour;
  int a = 0;
  int b = 0;
  int c = 0;
};
using Ops = std::vector<Op>;

std::string text_of(const Ops& ops);
// Throws std::invalid_argument.
Ops ops_of(std::string_view text);

// A difference from the model.
struct Difference {
  std::string what;
};

// A worker and its server, in one process.
class System {
 public:
  System() = default;
  System(const System&) = delete;
  System& operator=(const System&) = delete;
  virtual ~System() = default;
  // Throws a Difference.
  virtual void apply(const Op& op) = 0;
  // Leaves all scopes and ends all kills: every slot must be free then.
  virtual void finish() = 0;
  std::function<void()> rest;  // does the operations after the present one, and finish()
};
// `variant`: chooses --max-timeout, statistics and the like.
struct Kit {
  std::string_view name;
  std::vector<int> weights;  // by Kind
  std::function<std::unique_ptr<System>(unsigned variant)> make;
};
const Kit& page_kit();
const Kit& pipe_kit();

// Returns what differs from the model; nothing if nothing does.
std::optional<std::string> run(const Kit& kit, unsigned variant, const Ops& ops);
// In a system: runs `body` in a forked child, and throws what it threw.
void run_in_child(bool by_clone, const std::function<void()>& body);

Ops random_ops(const Kit& kit, unsigned seed);
// Returns the shortest part of the operations that still differs, with what differs.
std::string shortest(const Kit& kit, unsigned variant, Ops ops);

}  // namespace filetimer::slots
