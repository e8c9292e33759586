// SPDX-License-Identifier: MIT
#include "timer_server/system/recorder_files.hpp"

#include <doctest/doctest.h>

#include <string>

#include "timer_server/system/worker_facts.hpp"

using namespace filetimer;
using namespace std::string_literals;

namespace {

using Paths = std::vector<std::string>;

const std::string kPipe = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/run/fr_\0"s;

}  // namespace

TEST_CASE("The files of a flight recorder are those that PyTorch's variables name") {
  const auto files = recorder_files_from(
      kPipe + "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/data/dump_\0HOME=/home/u\0"s, 3);
  REQUIRE(files);
  CHECK(files->pipe == "/run/fr_3.pipe");
  CHECK(files->dumps == Paths{"/data/dump_3"});
  CHECK(files->unusable == "");
}

TEST_CASE("The variable of recent versions of PyTorch takes precedence over that of earlier ones") {
  const auto files = recorder_files_from(
      kPipe + "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/a/old_\0TORCH_FR_DUMP_TEMP_FILE=/a/new_\0"s, 0);
  CHECK(files->dumps == Paths{"/a/new_0", "/a/old_0"});
}

TEST_CASE("The pipe of PyTorch's XCCL backend has a variable of its own") {
  const std::string xccl = "TORCH_FR_DEBUG_INFO_PIPE_FILE=/run/xccl_\0"s;
  CHECK(recorder_files_from(xccl, 3)->pipe == "/run/xccl_3.pipe");
  CHECK(recorder_files_from(xccl + kPipe, 3)->pipe == "/run/fr_3.pipe");
  CHECK(recorder_files_from("TORCH_FR_DEBUG_INFO_PIPE_FILE=fr_\0"s, 0)->unusable ==
        "TORCH_FR_DEBUG_INFO_PIPE_FILE is 'fr_': expected an absolute path");
}

TEST_CASE("Without a variable the dump is where one of PyTorch's versions puts it") {
  CHECK(recorder_files_from(kPipe + "HOME=/home/u\0XDG_CACHE_HOME=/cache\0"s, 1)->dumps ==
        Paths{"/cache/torch/comm_lib_trace_rank_1", "/home/u/.cache/torch/comm_lib_trace_rank_1",
              "/home/u/.cache/torch/nccl_trace_rank_1", "/tmp/nccl_trace_rank_1"});
  CHECK(recorder_files_from(kPipe, 1)->dumps ==
        Paths{"/tmp/.cache/torch/comm_lib_trace_rank_1", "/tmp/nccl_trace_rank_1"});
}

TEST_CASE("An environment without the pipe's variable names no flight recorder") {
  CHECK_FALSE(recorder_files_from("", 0));
  CHECK_FALSE(recorder_files_from("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=\0RANK=0\0"s, 0));
  CHECK_FALSE(recorder_files_from("XTORCH_NCCL_DEBUG_INFO_PIPE_FILE=/a\0"s, 0));
  CHECK_FALSE(worker_facts_from("", "RANK=0\0"s).recorder);
  CHECK(worker_facts_from("", kPipe + "RANK=2\0"s).recorder->pipe == "/run/fr_2.pipe");
}

TEST_CASE("A flight recorder whose files are unknown gets no request") {
  CHECK(recorder_files_from(kPipe, std::nullopt)->unusable == "its environment has no RANK");
  CHECK(recorder_files_from("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=fr_\0"s, 0)->unusable ==
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE is 'fr_': expected an absolute path");
  CHECK(recorder_files_from(kPipe + "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=d_\0"s, 0)->unusable ==
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE is 'd_0': expected an absolute path");
  const std::string longest(64'000, 'x');
  CHECK(recorder_files_from("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/" + longest, 0)->unusable ==
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE has 64001 bytes: expected at most 512");
  const auto relative = recorder_files_from("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" + longest, 0);
  CHECK(relative->unusable.size() < 200);
  CHECK(relative->pipe == "");
}
