// A server as a client sees it, played by the test: a runtime directory with a pipe, a status page
// that the test writes, and the pages, read by the functions of the real server. The pages belong
// to this process, which would lose their locks when it closes a descriptor of them. So pages that
// were read stay open until the process ends.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/page_reader.hpp"
#include "common/wake_protocol.hpp"
#include "tests/timer_client/client_fixture.hpp"

namespace filetimer::testing {

// Returns the names of the pages in the runtime directory.
std::vector<std::string> pages_in(const std::string& dir);
// Returns the name of the page of a process. Fails the test if it has none.
std::string page_of(const std::string& dir, pid_t pid);

class FakeServer {
 public:
  // Starts a server that no deadline has to wake, in a folder of its own, or in an existing one,
  // which may have files of a client.
  explicit FakeServer(std::string dir = {});
  ~FakeServer();

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] Board& board() const { return *board_; }
  [[nodiscard]] Pipe& pipe() { return *pipe_; }

  // Sets the time until the server's next reading.
  void looks_in(Duration time) const;

  // Connects to this directory. To connect without a server is an error.
  [[nodiscard]] TimerClient connect(ConnectOptions options = {}) const;

  // Make it impossible to make pages, and possible again.
  void refuse_pages() const;
  void allow_pages() const;

  // Returns the names of the files in `scopes`, also those that begin with a dot.
  [[nodiscard]] std::vector<std::string> page_names() const;
  [[nodiscard]] std::vector<std::string> worker_page_names() const { return pages_in(dir_); }
  [[nodiscard]] PageLayout page(const std::string& name) const;
  [[nodiscard]] std::string page_path(const std::string& name) const;

  // These concern the only page.
  [[nodiscard]] PageLayout page() const;
  [[nodiscard]] std::uint64_t wakes() const { return page().header().wakes; }
  // Returns the slots that are not free, by their numbers.
  [[nodiscard]] std::map<std::size_t, SlotReading> slots() const;
  // Returns the slot of that name. Fails the test unless exactly one has it.
  [[nodiscard]] SlotReading slot(const std::string& name) const;
  // Gives the verdict on it, as in the protocol.
  [[nodiscard]] bool expire(const std::string& name) const;

 private:
  std::optional<TempFolder> folder_;
  std::string dir_;
  std::optional<Pipe> pipe_;
  Board* board_ = nullptr;
  mutable std::map<std::string, PageLayout> pages_;  // that were read
};

// The fixture of most cases.
struct Connected {
  FakeServer server;
  TimerClient client = server.connect();
};

// As slots() and slot() of a server.
std::map<std::size_t, SlotReading> slots_of(const PageLayout& page);
SlotReading slot_called(const PageLayout& page, const std::string& name);
std::size_t index_of(const PageLayout& page, const std::string& name);

}  // namespace filetimer::testing
