// The evidence of workers as pages show it: their stacks, and the ends of evidence commands.
// SPDX-License-Identifier: MIT
#pragma once

#include <simdjson.h>

#include <string>
#include <vector>

#include "timer_client/cli/log/reader.hpp"
#include "timer_client/cli/text/page.hpp"

namespace filetimer::cli {

struct Incident;

// Return the frames of a main thread, the innermost frame first. It comes first in the lists of an
// `evidence` record; of Python threads the current one, if one is. The native frames have no
// offsets, which say no more about where it hangs: "read (libc.so.6)" of "read+0xd (libc.so.6)". A
// frame without a function keeps its offset.
std::vector<std::string> python_frames_of_main_thread(simdjson::dom::object evidence);
std::vector<std::string> native_frames_of_main_thread(simdjson::dom::object evidence);

// Returns the functions of a kernel stack on one line, the innermost first: "do_wait < ...".
std::string kernel_stack_text(const std::vector<std::string>& frames);

// Add the Python threads, the threads with their kernel and native frames, and the children with
// those of their main threads, under a heading each. `evidence` has the fields of an `evidence`
// record. Threads, and children, in the same place are one item. A list without threads adds
// nothing.
void add_python_stacks(Page& page, simdjson::dom::object evidence);
void add_threads(Page& page, simdjson::dom::object evidence);
void add_children(Page& page, simdjson::dom::object evidence);
// Adds where the workers are: the stacks of their main threads as a tree, in which is once what
// they have in common. Adds nothing if there are none.
void add_merged_stacks(Page& page, const Incident& incident);

}  // namespace filetimer::cli
