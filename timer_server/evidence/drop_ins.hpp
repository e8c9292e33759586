// Drop-ins: the evidence commands in the folders evidence.d, of the installation and of the site.
// SPDX-License-Identifier: MIT
#pragma once

#include <set>
#include <string>
#include <vector>

namespace filetimer {

// A program that is run for an incident (kills/commands.hpp), unless what it is about is
// not on this host or not in this job. Its file says so in lines such as
//
//   # filetimer: needs nvidia-smi
//   # filetimer: needs /dev/nvidiactl
//   # filetimer: needs env:TORCH_NCCL_DEBUG_INFO_PIPE_FILE env:TORCH_FR_DEBUG_INFO_PIPE_FILE
//
// within its first 4 KiB. Of each line one word has to hold: a program is found in PATH when the
// server starts; a path exists at the incident; a worker of the job had the variable when the
// server first saw it.
struct DropIn {
  std::string name;
  std::string path;
  std::vector<std::vector<std::string>> needs{};  // by line: paths and variables
};

// Returns the folders of --evidence-dir. `option`: its value; empty: it was not given.
std::vector<std::string> drop_in_folders(const std::string& option);

// Returns the drop-ins in the order of their names, without those that need a program that is not
// there. A file replaces one of its name in an earlier folder, and removes it if the file is empty
// or cannot be executed. As with run-parts, a name consists of letters, digits, `_` and `-`.
std::vector<DropIn> find_drop_ins(const std::vector<std::string>& folders);

// Returns the names of all variables that drop-ins need.
std::vector<std::string> variables_needed_by(const std::vector<DropIn>& drop_ins);

// Returns whether a drop-in is to be started. `variables`: those of the job's workers.
bool has_what_it_needs(const DropIn& drop_in, const std::set<std::string>& variables);

}  // namespace filetimer
