// A value or the one line that says why there is none. Library code returns these and never logs;
// exceptions are made from them only at the edge of the public client library.
// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <tl/expected.hpp>
#include <utility>

namespace filetimer {

struct Error {
  std::string message;  // one clear line, without a newline, that quotes what was wrong
  int errno_value = 0;  // the system's reason, 0 when it was not the system that said no
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

// "cannot open /x: Permission denied"
inline tl::unexpected<Error> system_error(std::string what, int error_number = errno) {
  what += ": ";
  what += std::generic_category().message(error_number);  // strerror is not safe in threads
  return tl::unexpected<Error>(Error{std::move(what), error_number});
}

inline tl::unexpected<Error> failure(std::string what) {
  return tl::unexpected<Error>(Error{std::move(what), 0});
}

}  // namespace filetimer
