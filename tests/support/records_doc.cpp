// SPDX-License-Identifier: MIT
#include "tests/support/records_doc.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

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

std::string text_of(const char* which, const FieldNames& names) {
  std::string text;
  for (const std::string& name : names) {
    text += fmt::format("{} {}; ", name, which);
  }
  return text;
}

}  // namespace

void EventDoc::add(const EventDoc& others) {
  fields.insert(others.fields.begin(), others.fields.end());
  required.insert(others.required.begin(), others.required.end());
  or_null.insert(others.or_null.begin(), others.or_null.end());
}

RecordsDoc read_records_doc() {
  std::ifstream file(FILETIMER_SOURCE_DIR "/docs/records.md");
  RecordsDoc sections;
  std::map<std::string, std::string> texts;
  RecordsDoc doc;
  std::string section;
  bool in_example = false;
  for (std::string line; std::getline(file, line);) {
    EventDoc& known = sections[section];
    if (line.starts_with("```")) {
      in_example = line == "```json";
      if (in_example) {
        known.examples.emplace_back();
      }
    } else if (in_example) {
      known.examples.back() += line;
    } else if (line.starts_with("## ")) {
      section = line.substr(3);
      std::erase(section, '`');
      if (line.starts_with("## `")) {
        doc[section];
      }
    } else if (line.starts_with("| `")) {
      for (const std::string& name : names_in_row(line)) {
        known.fields.insert(name);
        if (line.ends_with("| |")) {
          known.required.insert(name);
        }
        if (line.find("`null`") != line.npos) {
          known.or_null.insert(name);
        }
      }
    } else {
      texts[section] += line + " ";
    }
  }
  EventDoc evidence = sections["evidence"];
  evidence.fields.erase("id");
  evidence.required.erase("id");
  for (auto& [event, known] : doc) {
    known = sections[event];
    if (texts[event].find("With the fields of `evidence`") != std::string::npos) {
      known.add(evidence);
    }
    known.add(sections["Every record"]);
    if (texts[event].find("About a worker.") != std::string::npos) {
      known.add(sections["The worker"]);
    }
    for (const std::string& example : known.examples) {
      std::erase_if(known.required, [has = fields_of(example)](const std::string& name) {
        return name.find('.') == name.npos && !has.contains(name);  // only of some records
      });
    }
  }
  return doc;
}

std::string event_of(std::string_view record) {
  dom::parser parser;
  return std::string(std::string_view(parser.parse(record.data(), record.size())["event"]));
}

FieldNames fields_of(std::string_view record) {
  dom::parser parser;
  FieldNames names;
  add_fields({}, parser.parse(record.data(), record.size()), names);
  return names;
}

void check_fields(const std::string& event, const std::vector<std::string>& records) {
  const FieldNames documented = read_records_doc()[event].fields;
  FieldNames written;
  std::string wrong;
  for (const std::string& record : records) {
    wrong += event_of(record) == event ? "" : "a record of another event; ";
    written.merge(fields_of(record));
  }
  wrong += text_of("is not in docs/records.md", without(written, documented)) +
           text_of("is not written", without(documented, written));
  if (!wrong.empty()) {
    throw std::runtime_error(event + ": " + wrong);
  }
}

}  // namespace filetimer::testing
