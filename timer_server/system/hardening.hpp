// Protects the server on a host that runs out of memory or descriptors. The server must still act
// when its workers no longer can.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "common/result.hpp"

namespace filetimer {

// Lowers oom_score_adj, locks the memory and raises the limit of descriptors, each if it is
// allowed. Sets the oom_score_adj of children in inheritance(). Must be called once, in the process
// that will serve.
void harden();

// --realtime: gives the calling thread SCHED_RR at its lowest priority, above all ordinary work.
// Nothing that is forked or started afterwards inherits it.
Status enter_realtime();

std::size_t open_descriptors();
std::size_t descriptor_limit();
// Returns the most clients that may wait for an answer at a time. They get a share of the
// descriptors only: the rest is for workers.
std::size_t max_waiting_clients();
// Returns the most workers that the server can watch with the other descriptors.
std::size_t most_workers();

}  // namespace filetimer
