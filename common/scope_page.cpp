// SPDX-License-Identifier: MIT
#include "common/scope_page.hpp"

#include <unistd.h>

#include "common/clock.hpp"

namespace filetimer {

void begin_page(PageHeader& header, std::uint32_t flags) {
  header.magic = kPageMagic;
  header.version = kPageVersion;
  header.header_bytes = sizeof(PageHeader);
  header.boot = this_boot();
  header.uid = ::geteuid();
  header.created_ns = Instant::now().ns;
  header.flags.store(flags, std::memory_order_relaxed);
}

void write_name(SlotName& name, std::string_view text) {
  char bytes[kNameWords * 8] = {};
  const std::size_t length = std::min(text.size(), kMaxScopeNameBytes);
  bytes[0] = static_cast<char>(length);
  std::memcpy(bytes + 1, text.data(), length);
  const std::size_t words = name_bytes(length) / 8;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * 8, 8);
    name.words[i].store(word, std::memory_order_relaxed);
  }
}

}  // namespace filetimer
