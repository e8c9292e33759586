// SPDX-License-Identifier: MIT
#include "timer_server/evidence/drop_ins.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>

#include "common/proc_files.hpp"
#include "timer_server/system/process.hpp"

namespace filetimer {
namespace {

constexpr std::string_view kNeeds = "# filetimer: needs ";
constexpr std::string_view kVariable = "env:";
constexpr std::size_t kMaxBytesRead = 4096;

bool is_drop_in_name(const std::string& name) {
  return std::ranges::all_of(name, [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_' || c == '-';
  });
}

bool can_run(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
         ::access(path.c_str(), X_OK) == 0;
}

bool is_program_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (can_run(folder + "/" + name)) {
      return true;
    }
  }
  return false;
}

// Adds what the drop-in needs at an incident. Returns false if it needs a program that is not
// there.
bool read_needs(DropIn& drop_in) {
  std::istringstream lines(read_small_file(drop_in.path, kMaxBytesRead).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kNeeds)) {
      continue;
    }
    std::istringstream words(line.substr(kNeeds.size()));
    std::vector<std::string> later;
    bool holds = false;
    for (std::string word; words >> word;) {
      if (word.starts_with('/') || word.starts_with(kVariable)) {
        later.push_back(word);
      } else {
        holds = holds || is_program_in_path(word);
      }
    }
    if (!holds && later.empty()) {
      return false;
    }
    if (!holds) {
      drop_in.needs.push_back(std::move(later));
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> drop_in_folders(const std::string& option) {
  if (option == "none") {
    return {};
  }
  if (!option.empty()) {
    return {option};
  }
  return {folder_of_this_program() + FILETIMER_LIBEXEC_FROM_BIN "/evidence.d",
          "/etc/filetimer/evidence.d"};
}

std::vector<DropIn> find_drop_ins(const std::vector<std::string>& folders) {
  std::map<std::string, std::string> paths;  // by name
  for (const std::string& each : folders) {
    std::error_code error;
    std::filesystem::directory_iterator entry(each, error);
    for (; entry != std::filesystem::directory_iterator{}; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      paths[name] = is_drop_in_name(name) && can_run(entry->path()) ? entry->path().string() : "";
    }
  }
  std::vector<DropIn> drop_ins;
  for (const auto& [name, path] : paths) {
    DropIn drop_in{name, path};
    if (!path.empty() && read_needs(drop_in)) {
      drop_ins.push_back(std::move(drop_in));
    }
  }
  return drop_ins;
}

std::vector<std::string> variables_needed_by(const std::vector<DropIn>& drop_ins) {
  std::set<std::string> names;
  for (const DropIn& drop_in : drop_ins) {
    for (const auto& words : drop_in.needs) {
      for (const std::string& word : words) {
        if (word.starts_with(kVariable)) {
          names.insert(word.substr(kVariable.size()));
        }
      }
    }
  }
  return {names.begin(), names.end()};
}

bool has_what_it_needs(const DropIn& drop_in, const std::set<std::string>& variables) {
  const auto holds = [&](const std::string& word) {
    return word.starts_with(kVariable) ? variables.contains(word.substr(kVariable.size()))
                                       : ::access(word.c_str(), F_OK) == 0;
  };
  return std::ranges::all_of(drop_in.needs,
                             [&](const auto& words) { return std::ranges::any_of(words, holds); });
}

}  // namespace filetimer
