// SPDX-License-Identifier: MIT
#include "common/scope_name.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "common/limits.hpp"
#include "common/text.hpp"

namespace filetimer {
namespace {

// FNV-1a with 64 bits, which, unlike std::hash, is the same on every host and in every build.
std::uint64_t stable_hash(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

std::string bounded_scope_name(std::string_view whole) {
  if (whole.size() <= kMaxScopeNameBytes) {
    return std::string(whole);
  }
  const std::string mark = fmt::format("...~{:016x}", stable_hash(whole));
  return std::string(utf8_prefix(whole, kMaxScopeNameBytes - mark.size())) + mark;
}

}  // namespace filetimer
