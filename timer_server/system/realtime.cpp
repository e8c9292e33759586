// SPDX-License-Identifier: MIT
#include "timer_server/system/realtime.hpp"

#include <sched.h>

namespace filetimer {

Status enter_realtime() {
  sched_param param{};
  param.sched_priority = ::sched_get_priority_min(SCHED_RR);
  if (::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) != 0) {
    return system_error("--realtime is not allowed here");
  }
  return {};
}

}  // namespace filetimer
