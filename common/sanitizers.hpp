// The sanitizer of this build, which GCC and clang announce in different ways.
// SPDX-License-Identifier: MIT
#pragma once

#if defined(__has_feature)
#define FILETIMER_HAS_FEATURE(name) __has_feature(name)
#else
#define FILETIMER_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || FILETIMER_HAS_FEATURE(address_sanitizer)
#define FILETIMER_ADDRESS_SANITIZER 1
#else
#define FILETIMER_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || FILETIMER_HAS_FEATURE(thread_sanitizer)
#define FILETIMER_THREAD_SANITIZER 1
#else
#define FILETIMER_THREAD_SANITIZER 0
#endif

namespace filetimer {

inline constexpr bool kIsAddressSanitized = FILETIMER_ADDRESS_SANITIZER == 1;
inline constexpr bool kIsThreadSanitized = FILETIMER_THREAD_SANITIZER == 1;
inline constexpr bool kIsSanitized = kIsAddressSanitized || kIsThreadSanitized;

}  // namespace filetimer
