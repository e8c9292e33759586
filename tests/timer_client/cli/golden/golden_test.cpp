// What the commands print of the logs and answers in the .logs files beside this file. NAME/*.jsonl
// are the logs of made-up hosts, with every event and field and many of them absent. A change of a
// text is a change of a transcript, which FILETIMER_UPDATE_GOLDEN=1 writes.
// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/scope_page.hpp"
#include "tests/timer_client/answering_server.hpp"
#include "tests/timer_client/cli/cli_fixture.hpp"
#include "tests/timer_client/cli/log/host_log.hpp"

namespace filetimer::cli {
namespace {

std::string without_places(std::string text, const std::string& logs, const std::string& folder) {
  for (const auto& [place, word] : {std::pair{logs, "LOGS"}, {folder, "OUT"}}) {
    for (std::size_t at = 0; (at = text.find(place, at)) != text.npos;) {
      text.replace(at, place.size(), word);
    }
  }
  return text;
}

// Returns the lines of a page that have words, each with "|" between its elements.
std::string words_of_page(const std::string& html) {
  std::string words;
  for (const std::string& line : lines_of(html)) {
    std::string text;
    bool is_tag = false;
    for (const char byte : line) {
      is_tag = (is_tag || byte == '<') && byte != '>';
      if (byte == '<' && !text.empty() && text.back() != '|') {
        text += '|';
      } else if (!is_tag && byte != '>') {
        text += byte;
      }
    }
    words += text.empty() ? "" : text + "\n";
  }
  return words;
}

// Compares with the file, which FILETIMER_UPDATE_GOLDEN=1 replaces.
void check_is(const std::string& path, const std::string& transcript) {
  if (const char* const update = std::getenv("FILETIMER_UPDATE_GOLDEN"); update != nullptr) {
    testing::write_file(path, transcript);
  }
  const std::vector<std::string> is = lines_of(transcript);
  const std::vector<std::string> expected = lines_of(testing::read_file(path));
  for (std::size_t i = 0; i < std::min(is.size(), expected.size()); ++i) {
    CAPTURE(path);
    CAPTURE(i + 1);
    REQUIRE(is[i] == expected[i]);
  }
  CHECK(is.size() == expected.size());
}

// The logs and commands of a .logs file. A line begins with what it is:
//   = TITLE                         a case begins, without logs
//   < NAME [markup|terminal]        the logs are those in that folder; below a command is all its
//                                   output as it is, of a report the words or the markup
//   > HOST [AHEAD_S [BOOT]]         the log of a host, to which the next lines add records
//   i AT_S INCIDENT WORKER... [no-jobs] [unlisted=N] [omitted=N]
//   e ID INCIDENT|- WORKER          at its deadline
//   w PID.RANK.JOB AT_S SCOPE TIMEOUT_S FIRST_S COUNTxS...   the durations of an ended worker
//   + EVENT AT_S FIELDS             fields as in JSON; "@AT_S" as a value is the time by that clock
//   | TEXT                          a line of any bytes
//   ! ANSWER                        a line of what a server answers to the next command
//   $ WORD... [:: TEXT]             a command, of whose output, without breaks within sentences,
//                                   the next lines are a part: from the line that begins with the
//                                   text on to an empty one
//   $ report WORD... [:: TEXT]      of the page the lines with that text
// AT_S is in seconds after three o'clock, WORKER is PID.RANK.JOB.SCOPE@AT_S[+TIMEOUT_S][~STEP_S];
// "-" is nothing, "_" in a scope a space.
class GoldenLogs {
 public:
  explicit GoldenLogs(const std::string& file) {
    for (const std::string& line : lines_of(file)) {
      if (line.starts_with("    ") || line.empty()) {
        continue;  // what was printed
      }
      CAPTURE(line);
      if (line[0] == '=') {
        logs_.clear();
        kept_.clear();
        transcript_ += (transcript_.empty() ? "" : "\n") + line + "\n";
      } else {
        transcript_ += line + "\n";
        take(line);
      }
    }
  }
  [[nodiscard]] const std::string& transcript() const { return transcript_; }

 private:
  static MadeWorker worker_of(const std::string& text) {
    const auto before = [](std::string& rest, char end) {
      const std::size_t at = std::min(rest.find(end), rest.size());
      const std::string part = rest.substr(0, at);
      rest.erase(0, at + 1);
      return part == "-" ? std::string() : part;
    };
    std::string rest = text;
    MadeWorker worker;
    worker.pid = std::stoi(before(rest, '.'));
    if (const std::string rank = before(rest, '.'); !rank.empty()) {
      worker.rank = std::stoi(rank);
    }
    worker.job = before(rest, '.');
    worker.scope = before(rest, '@');
    std::ranges::replace(worker.scope, '_', ' ');
    std::string step = rest;
    rest = before(step, '~');
    worker.step_s = step.empty() ? -1 : std::stod(step);
    worker.entered_s = rest.empty() ? 0 : std::stod(before(rest, '+'));
    worker.timeout_s = rest.empty() ? 30 : std::stod(rest);
    return worker;
  }
  static std::string ended_worker(const std::vector<std::string>& words) {
    std::string histogram;
    int count = 0;
    double longest_s = 0;
    for (std::size_t i = 6; i < words.size(); ++i) {
      const double s = std::stod(words[i].substr(words[i].find('x') + 1));
      const int of_them = std::stoi(words[i]);
      histogram +=
          fmt::format("{}[{},{}]", histogram.empty() ? "" : ",",
                      bucket_begin(bucket_of(static_cast<std::int64_t>(s * 1e9))), of_them);
      count += of_them;
      longest_s = std::max(longest_s, s);
    }
    return fmt::format(R"({},"scopes":[{{"scope":"{}","count":{},"longest_s":{},)"
                       R"("first_s":{},"timeout_s":{},"histogram_ns":[{}]}}])",
                       fields_of(worker_of(words[1])), words[3], count, longest_s, words[5],
                       words[4], histogram);
  }

