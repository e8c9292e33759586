// A worker with a scope page, made by the layout and not by our client, so that it can do more than
// our client does. Reads commands from its standard input, one a line, and answers each with a
// line. Dies with its parent.
//
// make RUNFOLDER NAME [KEY=NUMBER...]: makes a page, which is renamed into place once it is locked;
// keys change fields of its header. Earlier pages stay, and the commands below are for this one.
//
// unlock, lock: drops the lock, and takes it again.
//
// open SLOT NAME MS [SIGNAL [GRACE_MS [FLAGS [SOFT_MS]]]]: a deadline MS from now, or none if MS is
// 0; answers the deadline. wake: the same, and writes a wake-up message.
//
// idle SLOT NS: an idle timeout.
//
// release SLOT: answers in-time or late.
//
// word SLOT: answers free, open, expired, judged or late.
//
// hint: writes a wake-up message.
//
// statistics NAME COUNT: adds an entry to those of the page.
//
// become USER: changes its user.
//
// exec PROGRAM ARGUMENT, exit: no answer.
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/mapped_file.hpp"
#include "common/page_reader.hpp"
#include "common/posix.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/scope_page.hpp"
#include "common/wake_protocol.hpp"
#include "common/wire.hpp"
#include "tests/support/test_page.hpp"

namespace {

using namespace filetimer;

constexpr unsigned kLastResortSeconds = 100;

class PageWorker {
 public:
  std::string answer(const std::string& line) {
    static const std::map<std::string, std::string (PageWorker::*)(std::istringstream&)> commands{
        {"make", &PageWorker::make},       {"lock", &PageWorker::lock},
        {"unlock", &PageWorker::unlock},   {"open", &PageWorker::open},
        {"wake", &PageWorker::wake},       {"idle", &PageWorker::idle},
        {"release", &PageWorker::release}, {"word", &PageWorker::word},
        {"hint", &PageWorker::hint},       {"statistics", &PageWorker::statistics},
        {"become", &PageWorker::become},   {"exec", &PageWorker::exec}};
    std::istringstream words(line);
    std::string command;
    words >> command;
    return (this->*commands.at(command))(words);
  }

 private:
  std::string make(std::istringstream& words) {
    words >> dir_ >> name_;
    // As a client does: the page is not visible before it is complete and locked.
    path_ = dir_ + "/scopes/." + name_;
    {
      const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(kPageBytes)) != 0) {
        return "error";
      }
    }
    auto mapped = MappedFile::map(path_, MappedFile::Access::kReadWrite, kPageBytes);
    if (!mapped) {
      return "error";
    }
    files_.push_back(std::move(*mapped));
    PageHeader& header = page().header();
    begin_page(header, 0);
    header.pid = ::getpid();
    header.start_time = read_own_stat()->start_time;
    for (std::string claim; words >> claim;) {
      const std::string key = claim.substr(0, claim.find('='));
      const long long value = std::stoll(claim.substr(claim.find('=') + 1));
      if (key == "pid") {
        header.pid = static_cast<std::int32_t>(value);
      } else if (key == "start_time") {
        header.start_time = static_cast<std::uint64_t>(value);
      } else if (key == "boot") {
        header.boot.fill(static_cast<std::uint8_t>(value));
      } else if (key == "version") {
        header.version = static_cast<std::uint32_t>(value);
      } else if (key == "magic") {
        header.magic = static_cast<std::uint64_t>(value);
      } else if (key == "rank") {
        header.rank[0] = static_cast<char>('0' + value);
      } else if (key == "dump_signal") {
        header.dump_signal = static_cast<std::uint32_t>(value);
      }
    }
    return lock(words);
  }

  std::string lock(std::istringstream&) {
    auto taken = FileLock::take(path_);
    const std::string before = std::exchange(path_, dir_ + "/scopes/" + name_);
    if (!taken || ::rename(before.c_str(), path_.c_str()) != 0) {
      return "error";
    }
    locks_.push_back(std::move(*taken));
    return "ok";
  }

  std::string unlock(std::istringstream&) {
    ::close(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    return "ok";
  }

  std::string wake(std::istringstream& words) {
    const std::string deadline = open(words);
    return hint(words) == "ok" ? deadline : "error";
  }

  std::string become(std::istringstream& words) {
    uid_t user = 0;
    words >> user;
    return ::setuid(user) == 0 ? "ok" : "error";
  }

  std::string exec(std::istringstream& words) {
    std::string program;
    std::string argument;
    words >> program >> argument;
    ::execlp(program.c_str(), program.c_str(), argument.c_str(), nullptr);
    return "error";
  }

  std::string open(std::istringstream& words) {
    std::size_t index = 0;
    std::string name;
    std::int64_t ms = 0;
    TestScope scope{.tid = ::gettid()};
    words >> index >> name >> ms;
    words >> scope.signal >> scope.grace_ms >> scope.flags >> scope.soft_ms;
    scope.name = name;
    scope.acquired = scope.started = Instant::now().ns;
    scope.timeout = ms * 1'000'000;
    scope.word = scope.started + (ms == 0 ? slot_word::kNoDeadline : scope.timeout);
    begin_writing_slot();
    fill_slot(page(), index, scope);
    set_deadline(page().slot(index), scope.word);
    return std::to_string(scope.word);
  }

  std::string idle(std::istringstream& words) {
    std::size_t index = 0;
    TestScope scope{.name = "(idle)", .flags = slot_flag::kIdle};
    words >> index >> scope.timeout;
    scope.acquired = scope.started = Instant::now().ns;
    begin_writing_slot();
    fill_slot(page(), index, scope);
    begin_idle_watch(page().slot(index));
    return "ok";
  }

  std::string release(std::istringstream& words) {
    std::size_t index = 0;
    words >> index;
    Slot& slot = page().slot(index);
    const std::int64_t before = slot.deadline;
    if (slot_word::is_open(before) && try_release(slot, before)) {
      return "in-time";
    }
    release_late(slot);
    return "late";
  }

  std::string word(std::istringstream& words) {
    std::size_t index = 0;
    words >> index;
    const std::int64_t word = page().slot(index).deadline;
    return word == slot_word::kFree           ? "free"
           : slot_word::is_open(word)         ? "open"
           : word == slot_word::kJudged       ? "judged"
           : word == slot_word::kReleasedLate ? "late"
                                              : "expired";
  }

  std::string hint(std::istringstream&) {
    const std::string line = wire::format_page_hint(name_);
    const UniqueFd pipe(::open((dir_ + "/requests").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return pipe && ::write(pipe.get(), line.data(), line.size()) > 0 ? "ok" : "error";
  }

  std::string statistics(std::istringstream& words) {
    std::string name;
    std::uint64_t count = 0;
    words >> name >> count;
    PageHeader& header = page().header();
    SlotStatistics& entry = page().statistics(header.statistics);
    write_name(entry.name, name);
    entry.count = count;
    entry.total_ns = static_cast<std::int64_t>(count) * 1000;
    entry.longest_ns = 1000;
    entry.last_ns = 1000;
    entry.smallest_margin_ns = 5000;
    entry.histogram[bucket_of(1000)] = static_cast<std::uint32_t>(count);
    header.statistics = header.statistics + 1;
    return "ok";
  }

  PageLayout page() { return PageLayout(files_.back().data()); }

  std::string dir_;
  std::string name_;
  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<FileLock> locks_;
};

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(kLastResortSeconds);
  std::cout << "ready" << std::endl;
  PageWorker worker;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "exit") {
      return 0;
    }
    std::cout << worker.answer(line) << std::endl;
  }
}
