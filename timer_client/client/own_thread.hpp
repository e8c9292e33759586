// Threads that the library runs in somebody else's process: the process's signals are not theirs,
// and nobody has to join them.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace filetimer {

// With all signals blocked, under the library's name. False: there is no thread to be had.
bool start_own_thread(std::function<void()> body) noexcept;

}  // namespace filetimer
