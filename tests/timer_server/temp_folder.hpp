// A folder of a test's own that goes with it.
// SPDX-License-Identifier: MIT
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace filetimer {

struct TempFolder {
  std::string path = [] {
    std::string name = (std::filesystem::temp_directory_path() / "filetimer-XXXXXX").string();
    return std::string(::mkdtemp(name.data()));
  }();
  ~TempFolder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string file(const char* name) const { return path + "/" + name; }
};

}  // namespace filetimer
