// Preloaded into timer_server, refuses it blocks of more than $NO_MEMORY_OVER bytes while the file
// $NO_MEMORY exists.
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

extern "C" void* __libc_malloc(std::size_t size);

extern "C" void* malloc(std::size_t size) noexcept {
  const char* const file = std::getenv("NO_MEMORY");
  const char* const most = std::getenv("NO_MEMORY_OVER");
  if (file != nullptr && most != nullptr && size > std::strtoul(most, nullptr, 10) &&
      ::syscall(SYS_faccessat, AT_FDCWD, file, F_OK) == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(size);
}
