// The sanitizer of this build, which GCC and clang announce in different ways.
// SPDX-License-Identifier: MIT
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define FILETIMER_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FILETIMER_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define FILETIMER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FILETIMER_THREAD_SANITIZER 1
#endif
#endif

namespace filetimer {

#ifdef FILETIMER_ADDRESS_SANITIZER
inline constexpr bool kIsAddressSanitized = true;
#else
inline constexpr bool kIsAddressSanitized = false;
#endif

#ifdef FILETIMER_THREAD_SANITIZER
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif
inline constexpr bool kIsSanitized = kIsAddressSanitized || kIsThreadSanitized;

}  // namespace filetimer
