// What `timer_client dump` prints.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace filetimer::cli {

// Returns the workers of a `done` answer to the request `dump` (docs/protocol.md) as text. Workers
// in the same place are one group: of the same job, in the same scopes, and with the same frames on
// the stacks of their main threads. The smallest group comes first: the worker that is elsewhere is
// on top. Returns an empty text if `answer` is no such answer.
std::string dump_page(const std::string& answer, bool colour);

}  // namespace filetimer::cli
