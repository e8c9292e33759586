// How long the scopes of workers that have ended took, by name: added up in a page file of the
// server's own (`scopes/server/ended`), from which `timer_client list --stats` adds it to what
// living workers' pages say. Loop thread only.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>

#include "common/page_reader.hpp"
#include "common/posix.hpp"

namespace filetimer {

class EndedStatistics {
 public:
  // Goes on with what a server before this one has left there.
  explicit EndedStatistics(std::string path);

  // Adds all of a page that has entries; guard the reading. Of more than kMaxStatistics names those
  // that come later are left out, and a file that can't be written keeps what it has.
  void add(const PageLayout& page);

 private:
  bool make_file();
  // The number of the name's entry, made if it is new; kMaxStatistics: there is no room.
  std::size_t entry_of(const std::string& name);

  std::string path_;
  UniqueFd fd_;
  std::unordered_map<std::string, std::size_t> entries_;
};

}  // namespace filetimer
