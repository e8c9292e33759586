// A server as a client sees it, played by the test: a runtime directory with a pipe, a status page
// that the test writes, and the pages, read by the functions of the real server. The pages belong
// to this process, which would lose their locks when it closes a descriptor of them. So pages that
// were read stay open until the process ends.
// SPDX-License-Identifier: MIT
#pragma once

#include <filetimer/timer_client.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/board.hpp"
#include "common/page_reader.hpp"
#include "common/wake_protocol.hpp"
#include "tests/support/children.hpp"
#include "tests/timer_client/client_fixture.hpp"

namespace filetimer::testing {

class FakeServer {
 public:
  // Starts a server that no deadline has to wake.
  FakeServer();
  // Starts it in an existing folder, which may have files of a client.
  explicit FakeServer(std::string dir);
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer();

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] Board& board() const { return *board_; }
  [[nodiscard]] Pipe& pipe() { return *pipe_; }

  // Sets the time until the server's next reading.
  void looks_in(Duration time) const;

  [[nodiscard]] ConnectOptions options() const;
  [[nodiscard]] TimerClient connect() const;

  // Returns the names of the files in `scopes`, also those that begin with a dot.
  [[nodiscard]] std::vector<std::string> page_names() const;
  // Returns the names of pages.
  [[nodiscard]] std::vector<std::string> worker_page_names() const;
  // Returns the only page.
  [[nodiscard]] PageLayout page() const;
  [[nodiscard]] PageLayout page(const std::string& name) const;
  [[nodiscard]] std::string page_path(const std::string& name) const;

  // Give the verdict on the open slot, and end its kill, as in the protocol.
  static bool expire(Slot& slot);
  static void finish(Slot& slot);

 private:
  std::optional<TempFolder> folder_;
  std::string dir_;
  std::optional<Pipe> pipe_;
  Board* board_ = nullptr;
};

// Starts a process that holds the lock of the status page, as a server does.
std::unique_ptr<Child> process_of(const FakeServer& server);

// Returns the slots that are not free, by their numbers.
std::map<std::size_t, SlotReading> slots_of(const PageLayout& page);
// Returns the slot of that name. Fails the test unless exactly one has it.
SlotReading slot_called(const PageLayout& page, const std::string& name);
std::size_t index_of(const PageLayout& page, const std::string& name);

}  // namespace filetimer::testing
