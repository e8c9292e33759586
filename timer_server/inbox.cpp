// SPDX-License-Identifier: MIT
#include "timer_server/inbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <new>
#include <system_error>

#include "common/limits.hpp"
#include "common/text.hpp"
#include "timer_server/system/messages.hpp"

namespace filetimer {
namespace {

constexpr int kLastSignal = 64;  // of Linux

// More bytes than this at once are a flood, in which every write would wake the loop for one line.
// The pipe holds the requests of a millisecond, so it is read once in a pause instead.
constexpr std::size_t kFloodBytes = 2048;
constexpr Duration kFloodPause = std::chrono::microseconds{200};
// When to read again, and to try to listen, after listen() has failed.
constexpr Duration kListenAgain = std::chrono::milliseconds{100};

// Returns bounded_scope_name(). Only a name that has to be cut takes memory, which `cut` owns then:
// no release and no renewal of another one may be lost for want of memory.
std::string_view bounded(std::string_view whole, std::string& cut) {
  if (whole.size() <= kMaxScopeNameBytes) {
    return whole;
  }
  cut = bounded_scope_name(whole);
  return cut;
}

}  // namespace

void Inbox::listen() {
  try {
    source_ =
        watch_io(core_.loop, core_.directory.pipe().fd(), EPOLLIN | EPOLLET, kRequests, [] {});
    read_again_ = Instant::never();
  } catch (const std::system_error& error) {
    if (read_again_.is_never()) {
      messages::error("{}: requests do not wake the server until it can", error.what());
    }
    read_again_ = Instant::now() + kListenAgain;
  }
}

void Inbox::read(std::size_t most) {
  const std::size_t capacity = core_.directory.pipe().capacity();
  most = std::min(most, capacity);
  std::size_t read = 0;
  ClockReading looked;
  waited_since_ = Instant::never();
  std::erase_if(undated_, [](const Undated& scope) { return scope.is_earlier; });
  for (Undated& scope : undated_) {
    scope.is_earlier = true;
  }
  while (read < most) {
    std::span<char> room = reader_.room();
    room = room.first(std::min(room.size(), most - read));
    looked = ClockReading::now();
    const std::size_t count = core_.directory.pipe().read(room);
    if (count == 0) {
      break;
    }
    registry_.begin_batch();
    now_ = ClockReading::now();
    reader_.received(count);
    read += count;
    if (count < room.size()) {
      break;
    }
  }
  if (read < most) {
    emptied_ = looked.mono;  // the server may have been stopped since
    wall_offset_ = looked.offset();
  }
  // A full pipe holds more than half of its capacity: a line that has room behind the last one of a
  // memory page is written there. The rest of a page that is partly read is not counted.
  was_full_ |= read > 0 && read + PIPE_BUF > capacity / 2;
  if (read > kFloodBytes) {
    stop_listening();
    read_again_ = Instant::now() + kFloodPause;
  } else if (!source_) {
    listen();
  }
}

void Inbox::on_line(const Result<wire::Request>& request, std::string_view line) {
  ++core_.counters.requests;
  if (!request) {
    core_.rejections.add(request.error().message, line, 0);
    core_.wants_scan = true;  // it may have held a wake-up message
    return;
  }
  try {
    if (request->x_page) {
      registry_.on_wake_up_message(*request->x_page);
    } else if (request->is_release()) {
      release(*request);
    } else if (const Status acquired = acquire(*request, line); !acquired) {
      core_.rejections.add(acquired.error().message, line, request->pid);
    }
  } catch (const std::exception& error) {
    // The lines after this one are still read, because releases may be among them.
    core_.rejections.add(fmt::format("it could not be carried out: {}", error.what()), line,
                         request->pid);
  }
}

Status Inbox::acquire(const wire::Request& request, std::string_view line) {
  if (request.signal > kLastSignal) {
    return failure(fmt::format("signal is {}: expected at most {}", request.signal, kLastSignal));
  }
  forget_retried(request);
  ClockReading clocks = now_;
  SlotReading terms = core_.policy.terms_of(request, clocks);
  // The wall clock may have been set since the line was written, as it is at the end of a suspend:
  // a scope seems to be due, or opened before the pipe was empty.
  const std::int64_t step = clocks.offset() - wall_offset_;
  if (step > 0 && (terms.deadline <= now_.mono || terms.acquired < emptied_)) {
    clocks.wall_ns -= step;
    terms = core_.policy.terms_of(request, clocks);
  }
  // The line may be older than the process that has its pid now. PyTorch's lines have no time but
  // the deadline. A time before the boot, such as 0, says that the deadline has passed, and no
  // more.
  Instant written = std::min(terms.acquired, terms.deadline);
  if (written.ns <= 0) {
    written = now_.mono;
  }
  Status opened;
  try {
    opened = open_scope(request, terms, written);
  } catch (const std::bad_alloc&) {
    opened = failure("out of memory", ENOMEM);
  }
  if (opened) {
    return {};
  }
  if (Worker* const worker = core_.workers.find(request.pid); worker && !request.x_whole_process) {
    worker->unwatched_until =
        std::max(worker->unwatched_until, terms.deadline.is_never() ? now_.mono : terms.deadline);
  }
  // A whole-process scope is over when its worker has exited.
  const Error& error = opened.error();
  const bool has_exited = error.errno_value == ESRCH && request.x_whole_process;
  const bool may_end = is_for_now(error) || error.errno_value == EAGAIN;
  const bool is_retried = may_end && retried_.size() < kMostRetried;
  if (is_retried) {
    retried_.push_back({request.pid, std::string(request.scope_id), std::string(line), clocks});
  }
  return has_exited ? Status{} : failure(error.message + (is_retried ? "; it is tried again" : ""));
}

Status Inbox::open_scope(const wire::Request& request, const SlotReading& terms, Instant written) {
  const Result<Worker*> found = registry_.worker_of(request.pid, written);
  FILETIMER_TRY(found);
  Worker& worker = **found;
  std::string cut_id;
  std::string cut_name;
  const std::string_view id = bounded(request.scope_id, cut_id);
  const std::string_view name = bounded(request.x_scope.value_or(id), cut_name);
  if (!worker.pipe) {
    auto page = std::make_shared<PipePage>(core_.directory.pages().server_pages(),
                                           worker.process->pid, core_.policy.page_terms());
    worker.pages.push_back(page);  // first, because it may find no memory
    worker.pipe = std::move(page);
  }
  PipePage& page = *worker.pipe;
  // The next server reads what a stopping server leaves in a pipe that outlives it, so nothing is
  // refused then.
  const bool refuses_new_scopes =
      control_.announcement() != Announcement::kNone &&
      !(life_.is_stopping() && core_.directory.pipe().outlives_server());
  // A renewal may come after the verdict.
  if (refuses_new_scopes && !page.has_open(id) && !page.release(id)) {
    return failure("the server is draining: no new scopes");
  }
  note_wait(worker, request, id, terms);
  const auto first_look = page.acquire(id, id.starts_with(name) ? name.size() : id.size(), terms);
  FILETIMER_TRY(first_look);
  earliest_ = std::min(earliest_, *first_look);
  shortest_ = std::min({shortest_, terms.timeout, core_.policy.page_terms().max_timeout});
  ++now_.mono.ns;  // gives each scope of one reading a time of its own
  core_.workers.note_unsaved(worker);
  return {};
}

// A request wakes the server at once. It was not there when the pipe was last read to its end.
void Inbox::note_wait(const Worker& worker, const wire::Request& request, std::string_view id,
                      const SlotReading& terms) {
  const Instant now = now_.mono;
  if (now - emptied_ <= Looks::kLeastTolerated) {
    return;
  }
  // A line without a timeout may have come before for the same scope.
  std::erase_if(undated_,
                [&](const Undated& scope) { return scope.page == worker.pipe && scope.id == id; });
  if (request.x_timeout_s) {
    if (terms.acquired > emptied_ && terms.acquired + looks_for(terms.timeout).tolerated < now) {
      waited_since_ = std::min(waited_since_, terms.acquired);
    }
  } else if (terms.deadline > emptied_) {
    undated_.push_back({worker.pipe, std::string(id)});
    if (terms.deadline + Looks::kMostTolerated < now) {
      waited_since_ = std::min(waited_since_, emptied_);
    }
  }
}

void Inbox::retry() {
  if (retried_.empty()) {
    return;
  }
  registry_.begin_batch();
  core_.counters.requests -= retried_.size();
  const std::int64_t offset = wall_offset_;
  for (const Retried& each : std::exchange(retried_, {})) {
    now_ = each.read;
    wall_offset_ = now_.offset();  // each.read has the steps of before
    reader_.read_again(each.line);
  }
  wall_offset_ = offset;
}

void Inbox::release(const wire::Request& request) {
  forget_retried(request);
  Worker* const worker = core_.workers.find(request.pid);
  if (worker == nullptr || !worker->pipe) {
    return;
  }
  std::string cut;
  if (worker->pipe->release(bounded(request.scope_id, cut))) {
    worker->left_on_pipe = now_.mono;
  }
  core_.workers.note_unsaved(*worker);
}

}  // namespace filetimer
