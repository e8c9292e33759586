// Parses what the server has answered, also in a thread of the library's that is still waiting when
// the process ends: what the parser stands on is destroyed then while the thread runs on.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "common/json_fields.hpp"

namespace filetimer {

// To be called before there is a thread that may parse.
void prepare_to_parse();

// The object lives as long as `parser` does, and until it parses again. False: the answer is no
// JSON object, or the process is ending.
bool parse_answer(simdjson::dom::parser& parser, std::string_view answer,
                  simdjson::dom::object& object);

}  // namespace filetimer
