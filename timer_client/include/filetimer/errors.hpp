// What every function of this library may throw; admin.hpp has more.
// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>

namespace filetimer {

// The base of every error that this library throws.
class TimerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// No server was there within ConnectOptions::timeout, or none that answers control requests.
class ServerUnavailable : public TimerError {
  using TimerError::TimerError;
};
// A timeout of zero or less, a signal that does not exist, and the like.
class InvalidArgument : public TimerError {
  using TimerError::TimerError;
};

}  // namespace filetimer
