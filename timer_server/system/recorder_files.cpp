// SPDX-License-Identifier: MIT
#include "timer_server/system/recorder_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/text.hpp"
#include "timer_server/system/environ_block.hpp"

namespace filetimer {
namespace {

// The first is that of PyTorch's backend for NCCL, the second that of its backend for XCCL.
constexpr std::array<std::string_view, 2> kPipeVariables{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
                                                         "TORCH_FR_DEBUG_INFO_PIPE_FILE"};
constexpr std::size_t kMaxPathBytesQuoted = 64;

// Returns why the path cannot be used, or nothing.
std::string objection_to(std::string_view variable, std::string_view path) {
  if (!path.starts_with('/')) {
    return fmt::format("{} is '{}': expected an absolute path", variable,
                       utf8_prefix(path, kMaxPathBytesQuoted));
  }
  if (path.size() > kMaxRecorderPathBytes) {
    return fmt::format("{} has {} bytes: expected at most {}", variable, path.size(),
                       kMaxRecorderPathBytes);
  }
  return {};
}

}  // namespace

std::shared_ptr<const RecorderFiles> recorder_files_from(std::string_view environ_block,
                                                         std::optional<int> rank) {
  const auto variable = std::ranges::find_if(kPipeVariables, [&](std::string_view name) {
    return !value_in_environ(environ_block, name).empty();
  });
  if (variable == kPipeVariables.end()) {
    return nullptr;
  }
  const std::string_view stem = value_in_environ(environ_block, *variable);
  auto files = std::make_shared<RecorderFiles>();
  if (!rank) {
    files->unusable = "its environment has no RANK";
    return files;
  }
  files->unusable = objection_to(*variable, stem);
  files->pipe = files->unusable.empty() ? fmt::format("{}{}.pipe", stem, *rank) : std::string{};
  std::string objection;
  const auto add = [&](std::string_view name, std::string_view folder, std::string_view rest) {
    if (folder.empty()) {
      return;
    }
    const std::string path = fmt::format("{}{}{}", folder, rest, *rank);
    const std::string why_not = objection_to(name, path);
    if (!why_not.empty()) {
      objection = objection.empty() ? why_not : objection;
    } else if (std::ranges::find(files->dumps, path) == files->dumps.end()) {
      files->dumps.push_back(path);
    }
  };
  // Recent versions read the first variable before the second. Earlier ones know the second alone.
  constexpr std::string_view kDump = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
  add("TORCH_FR_DUMP_TEMP_FILE", value_in_environ(environ_block, "TORCH_FR_DUMP_TEMP_FILE"), "");
  add(kDump, value_in_environ(environ_block, kDump), "");
  if (value_in_environ(environ_block, kDump).empty()) {
    const std::string_view home = value_in_environ(environ_block, "HOME");
    add("XDG_CACHE_HOME", value_in_environ(environ_block, "XDG_CACHE_HOME"),
        "/torch/comm_lib_trace_rank_");
    add("HOME", home.empty() ? "/tmp" : home, "/.cache/torch/comm_lib_trace_rank_");
    add("HOME", home, "/.cache/torch/nccl_trace_rank_");
    add("", "/tmp", "/nccl_trace_rank_");
  }
  if (files->dumps.empty() && files->unusable.empty()) {
    files->unusable = objection;
  }
  return files;
}

}  // namespace filetimer
