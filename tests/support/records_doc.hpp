// docs/records.md as tests read it: which fields it gives to which event, and its examples.
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
  std::map<std::string, FieldNames> events;  // what each record and each worker has is among them
  std::map<std::string, std::vector<std::string>> examples;
};
RecordsDoc read_records_doc();

// Of a record; the test that asks fails when it is no JSON object.
std::string event_of(std::string_view record);
FieldNames fields_of(std::string_view record);

// Of these records of one event together, against the document's: both ways.
void check_fields(const std::string& event, const std::vector<std::string>& records);

}  // namespace filetimer::testing
