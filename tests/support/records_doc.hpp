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

struct RecordsDoc {
  std::map<std::string, FieldNames> events;  // including the fields of all records and workers
  std::map<std::string, std::vector<std::string>> examples;
};
RecordsDoc read_records_doc();

// Returns the event of a record. Fails the calling test if the record is not a JSON object.
std::string event_of(std::string_view record);
FieldNames fields_of(std::string_view record);

// Compares the fields of these records of one event with those of the document, in both directions.
void check_fields(const std::string& event, const std::vector<std::string>& records);

}  // namespace filetimer::testing
