// Gathers evidence of one worker beside the loop, within one time for all of it. First what is
// cheap, for every worker that is asked for; then, a few workers at a time, what takes a while: a
// sample of CPU time, native stacks, Python's stacks, in this order and never two at once. It needs
// no kill: whoever wants to know what a worker does may ask.
//
//   auto gathering = Gathering::start(side_threads, worker.process, options, [..] { ..take().. });
//   ...
//   gathering->take();   // when it is done, or when there is no more time: what there is by then
//
// start() and take() are called on the loop thread, and so is `done`.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "common/clock.hpp"
#include "timer_server/evidence/evidence.hpp"
#include "timer_server/evidence/python_dump.hpp"
#include "timer_server/process.hpp"
#include "timer_server/side_threads.hpp"

namespace filetimer {

struct EvidenceOptions {
  EvidenceLevel level = EvidenceLevel::kStacks;
  Instant until;  // from here on nothing is begun, and whatever held the worker has let go of it
  // Only after a verdict: the signal may wake the worker. Used with kStacks.
  std::optional<PythonDump> python;
};

class Gathering {
 public:
  // `done` is called once, or never if a side thread hangs. `side_threads` must outlive this.
  static std::shared_ptr<Gathering> start(SideThreads& side_threads,
                                          std::shared_ptr<const Process> process,
                                          EvidenceOptions options, std::function<void()> done);

  // What there is by now, with the reason in `missing` if that is not all. Nothing comes after it.
  Evidence take();

 private:
  Gathering(SideThreads& side_threads, std::shared_ptr<const Process> process,
            EvidenceOptions options, std::function<void()> done);
  // On a side thread.
  void look_closer();
  void sample_cpu(Evidence& evidence) const;
  // What goes on, should it be taken meanwhile.
  void note(const char* doing);
  // What there is so far, likewise. False: it was taken.
  bool publish(const Evidence& evidence);
  // What was published last. Nothing: it was taken.
  std::optional<Evidence> published();
  // On the loop thread.
  void finish(std::string_view why_no_more);

  SideThreads& side_threads_;
  const std::shared_ptr<const Process> process_;
  const EvidenceOptions options_;
  const std::function<void()> done_;
  const Instant begun_ = Instant::now();

  std::mutex mutex_;  // guards what follows
  Evidence evidence_;
  const char* doing_ = "it waited for its turn";
  bool is_done_ = false;
  bool is_taken_ = false;
};

}  // namespace filetimer
