// SPDX-License-Identifier: MIT
#include "tests/support/histories.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

namespace filetimer::testing {
namespace {

constexpr unsigned kLimit = 20;         // seconds; a list that takes longer hangs
constexpr int kMostRuns = 1'500;        // to shorten a list
constexpr int kReportDescriptor = 900;  // above those that a machine closes

}  // namespace

std::string text_of(const Operations& operations) {
  std::string text;
  for (const Operation& operation : operations) {
    text += text.empty() ? operation.name : "; " + operation.name;
    text += operation.at_call > 0 ? fmt::format("@{}", operation.at_call) : "";
    for (const int argument : operation.arguments) {
      text += fmt::format(" {}", argument);
    }
  }
  return text;
}

Operations parse(std::string_view text) {
  Operations operations;
  std::istringstream all{std::string(text)};
  for (std::string each; std::getline(all, each, ';');) {
    std::istringstream words(each);
    Operation operation;
    words >> operation.name;
    if (const std::size_t at = operation.name.find('@'); at != std::string::npos) {
      operation.at_call = std::stoi(operation.name.substr(at + 1));
      operation.name.resize(at);
    }
    for (int argument = 0; words >> argument;) {
      operation.arguments.push_back(argument);
    }
    operations.push_back(std::move(operation));
  }
  return operations;
}

int between(Random& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
}

Operation random_operation(Random& random, const std::vector<Kind>& kinds,
                           const std::vector<int>& weights) {
  int at = between(random, 0, std::accumulate(weights.begin(), weights.end(), 0) - 1);
  std::size_t kind = 0;
  for (; at >= weights[kind]; ++kind) {
    at -= weights[kind];
  }
  Operation operation{kinds[kind].name, 0, {}};
  for (const auto& [from, to] : kinds[kind].ranges) {
    operation.arguments.push_back(between(random, from, to));
  }
  return operation;
}

std::vector<std::string> run_in_child(const std::function<std::string()>& body, bool by_clone) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {"no pipe for a child"};
  }
  const auto child =
      by_clone ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : ::fork();
  if (child == 0) {
    ::alarm(kLimit);
    const int report = ::fcntl(ends[1], F_DUPFD_CLOEXEC, kReportDescriptor);
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = fmt::format("{}\n", error.what());
    } catch (...) {
      text = "an exception\n";  // of a REQUIRE
    }
    text += "done\n";
    const auto put = ::write(report, text.data(), text.size());
    ::_exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    lines.push_back(line);
  }
  if (!lines.empty() && lines.back() == "done") {
    lines.pop_back();
  } else {
    lines.push_back(fmt::format("the process ended: {}", WIFSIGNALED(status)
                                                             ? ::strsignal(WTERMSIG(status))
                                                             : "without a report"));
  }
  return lines;
}

Operations shorten(Operations operations, const std::function<bool(const Operations&)>& fails) {
  int runs = 0;
  for (std::size_t part = operations.size() / 2; part > 0;) {
    bool has_dropped = false;
    for (std::size_t at = 0; at < operations.size() && runs < kMostRuns; ++runs) {
      Operations fewer = operations;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at),
                  fewer.begin() + static_cast<std::ptrdiff_t>(std::min(at + part, fewer.size())));
      if (fails(fewer)) {
        operations = std::move(fewer);
        has_dropped = true;
      } else {
        at += part;
      }
    }
    part = has_dropped && part == 1 && runs < kMostRuns ? 1 : part / 2;
  }
  return operations;
}

std::vector<Found> read_found(const char* path) {
  std::vector<Found> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t bar = line.find('|');
    if (!line.starts_with('#') && bar != line.npos) {
      const std::size_t name = line.find(' ');
      all.push_back({line.substr(0, name), line.substr(name, bar - name),
                     parse(std::string_view(line).substr(bar + 1))});
    }
  }
  return all;
}

}  // namespace filetimer::testing
