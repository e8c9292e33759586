// What the server changes of itself so that it is the last to go on a host in trouble: the
// out-of-memory killer, swapping, descriptors that run out. Each is done where it is allowed and is
// no reason to fail.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "timer_server/inheritance.hpp"

namespace filetimer {

// Call once, in the process that will serve. Notes in `inheritance` what children are to have
// instead where that was not known before.
void harden(Inheritance& inheritance);

// Descriptors that this process has open, and those that it may open.
std::size_t open_descriptors();
std::size_t descriptor_limit();
// Those who may wait for an answer at a time: a share, so that they leave workers theirs.
std::size_t most_askers();
// And the workers that can be watched with them.
std::size_t most_workers();

}  // namespace filetimer
