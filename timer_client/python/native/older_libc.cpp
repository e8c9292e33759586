// Two functions of newer C libraries that g++'s own runtime calls, so that an extension with that
// runtime inside loads where glibc is older (2.34). scripts/wheel sets FILETIMER_OLDER_LIBC.
// SPDX-License-Identifier: MIT
#ifdef FILETIMER_OLDER_LIBC
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

// Returns 1 if the object holds the address: the search ends then.
int look_at(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  const auto& [address, found] = *static_cast<const Search*>(data);
  *found = {};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address - begin < segment.p_memsz) {
      found->dlfo_map_start = reinterpret_cast<void*>(begin);
    } else if (segment.p_type == DLFO_EH_SEGMENT_TYPE) {
      found->dlfo_eh_frame = reinterpret_cast<void*>(begin);
    }
  }
  return found->dlfo_map_start != nullptr && found->dlfo_eh_frame != nullptr ? 1 : 0;
}

}  // namespace

// glibc 2.35. Finds the unwind table of the code at an address, for exceptions.
extern "C" int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return ::dl_iterate_phdr(look_at, &search) == 1 ? 0 : -1;
}

// glibc 2.36. Returns a random number.
extern "C" std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    if (errno != EINTR) {
      std::abort();
    }
  }
  return number;
}
#endif
