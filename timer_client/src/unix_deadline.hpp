// A deadline as the version-1 wire wants it.
// SPDX-License-Identifier: MIT
#pragma once

#include "common/clock.hpp"

namespace filetimer {

// `deadline` as Unix time in seconds by the wall clock of now; never earlier than it is meant, and
// never negative, which would be a release. Instant::never() becomes +infinity.
// Ask anew whenever a request leaves: then a clock that was set meanwhile kills nobody.
double unix_time_of(Instant deadline);

}  // namespace filetimer
