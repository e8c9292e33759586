// The loop thread: the thread that runs the server's event loop.
// SPDX-License-Identifier: MIT
#pragma once

#include <cassert>
#include <thread>

namespace filetimer {

// A member of a class whose functions run on one thread, which is the one that made the object. A
// debug build aborts in a function that runs on another thread; a release build checks nothing.
//
//   void Commands::add_hook(...) {
//     loop_thread_.check();
class LoopThread {
 public:
#ifdef NDEBUG
  void check() const {}
#else
  void check() const {
    assert(std::this_thread::get_id() == id_);
  }

 private:
  std::thread::id id_ = std::this_thread::get_id();
#endif
};

}  // namespace filetimer
