// SPDX-License-Identifier: MIT
#include "timer_client/cli/dump/dump_page.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <vector>

#include "common/json_fields.hpp"
#include "common/text.hpp"
#include "timer_client/cli/log/incident.hpp"
#include "timer_client/cli/log/stacks_page.hpp"
#include "timer_client/cli/text/fields.hpp"
#include "timer_client/cli/text/page.hpp"
#include "timer_client/cli/text/words.hpp"

namespace filetimer::cli {
namespace {

namespace dom = simdjson::dom;

// Where a worker is, and of which job.
struct Place {
  std::string job_id;
  std::vector<std::string> scopes;  // the outermost first
  std::vector<std::string> python;  // frames of the main thread
  std::vector<std::string> native;

  friend bool operator==(const Place&, const Place&) = default;
};

struct Group {
  Place place;
  std::vector<WorkerName> workers;
  std::vector<dom::object> dumps;
};

Place place_of(dom::object worker) {
  Place place;
  place.job_id = text_at(worker, "job_id");
  for (const dom::object scope : objects_at(worker, "open_scopes")) {
    place.scopes.push_back(text_at(scope, "scope"));
  }
  place.python = python_frames_of_main_thread(worker);
  place.native = native_frames_of_main_thread(worker);
  return place;
}

std::vector<Group> groups_in(dom::object answer) {
  std::vector<Group> groups;
  for (const dom::object worker : objects_at(answer, "workers")) {
    Place place = place_of(worker);
    auto group = std::ranges::find(groups, place, &Group::place);
    if (group == groups.end()) {
      groups.push_back({std::move(place), {}, {}});
      group = groups.end() - 1;
    }
    group->workers.push_back(
        {{}, integer_at(worker, "pid"), integer_at(worker, "rank"), text_at(worker, "comm")});
    group->dumps.push_back(worker);
  }
  std::ranges::stable_sort(groups, {}, [](const Group& group) { return group.workers.size(); });
  return groups;
}

// Returns "for 12.1 s of 30 s"; of several workers the longest time.
std::string scope_text(const Group& group, std::size_t index) {
  double longest_s = 0;
  Number timeout_s;
  for (const dom::object worker : group.dumps) {
    const dom::object scope = objects_at(worker, "open_scopes")[index];
    longest_s = std::max(longest_s, number_at(scope, "elapsed_s").value_or(0));
    timeout_s = number_at(scope, "timeout_s");
  }
  return fmt::format("`{}` for {}{}", group.place.scopes[index], seconds_text(longest_s),
                     timeout_s ? " of " + seconds_text(*timeout_s) : "");
}

// Shows the job if there are `several_jobs`: their ranks have the same numbers.
void add_group(Page& page, const Group& group, bool several_jobs) {
  const bool is_one = group.workers.size() == 1;
  page.heading(is_one ? worker_text(group.workers[0]) : workers_text(group.workers));
  if (several_jobs) {
    page.field("job", group.place.job_id.empty() ? "none" : group.place.job_id);
  }
  std::vector<std::string> scopes;
  for (std::size_t i = 0; i < group.place.scopes.size(); ++i) {
    scopes.push_back(scope_text(group, i));
  }
  const dom::object first = group.dumps[0];
  page.field("scopes", scopes.empty() ? "none" : joined(scopes, ", in it "));
  page.field("doing", text_at(first, "doing"));
  page.field("missing", text_at(first, "missing"));
  if (!is_one) {
    page.field("shown", worker_text(group.workers[0]));
  }
  add_python_stacks(page, first);
  add_threads(page, first);
  add_children(page, first);
}

}  // namespace

std::string dump_page(const std::string& answer, bool colour) {
  dom::parser parser;
  dom::object object;
  if (parser.parse(answer).get_object().get(object) != simdjson::SUCCESS) {
    return {};
  }
  Page page(colour);
  const std::vector<Group> groups = groups_in(object);
  const bool several_jobs = std::ranges::any_of(
      groups, [&](const Group& group) { return group.place.job_id != groups[0].place.job_id; });
  for (const Group& group : groups) {
    add_group(page, group, several_jobs);
  }
  if (const std::int64_t omitted = count_at(object, "omitted"); omitted > 0) {
    page.heading(fmt::format("{} {} omitted: ask for {} by --rank or --pid.",
                             counted(omitted, "more worker"), omitted == 1 ? "is" : "are",
                             omitted == 1 ? "it" : "them"));
  }
  return std::move(page).text();
}

}  // namespace filetimer::cli
