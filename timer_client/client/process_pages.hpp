// The scope pages of this process, one for each runtime directory that its clients use, and one
// more each time that a file of it was removed or cut short.
// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <string>

#include "common/result.hpp"
#include "timer_client/client/page/own_page.hpp"

namespace filetimer {

// Every member must be called with the ProcessLock held.
class ProcessPages {
 public:
  // Never destroyed: scopes in static objects may outlive every other static.
  static ProcessPages& instance();

  // Returns this process's page in the runtime directory `dir`, whose request pipe is `pipe`.
  // Makes the directory and its status page if they are missing. If that fails, sets `why_not`, and
  // the page has no status page: its scopes are not watched until a later look finds one.
  OwnPage& page_in(const std::string& dir, const std::string& pipe, Status& why_not);

  // Returns the page of clients that are switched off: no scope is opened on it.
  OwnPage& inactive_page();

  // Checks, at most once a second for each page, whether a server uses the files of the page: the
  // runtime directory may have been removed and made again, or a file cut short or removed. Returns
  // the page to use from now on: `page`, or its successor.
  OwnPage& look_again(OwnPage& page) noexcept;

  // Suspends the thread, or ends that, on `page` and on those that it continues. Returns whether
  // the server must be woken.
  [[nodiscard]] bool suspend_thread(const OwnPage& page, pid_t tid, bool is_suspended) noexcept;

  // Keeps timeouts of a file for as long as the process lives, as pages refer to them. Returns
  // them, or equal ones that were kept before.
  const ReplacedTimeouts& keep(ReplacedTimeouts timeouts);

 private:
  ProcessPages();

  std::list<OwnPage> pages_;              // only grows
  std::list<ReplacedTimeouts> timeouts_;  // only grows
};

}  // namespace filetimer
