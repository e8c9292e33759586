// SPDX-License-Identifier: MIT
#include "tests/timer_client/fake_server.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace filetimer::testing {
namespace {

void* map_file(const std::string& path, int flags, std::size_t bytes) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  if ((flags & O_CREAT) != 0) {
    REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  }
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(mapped != MAP_FAILED);
  return mapped;  // the descriptor stays open: see the head of fake_server.hpp
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

}  // namespace

std::vector<std::string> pages_in(const std::string& dir) {
  auto names = names_in(dir + "/scopes");
  std::erase_if(names, [](const std::string& name) { return name[0] == '.'; });
  return names;
}

std::string page_of(const std::string& dir, pid_t pid) {
  const auto names = pages_in(dir);
  const auto found = std::ranges::find_if(
      names, [&](const std::string& name) { return name.starts_with(std::to_string(pid) + "-"); });
  REQUIRE(found != names.end());
  return *found;
}

FakeServer::FakeServer(std::string dir) : dir_(std::move(dir)) {
  if (dir_.empty()) {
    dir_ = folder_.emplace().path();
  }
  std::filesystem::create_directory(dir_ + "/scopes");
  pipe_.emplace(dir_ + "/requests");
  board_ = static_cast<Board*>(map_file(dir_ + "/server", O_RDWR | O_CREAT, kBoardBytes));
  board_->magic = kBoardMagic;
  board_->version = kBoardVersion;
  board_->bytes = kBoardBytes;
  board_->boot = this_boot();
  board_->server_pid = ::getpid();
  board_->next_wake = kWakeNever;
  board_->max_timeout = std::numeric_limits<std::int64_t>::max();
  board_->incarnation = 1;
  board_->counts_scans = 1;
  board_->state = static_cast<std::uint32_t>(ServerState::kServing);
}

FakeServer::~FakeServer() {
  ::munmap(board_, kBoardBytes);
}

void FakeServer::looks_in(Duration time) const {
  announce_next_scan(*board_, (Instant::now() + time).ns);
}

TimerClient FakeServer::connect(ConnectOptions options) const {
  options.dir = dir_;
  options.missing = ConnectOptions::Missing::kRaise;
  return TimerClient::connect(std::move(options));
}

void FakeServer::refuse_pages() const {
  std::filesystem::rename(dir_ + "/scopes", dir_ + "/scopes.away");
  write_file(dir_ + "/scopes", "");
}

void FakeServer::allow_pages() const {
  std::filesystem::remove(dir_ + "/scopes");
  std::filesystem::rename(dir_ + "/scopes.away", dir_ + "/scopes");
}

std::vector<std::string> FakeServer::page_names() const {
  return names_in(dir_ + "/scopes");
}

PageLayout FakeServer::page() const {
  const auto names = worker_page_names();
  REQUIRE(names.size() == 1);
  return page(names[0]);
}

PageLayout FakeServer::page(const std::string& name) const {
  auto known = pages_.find(name);
  if (known == pages_.end()) {
    known = pages_.emplace(name, map_file(page_path(name), O_RDWR, kPageBytes)).first;
  }
  return known->second;
}

std::string FakeServer::page_path(const std::string& name) const {
  return dir_ + "/scopes/" + name;
}

std::map<std::size_t, SlotReading> FakeServer::slots() const {
  return slots_of(page());
}

SlotReading FakeServer::slot(const std::string& name) const {
  return slot_called(page(), name);
}

bool FakeServer::expire(const std::string& name) const {
  Slot& slot = page().slot(index_of(page(), name));
  return try_expire(slot, read_deadline(slot));
}

std::map<std::size_t, SlotReading> slots_of(const PageLayout& page) {
  std::map<std::size_t, SlotReading> found;
  for (std::size_t i = 0; i < slots_in_use(page); ++i) {
    const std::int64_t word = read_deadline(page.slot(i));
    if (word == slot_word::kFree) {
      continue;
    }
    if (auto reading = read_slot(page, i, word)) {
      found.emplace(i, std::move(*reading));
    }
  }
  return found;
}

std::size_t index_of(const PageLayout& page, const std::string& name) {
  std::vector<std::size_t> found;
  for (const auto& [index, reading] : slots_of(page)) {
    if (reading.name == name) {
      found.push_back(index);
    }
  }
  REQUIRE_MESSAGE(found.size() == 1, name);
  return found[0];
}

SlotReading slot_called(const PageLayout& page, const std::string& name) {
  return slots_of(page).at(index_of(page, name));
}

}  // namespace filetimer::testing
