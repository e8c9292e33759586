// SPDX-License-Identifier: MIT
#include "timer_client/src/pipe/pipe_transport.hpp"

#include <limits>
#include <new>

#include "common/wire.hpp"
#include "timer_client/src/pipe/pipe_line.hpp"
#include "timer_client/src/server/server_look.hpp"

namespace filetimer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double seconds_of(std::chrono::nanoseconds duration) {
  return duration == std::chrono::nanoseconds::max()
             ? kInfinity
             : std::chrono::duration<double>(duration).count();
}

}  // namespace

std::string version_1_line(const TimerRequest& request) {
  wire::Request line;
  line.pid = request.pid;
  line.scope_id = request.timer_id;
  if (request.release) {
    line.expiration_time = -1;
    line.signal = 0;
    return wire::format(line);
  }
  line.expiration_time = request.expiration_time;
  line.signal = request.signal;
  line.x_timeout_s = seconds_of(request.timeout);
  if (request.grace == std::chrono::nanoseconds::max()) {
    line.x_grace_s = -1;
  } else if (request.grace >= std::chrono::nanoseconds::zero()) {
    line.x_grace_s = seconds_of(request.grace);
  }
  if (request.warn_after > std::chrono::nanoseconds::zero()) {
    line.x_soft_s = seconds_of(request.warn_after);
  }
  if (request.tid > 0) {
    line.x_tid = request.tid;
  }
  line.x_whole_process = request.whole_process;
  line.x_idle = request.idle;
  line.x_spare_if_left = request.spare_if_left;
  if (request.scope != request.timer_id) {
    line.x_scope = request.scope;
  }
  return wire::format(line);
}

Transport::Sent PipeTransport::send(const TimerRequest& request) noexcept {
  try {
    // With every line: a server may be started at any time.
    if (!why_no_pids(run_folder_).empty()) {
      return Sent::kNoServer;
    }
    switch (send_line(path_, version_1_line(request))) {
      case LineSent::kYes:
        return Sent::kYes;
      case LineSent::kBusy:
        return Sent::kTryLater;
      default:
        return Sent::kNoServer;
    }
  } catch (const std::bad_alloc&) {
    return Sent::kTryLater;
  }
}

bool PipeTransport::server_is_there(std::string& why) noexcept {
  int error = 0;
  if (has_reader(path_, error)) {
    return true;
  }
  try {
    why = why_no_reader(error);
  } catch (const std::bad_alloc&) {
    why.clear();
  }
  return false;
}

}  // namespace filetimer
