// SPDX-License-Identifier: MIT
#include "timer_client/client/page/abandoned_pages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <new>

#include "common/directory.hpp"
#include "common/mapped_file.hpp"
#include "common/own_file.hpp"
#include "common/page_reader.hpp"
#include "common/proc_files.hpp"
#include "common/run_folder.hpp"
#include "common/scope_page.hpp"

namespace filetimer {
namespace {

// Returns whether the process that made the page is alive, as far as this pid namespace shows.
bool is_maker_alive(const PageClaims& claims) {
  const auto stat = read_stat(fmt::format("/proc/{}", claims.pid));
  return stat && stat->start_time == claims.start_time;
}

bool is_abandoned(const std::string& path) {
  const auto page = open_own_file(path, O_RDONLY);
  alignas(PageHeader) std::array<std::byte, sizeof(PageHeader)> header{};
  if (!page || !read_at(page->fd.get(), header.data(), header.size(), 0)) {
    return false;
  }
  const auto claims =
      read_claims(PageLayout(header.data()), static_cast<std::uint64_t>(page->status.st_size));
  if (!claims) {
    return false;  // not a page
  }
  const auto lock = lock_state(page->fd.get());
  return lock && !lock->is_held && !is_maker_alive(*claims);
}

}  // namespace

void remove_abandoned_pages(const std::string& folder) noexcept {
  try {
    const std::string own_prefix = fmt::format("{}-", ::getpid());
    Directory pages(folder);
    for (int looked_at = 0; looked_at < kMaxPagesLookedAt; ++looked_at) {
      const char* const name = pages.next();
      if (name == nullptr) {
        return;
      }
      struct stat st {};
      const std::string path = fmt::format("{}/{}", folder, name);
      if (name[0] == '.' || std::string_view(name).starts_with(own_prefix) ||
          ::lstat(fmt::format("{}/{}/{}", folder, kOwnersName, name).c_str(), &st) == 0 ||
          !is_abandoned(path)) {
        continue;
      }
      ::unlink(path.c_str());
      ::unlink(fmt::format("{}/{}/{}", folder, kStacksName, name).c_str());
    }
  } catch (const std::bad_alloc&) {
    // The next client, or a server, removes them.
  }
}

}  // namespace filetimer
