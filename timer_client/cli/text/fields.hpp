// The fields of a JSON object as people read them, whichever they are: a newer server's are shown,
// too. The unit that ends the name of a field becomes one of its value.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include "timer_client/cli/text/page.hpp"

namespace simdjson::dom {
class object;
}

namespace filetimer::cli {

// Adds a field for each of `object` that is not `hidden` and says something, in their order.
void add_fields(Page& page, const simdjson::dom::object& object,
                const std::vector<std::string_view>& hidden = {}, std::size_t indent = 2);

}  // namespace filetimer::cli
