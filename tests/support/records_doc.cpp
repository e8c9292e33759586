// SPDX-License-Identifier: MIT
#include "tests/support/records_doc.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace filetimer::testing {
namespace {

namespace dom = simdjson::dom;

// Returns the names in backquotes in the first cell of a table's row.
FieldNames names_in_row(const std::string& line) {
  FieldNames names;
  const std::string cell = line.substr(0, line.find('|', 1));
  for (std::size_t at = 0; (at = cell.find('`', at)) != std::string::npos;) {
    const std::size_t end = cell.find('`', at + 1);
    names.insert(cell.substr(at + 1, end - at - 1));
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
      known.fields.merge(names_in_row(line));
    } else {
      texts[section] += line + " ";
    }
  }
  FieldNames of_evidence = sections["evidence"].fields;
  of_evidence.erase("id");
  for (auto& [event, known] : doc) {
    known = sections[event];
    const auto add = [&fields = known.fields](const FieldNames& others) {
      fields.insert(others.begin(), others.end());
    };
    if (texts[event].find("With the fields of `evidence`") != std::string::npos) {
      add(of_evidence);
    }
    add(sections["Every record"].fields);
    if (texts[event].find("About a worker.") != std::string::npos) {
      add(sections["The worker"].fields);
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