  [[nodiscard]] std::string with_clock(std::string fields) const {
    for (std::size_t at = 0; (at = fields.find(":@", at)) != fields.npos;) {
      const std::size_t end = fields.find_first_not_of("0123456789.", at + 2) - at - 1;
      const double s = std::stod(fields.substr(at + 2));
      fields.replace(at + 1, end, std::to_string(logs_.back().mono_ns(std::llround(s * 1e6))));
    }
    return fields;
  }

  void take(const std::string& line) {
    std::vector<std::string> words = split_words(line);
    switch (line[0]) {
      case '<':
        kept_ = std::move(words);
        break;
      case '>':
        logs_.emplace_back(words[1],
                           words.size() > 2 ? std::llround(std::stod(words[2]) * kSecondUs) : 0,
                           words.size() > 3 ? words[3] : "");
        break;
      case 'i': {
        std::vector<MadeWorker> workers;
        IncidentFields fields;
        for (std::size_t i = 3; i < words.size(); ++i) {
          const std::size_t value = words[i].find('=') + 1;
          if (words[i] == "no-jobs") {
            fields.tells_jobs = false;
          } else if (value > 0) {
            (words[i][0] == 'u' ? fields.unlisted : fields.omitted) =
                std::stoi(words[i].substr(value));
          } else {
            workers.push_back(worker_of(words[i]));
          }
        }
        add_incident(logs_.back(), std::stod(words[1]), words[2], workers, fields);
        break;
      }
      case 'e':
        add_expiry(logs_.back(), words[1], words[2] == "-" ? "" : words[2], worker_of(words[3]));
        break;
      case 'w':
        logs_.back().add("worker_ended", std::llround(std::stod(words[2]) * kSecondUs),
                         ended_worker(words));
        break;
      case '+': {
        const std::size_t fields = line.find(words[2]) + words[2].size() + 1;
        logs_.back().add(words[1], std::llround(std::stod(words[2]) * kSecondUs),
                         fields < line.size() ? "," + with_clock(line.substr(fields)) : "");
        break;
      }
      case '|':
        logs_.back().add_text(line.substr(2) + "\n");
        break;
      case '!':
        answer_ += (answer_.empty() ? "" : "\n") + line.substr(2);
        break;
      default:
        REQUIRE(line[0] == '$');
        run(line.substr(2));
    }
  }

  void run(std::string command) {
    const TempFolder folder;
    for (std::size_t i = 0; i < logs_.size(); ++i) {
      folder.write(fmt::format("{}.jsonl", i), logs_[i].text());
    }
    const std::size_t filter = std::min(command.find(" :: "), command.size());
    const std::string text = filter < command.size() ? command.substr(filter + 4) : "";
    command.erase(filter);
    const bool is_kept = !kept_.empty();
    const std::string logs = is_kept ? FILETIMER_GOLDEN_DATA "/" + kept_[1] : folder.path();
    std::vector<std::string> words = split_words(command);
    std::optional<testing::AnsweringServer> server;
    if (!answer_.empty()) {
      server.emplace(std::exchange(answer_, {}), folder.path());
      words.emplace_back("--dir");
    }
    words.push_back(logs);
    const bool is_report = words[0] == "report";
    if (is_report) {
      words.insert(words.end(), {"-o", folder.path("html")});
    }
    std::optional<OnTerminal> terminal;
    if (is_kept && kept_.back() == "terminal") {
      terminal.emplace();
    }
    const Ran ran = run_command(words);
    if (server) {
      REQUIRE(server->asked().size() == 1);
      CHECK(server->asked()[0].request == words[0]);
      CHECK(server->asked()[0].off == (words[1] == "--off"));
    }
    for (const std::string& said : {ran.output, ran.errors}) {  // the lines below do not show it
      CHECK((said.empty() || said.ends_with('\n') || ran.code == -1));
    }
    std::string output = is_report || is_kept || server ? ran.output : unwrapped(ran.output);
    if (is_report && ran.code == 0) {
      std::string html = testing::read_file(folder.path("html"));
      html.erase(0, html.find("</style>") + 9);
      output = (is_kept ? ran.output : "") +
               (is_kept && kept_.back() == "markup" ? html : words_of_page(html));
    }
    bool is_in = text.empty();
    for (const std::string& line : lines_of(output)) {
      is_in = is_report ? contains(line, text)
                        : text.empty() || line.starts_with(text) || (is_in && !line.empty());
      if (is_in) {
        transcript_ += "    " + without_places(line, logs, folder.path()) + "\n";
      }
    }
    for (const std::string& line : lines_of(ran.errors)) {
      transcript_ += "    error: " + without_places(line, logs, folder.path()) + "\n";
    }
    if (ran.code != 0) {
      transcript_ += fmt::format("    exit {}\n", ran.code);
    }
  }

  std::vector<HostLog> logs_;
  std::string answer_;
  std::vector<std::string> kept_;  // the words of a line that begins with "<"
  std::string transcript_;
};

TEST_CASE("what the commands print of the golden logs is written below them") {
  for (const char* const name :
       {"answers", "hosts", "incidents", "records", "reports", "suggestions"}) {
    const std::string path = fmt::format("{}/{}.logs", FILETIMER_GOLDEN_DATA, name);
    check_is(path, GoldenLogs(testing::read_file(path)).transcript());
  }
}

}  // namespace
}  // namespace filetimer::cli
