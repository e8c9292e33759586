// Names of scopes. A name longer than kMaxScopeNameBytes is no error: it is cut and marked with the
// hash of the whole name, so that two long names that differ at the end stay two scopes.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace filetimer {

// The name of an idle timeout in records.
inline constexpr std::string_view kIdleScopeName = "(idle)";

// Returns the name, if it has at most kMaxScopeNameBytes. Returns a longer one as
// "beginning...~0123456789abcdef" of at most that many bytes, cut between UTF-8 characters.
std::string bounded_scope_name(std::string_view whole);

}  // namespace filetimer
