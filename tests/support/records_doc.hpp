// Reads docs/records.md: the fields of each event, and the examples.
// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace filetimer::testing {

// "pid", "open_scopes", "open_scopes[].scope".
using FieldNames = std::set<std::string>;

struct EventDoc {
  FieldNames fields;  // including those of all records and workers
  std::vector<std::string> examples;
};
using RecordsDoc = std::map<std::string, EventDoc>;  // by event
RecordsDoc read_records_doc();

// These throw if a record is not a JSON object.
std::string event_of(std::string_view record);
FieldNames fields_of(std::string_view record);

// Compares the fields of these records of one event with those of the document, in both directions.
// Throws what differs.
void check_fields(const std::string& event, const std::vector<std::string>& records);

}  // namespace filetimer::testing
