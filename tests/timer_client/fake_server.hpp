// A server as a client sees it, played by the test: a run folder with a pipe, a board that says
// what the test wants, and the pages, read with what the real server reads them with. The pages
// belong to this process, which would lose their locks with the first descriptor that is closed; so
// the pages that were looked at stay open to the end of the process.
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

class FakeServer {
 public:
  // A server that serves: nothing has to wake it.
  FakeServer();
  // In a folder that is there, and may have what a client has made.
  explicit FakeServer(std::string dir);
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer();

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] Board& board() const { return *board_; }
  [[nodiscard]] Pipe& pipe() { return *pipe_; }

  // It next looks by itself in that long.
  void looks_in(Duration time) const;

  [[nodiscard]] ConnectOptions options() const;
  [[nodiscard]] TimerClient connect(bool statistics = false) const;

  // Names of the files in `scopes`, those that begin with a dot too.
  [[nodiscard]] std::vector<std::string> page_names() const;
  // Of them, those of pages.
  [[nodiscard]] std::vector<std::string> worker_page_names() const;
  // The one page that is there.
  [[nodiscard]] PageLayout page() const;
  [[nodiscard]] PageLayout page(const std::string& name) const;
  [[nodiscard]] std::string page_path(const std::string& name) const;

  // As the protocol has it: the verdict on the open slot, and the end of it.
  static bool expire(Slot& slot);
  static void finish(Slot& slot);

 private:
  std::optional<TempFolder> folder_;
  std::string dir_;
  std::optional<Pipe> pipe_;
  Board* board_ = nullptr;
};

// The slots that are not free, by their numbers.
std::map<std::size_t, SlotReading> slots_of(const PageLayout& page);
// Of one name; the test fails unless there is exactly one.
SlotReading slot_called(const PageLayout& page, const std::string& name);
std::size_t index_of(const PageLayout& page, const std::string& name);

}  // namespace filetimer::testing
