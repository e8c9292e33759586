// The errors that functions of this library throw; admin.hpp has those of control requests.
// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>

namespace filetimer {

// The base of every error that this library throws.
class TimerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Thrown when no server runs, or when none has started within ConnectOptions::timeout. A control
// request also throws it if only a pipe exists, whose reader answers no control requests.
class ServerUnavailable : public TimerError {
  using TimerError::TimerError;
};
// Thrown for a wrong argument, such as a timeout of zero or less, or a signal that does not exist.
class InvalidArgument : public TimerError {
  using TimerError::TimerError;
};

}  // namespace filetimer
