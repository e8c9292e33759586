// SPDX-License-Identifier: MIT
#include "tests/support/records_doc.hpp"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace filetimer::testing {
namespace {

namespace dom = simdjson::dom;

// Returns the names in backquotes in the first cell of a table's row.
std::vector<std::string> names_in_row(const std::string& line) {
  std::vector<std::string> names;
  const std::string cell = line.substr(0, line.find('|', 1));
  for (std::size_t at = 0; (at = cell.find('`', at)) != std::string::npos;) {
    const std::size_t end = cell.find('`', at + 1);
    names.push_back(cell.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return names;
}

void add_fields(const std::string& prefix, dom::object object, FieldNames& names) {
  for (const dom::key_value_pair field : object) {
    const std::string name = prefix + std::string(field.key);
    names.insert(name);
    dom::object inner;
    dom::array list;
    if (field.value.get(inner) == simdjson::SUCCESS) {
      add_fields(name + ".", inner, names);
    } else if (field.value.get(list) == simdjson::SUCCESS) {
      for (const dom::element element : list) {
        if (element.get(inner) == simdjson::SUCCESS) {
          add_fields(name + "[].", inner, names);
        }
      }
    }
  }
}

FieldNames without(const FieldNames& from, const FieldNames& names) {
  FieldNames rest;
  std::set_difference(from.begin(), from.end(), names.begin(), names.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

std::string text_of(const FieldNames& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

RecordsDoc read_records_doc() {
  std::ifstream file(FILETIMER_SOURCE_DIR "/docs/records.md");
  REQUIRE(file.good());
  std::map<std::string, FieldNames> tables;
  std::map<std::string, std::string> texts;
  RecordsDoc doc;
  std::string section;
  bool in_example = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      in_example = line == "```json";
      if (in_example) {
        doc.examples[section].emplace_back();
      }
    } else if (in_example) {
      doc.examples[section].back() += line;
    } else if (line.starts_with("## ")) {
      section = line.substr(3);
      std::erase(section, '`');
      if (line.starts_with("## `")) {
        doc.events[section];
      }
    } else if (line.starts_with("| `")) {
      const std::vector<std::string> names = names_in_row(line);
      tables[section].insert(names.begin(), names.end());
    } else {
      texts[section] += line + " ";
    }
  }
  FieldNames evidence = tables["evidence"];
  evidence.erase("id");
  for (auto& [event, fields] : doc.events) {
    fields = tables[event];
    if (texts[event].find("With the fields of `evidence`") != std::string::npos) {
      fields.insert(evidence.begin(), evidence.end());
    }
    fields.insert(tables["Every record"].begin(), tables["Every record"].end());
    if (texts[event].find("About a worker.") != std::string::npos) {
      fields.insert(tables["The worker"].begin(), tables["The worker"].end());
    }
  }
  return doc;
}

std::string event_of(std::string_view record) {
  dom::parser parser;
  std::string_view event;
  CAPTURE(record);
  REQUIRE(parser.parse(record.data(), record.size())["event"].get(event) == simdjson::SUCCESS);
  return std::string(event);
}

FieldNames fields_of(std::string_view record) {
  dom::parser parser;
  dom::object object;
  CAPTURE(record);
  REQUIRE(parser.parse(record.data(), record.size()).get(object) == simdjson::SUCCESS);
  FieldNames names;
  add_fields({}, object, names);
  return names;
}

void check_fields(const std::string& event, const std::vector<std::string>& records) {
  CAPTURE(event);
  const RecordsDoc doc = read_records_doc();
  REQUIRE(doc.events.contains(event));
  FieldNames written;
  for (const std::string& record : records) {
    CHECK(event_of(record) == event);
    written.merge(fields_of(record));
  }
  CHECK_MESSAGE(text_of(without(written, doc.events.at(event))) == "",
                "fields that docs/records.md does not name");
  CHECK_MESSAGE(text_of(without(doc.events.at(event), written)) == "",
                "fields of docs/records.md that are not written");
}

}  // namespace filetimer::testing
