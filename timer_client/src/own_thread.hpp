// Threads that the library runs in somebody else's process: the process's signals are not theirs,
// and nobody has to join them.
// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <type_traits>
#include <utility>

namespace filetimer {

// With all signals blocked, under the library's name. False: there is no thread to be had.
bool start_own_thread(std::function<void()> body) noexcept;

[[noreturn]] void throw_no_thread();

// What `call` returns or throws. The future's destructor does not wait, unlike std::async's.
template <class Call>
auto in_own_thread(Call call) {
  using Value = std::invoke_result_t<Call&>;
  auto promise = std::make_shared<std::promise<Value>>();
  auto future = promise->get_future();
  const bool started = start_own_thread([promise, call = std::move(call)]() mutable {
    try {
      if constexpr (std::is_void_v<Value>) {
        call();
        promise->set_value();
      } else {
        promise->set_value(call());
      }
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  if (!started) {
    throw_no_thread();
  }
  return future;
}

}  // namespace filetimer
