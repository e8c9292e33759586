// A value, or an error of one line. Library code returns results and writes no messages; only the
// public client library turns them into exceptions.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <tl/expected.hpp>
#include <utility>

namespace filetimer {

struct Error {
  std::string message;  // one line, without a newline, that quotes what was wrong
  int errno_value = 0;  // of the system call that failed; 0: none
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

inline tl::unexpected<Error> failure(std::string what, int errno_value = 0) {
  return tl::unexpected<Error>(Error{std::move(what), errno_value});
}

// Returns an error such as "cannot open /x: Permission denied".
inline tl::unexpected<Error> system_error(std::string what, int error_number = errno) {
  what += ": ";
  what += std::generic_category().message(error_number);  // strerror is not safe in threads
  return failure(std::move(what), error_number);
}

// Returns from the calling function with the error of `result`, if it has one.
#define FILETIMER_TRY(result)                          \
  do {                                                 \
    if (auto&& tried = (result); !tried) {             \
      return tl::unexpected(std::move(tried).error()); \
    }                                                  \
  } while (false)

// Returns whether an error is a failure or lack of the system that may end.
inline bool is_for_now(const Error& error) {
  constexpr std::array kForNow{EINTR, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC};
  return std::ranges::find(kForNow, error.errno_value) != kForNow.end();
}

// Returns what `attempt` returns, a Result. Tries three times where the failure may end.
template <class Attempt>
auto retry_for_now(Attempt attempt) {
  constexpr int kAgain = 2;
  auto result = attempt();
  for (int again = 0; again < kAgain && !result && is_for_now(result.error()); ++again) {
    result = attempt();
  }
  return result;
}

}  // namespace filetimer
