// Pieces of sentences that the parts of `show`'s page share.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer::cli {

// The parts that are not empty.
std::string joined(const std::vector<std::string>& parts, std::string_view separator);

// The first `most` of them, and "and 12 more".
std::string listed(const std::vector<std::string>& parts, std::size_t most,
                   std::string_view separator = ", ");

std::string milliseconds_text(double ms);
std::string backquoted(std::string_view scope);
std::string pids_text(const std::vector<std::int64_t>& pids);

}  // namespace filetimer::cli
