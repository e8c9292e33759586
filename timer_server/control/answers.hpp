// The lines of JSON that answer control requests (docs/protocol.md).
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/json_writer.hpp"

namespace filetimer {

// Begins an answer of the kind "done", "granted", "waiting", "refused", "invalid" or "timed_out".
JsonWriter begin_answer(std::string_view kind);
// Returns an answer with its kind and a reason.
std::string answer_with_reason(std::string_view kind, std::string_view reason);
// Returns the answer to a client that is refused because `others` wait for an answer.
std::string refuse_as_too_many(std::size_t others);

}  // namespace filetimer
