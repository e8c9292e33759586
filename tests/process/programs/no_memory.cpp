// Preloaded into timer_server, refuses it blocks of more than $NO_MEMORY_OVER bytes while the file
// $NO_MEMORY exists.
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t size);

static bool is_refused(std::size_t size) {
  const char* const file = std::getenv("NO_MEMORY");
  const char* const most = std::getenv("NO_MEMORY_OVER");
  const bool is = file != nullptr && most != nullptr && size > std::strtoul(most, nullptr, 10) &&
                  ::syscall(SYS_faccessat, AT_FDCWD, file, F_OK) == 0;
  errno = is ? ENOMEM : errno;
  return is;
}

extern "C" void* malloc(std::size_t size) noexcept {
  return is_refused(size) ? nullptr : __libc_malloc(size);
}

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return is_refused(size) ? nullptr : __libc_memalign(alignment, size);
}

extern "C" int posix_memalign(void** block, std::size_t alignment, std::size_t size) noexcept {
  *block = is_refused(size) ? nullptr : __libc_memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}
