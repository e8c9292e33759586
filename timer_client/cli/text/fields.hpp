// Formats any fields of a JSON object for people, those of a newer server, too. The unit that ends
// the name of a field moves to its value.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include "timer_client/cli/text/page.hpp"

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

// Adds each field of `object` that is neither `hidden` nor empty, in their order.
void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden = {}, std::size_t indent = 2);

}  // namespace filetimer::cli
