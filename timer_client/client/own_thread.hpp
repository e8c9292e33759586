// Threads that the library runs in the user's process. They receive no signals of the process, and
// need not be joined.
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace filetimer {

// Starts a thread with all signals blocked and the library's name. Returns false if the system
// gives no thread.
bool start_own_thread(std::function<void()> body) noexcept;

}  // namespace filetimer
