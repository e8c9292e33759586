// What a scope is called. A name longer than kMaxScopeNameBytes is no error: it is shown cut and
// marked with the hash of the whole name, so two long names that differ at the end stay two scopes.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace filetimer {

// What a client's idle timeout goes by, in which no scope is open.
inline constexpr std::string_view kIdleScopeName = "(idle)";

// The name itself up to kMaxScopeNameBytes; a longer one as "beginning...~0123456789abcdef" of at
// most that many bytes, cut between UTF-8 characters.
std::string bounded_scope_name(std::string_view whole);

}  // namespace filetimer
