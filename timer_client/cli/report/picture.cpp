// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/json_writer.hpp"
#include "timer_client/cli/report/report_page.hpp"

namespace filetimer::cli {
namespace {

// The axis begins this many times the longest expired scope before the verdict.
constexpr double kPastShare = 1.5;
constexpr double kLeastPastS = 1;
constexpr double kMostPastS = 600;
constexpr double kMarginShare = 0.04;  // before the first event
constexpr double kAfterShare = 1.15;   // of the last event
constexpr double kLeastAxisS = 1e-3;
constexpr double kRoundingS = 2e-6;  // of two times in records

constexpr double kLeastZeroS = 3600;
constexpr unsigned kRowShift = 23;  // more than the bits of a pid

// The axis has what is known, and no empty time before it.
void set_axis(Picture& picture) {
  double longest_s = 0;
  double first_s = 0;
  for (const Worker& worker : picture.incident->workers) {
    for (const Scope& scope : worker.scopes) {
      first_s = std::min(first_s, scope.begin_s);
      if (scope.kind == Scope::Kind::kExpired) {
        longest_s = std::max(longest_s, -scope.begin_s);
      }
    }
    for (const Moment& moment : worker.moments) {
      first_s = std::min(first_s, moment.at_s);
      picture.end_s = std::max(picture.end_s, moment.at_s);
    }
  }
  picture.begin_s = std::max(-std::clamp(kPastShare * longest_s, kLeastPastS, kMostPastS),
                             std::min((1 + kMarginShare) * first_s, -kLeastAxisS));
  picture.end_s =
      picture.end_s > kLeastAxisS ? kAfterShare * picture.end_s : -kMarginShare * picture.begin_s;
}

// Returns the scopes on the axis.
std::vector<Bar> bars_of(const Worker& worker, const Picture& picture) {
  std::vector<Bar> bars;
  for (const Scope& scope : worker.scopes) {
    Bar bar{scope};
    bar.end_s = std::max(std::min(bar.end_s, picture.end_s), bar.begin_s);
    if (bar.end_s >= picture.begin_s && bar.begin_s <= picture.end_s) {
      bars.push_back(std::move(bar));
    }
  }
  std::ranges::stable_sort(bars, [](const Bar& a, const Bar& b) {
    return std::tuple(a.begin_s, -a.end_s) < std::tuple(b.begin_s, -b.end_s);
  });
  std::vector<double> ends;  // of each row's last bar
  for (Bar& bar : bars) {
    const auto row =
        std::ranges::find_if(ends, [&](double end) { return end <= bar.begin_s + kRoundingS; });
    bar.row = static_cast<std::size_t>(row - ends.begin());
    if (row == ends.end()) {
      ends.push_back(bar.end_s);
    } else {
      *row = bar.end_s;
    }
  }
  return bars;
}

// --- trace events ---

// A thread of the viewer.
struct Track {
  int host = 0;
  std::int64_t tid = 0;
};

JsonWriter& begin(JsonWriter& json, std::string_view name, const char* phase, const Track& track) {
  return json.begin_object()
      .field("name", name)
      .field("ph", phase)
      .field("pid", track.host)
      .field("tid", track.tid);
}

template <class Value>
void write_metadata(JsonWriter& json, std::string_view name, const Track& track,
                    std::string_view key, const Value& value) {
  begin(json, name, "M", track).begin_object("args").field(key, value).end_object().end_object();
}

void write_bar(JsonWriter& json, const Bar& bar, const Track& track, std::int64_t begin_ns,
               std::int64_t end_ns) {
  begin(json, bar.name, "X", track)
      .fixed("ts", static_cast<double>(begin_ns) / 1e3, 3)
      .fixed("dur", static_cast<double>(end_ns - begin_ns) / 1e3, 3);
  if (bar.kind != Bar::Kind::kEnded) {
    json.begin_object("args")
        .field("expired", bar.kind == Bar::Kind::kExpired)
        .field("paused", bar.is_paused)
        .field("end_is_recorded", bar.has_end);
    if (bar.timeout_s) {
      json.field("timeout_s", *bar.timeout_s);
    }
    json.end_object();
  }
  json.end_object();
}

}  // namespace

Picture picture_of(const Incident& incident) {
  Picture picture{.incident = &incident, .lanes = {}};
  set_axis(picture);
  for (const Worker& worker : incident.workers) {
    Lane& lane = picture.lanes.emplace_back(Lane{&worker, bars_of(worker, picture), {}});
    for (const Moment& moment : worker.moments) {
      if (moment.at_s >= picture.begin_s) {
        lane.moments.push_back(&moment);
      }
    }
  }
  return picture;
}

std::string_view name_of(Moment::Kind kind) {
  constexpr std::array<std::string_view, 9> kNames{"warning",       "deferred", "verdict",
                                                   "evidence",      "signal",   "death",
                                                   "released late", "hook",     "other"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string trace_events(const Picture& picture) {
  double zero_s = kLeastZeroS;
  for (const Lane& lane : picture.lanes) {
    for (const Bar& bar : lane.bars) {
      zero_s = std::max(zero_s, std::ceil(-bar.begin_s));
    }
  }
  const auto ns_of = [&](double at_s) { return std::llround((zero_s + at_s) * 1e9); };
  JsonWriter json;
  json.begin_array("traceEvents");
  std::map<std::string_view, int> hosts;
  std::multimap<std::int64_t, std::function<void()>> events;  // by time
  int order = 0;
  for (const Lane& lane : picture.lanes) {
    const WorkerName& worker = lane.worker->name;
    const int host =
        hosts.try_emplace(worker.host, static_cast<int>(hosts.size()) + 1).first->second;
    const auto track_of = [&](std::size_t row) {
      return Track{host, worker.pid.value_or(0) ^ static_cast<std::int64_t>(row << kRowShift)};
    };
    std::vector<std::int64_t> ends(1);  // of each row: bars of a row may overlap by a rounding
    for (const Bar& bar : lane.bars) {
      ends.resize(std::max(ends.size(), bar.row + 1));
      const std::int64_t begin_ns = std::max<std::int64_t>(ns_of(bar.begin_s), ends[bar.row]);
      const std::int64_t end_ns = std::max<std::int64_t>(begin_ns, ns_of(bar.end_s));
      ends[bar.row] = end_ns;
      events.emplace(begin_ns, [=, &json, &bar, track = track_of(bar.row)] {
        write_bar(json, bar, track, begin_ns, end_ns);
      });
    }
    write_metadata(json, "process_name", track_of(0), "name", worker.host);
    write_metadata(json, "process_sort_index", track_of(0), "sort_index", host);
    for (std::size_t row = 0; row < ends.size(); ++row) {
      const std::string name = worker_text({{}, worker.pid, worker.rank, worker.comm});
      write_metadata(json, "thread_name", track_of(row), "name",
                     row == 0 ? name : fmt::format("{}, row {}", name, row + 1));
      write_metadata(json, "thread_sort_index", track_of(row), "sort_index", order++);
    }
    for (const Moment* const moment : lane.moments) {
      const std::int64_t at_ns = ns_of(moment->at_s);
      events.emplace(at_ns, [=, &json, track = track_of(0)] {
        begin(json, moment->text, "i", track)
            .field("s", "t")
            .field("cat", name_of(moment->kind))
            .fixed("ts", static_cast<double>(at_ns) / 1e3, 3)
            .end_object();
      });
    }
  }
  for (const auto& [at_ns, write] : events) {
    write();
  }
  json.end_array().field("displayTimeUnit", "ms");
  return std::move(json).finish() + "\n";
}

}  // namespace filetimer::cli
