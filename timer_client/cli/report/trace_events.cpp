// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json_writer.hpp"
#include "timer_client/cli/report/hang_page.hpp"

namespace filetimer::cli {
namespace {

constexpr double kLeastZeroS = 3600;
constexpr std::int64_t kRoundingNs = 2000;  // of two times in records
// More than the largest pid.
constexpr unsigned kTrackShift = 23;

struct TraceEvent {
  std::int64_t at_ns = 0;
  std::int64_t took_ns = 0;
  std::int64_t tid = 0;
  int host = 0;
  const ScopeBar* bar = nullptr;
  const Mark* mark = nullptr;  // else
};

// Puts the bars of a lane on tracks. Those of a track are beside or inside each other.
class Tracks {
 public:
  struct Place {
    std::size_t track = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  // Takes bars in the order of their begins, of equal ones the longest first. Times that differ by
  // no more than records round are made equal.
  Place add(std::int64_t begin_ns, std::int64_t end_ns) {
    Place place{0, begin_ns, end_ns};
    while (place.track < tracks_.size() && !fits(tracks_[place.track], place)) {
      place = {place.track + 1, begin_ns, end_ns};
    }
    tracks_.resize(std::max(tracks_.size(), place.track + 1));
    Track& track = tracks_[place.track];
    track.open_ends.push_back(place.end_ns);
    return place;
  }

 private:
  struct Track {
    std::vector<std::int64_t> open_ends;  // of the bars around the next one, the outermost first
    std::int64_t least_begin = 0;         // of the next one
  };

  static bool fits(Track& track, Place& place) {
    std::vector<std::int64_t>& ends = track.open_ends;
    while (!ends.empty() && ends.back() <= place.begin_ns + kRoundingNs) {
      track.least_begin = std::max(track.least_begin, ends.back());
      ends.pop_back();
    }
    if (!ends.empty() && place.end_ns > ends.back() + kRoundingNs) {
      return false;
    }
    place.begin_ns = std::max(place.begin_ns, track.least_begin);
    track.least_begin = place.begin_ns;
    place.end_ns = ends.empty() ? place.end_ns : std::min(place.end_ns, ends.back());
    place.end_ns = std::max(place.end_ns, place.begin_ns);
    return true;
  }

  std::vector<Track> tracks_;
};

class Trace {
 public:
  explicit Trace(const Hang& hang) : zero_s_(kLeastZeroS) {
    for (const Lane& lane : hang.lanes) {
      for (const ScopeBar& bar : lane.bars) {
        zero_s_ = std::max(zero_s_, std::ceil(-bar.begin_s));
      }
    }
    json_.begin_array("traceEvents");
    for (const Lane& lane : hang.lanes) {
      add_lane(lane);
    }
    std::ranges::stable_sort(events_, {}, &TraceEvent::at_ns);
    for (const TraceEvent& event : events_) {
      write(event);
    }
    json_.end_array().field("displayTimeUnit", "ms");
  }

  std::string text() && { return std::move(json_).finish() + "\n"; }

 private:
  [[nodiscard]] std::int64_t ns_of(double at_s) const {
    return std::llround((zero_s_ + at_s) * 1e9);
  }

  JsonWriter& begin(std::string_view name, const char* phase, int host, std::int64_t tid) {
    return json_.begin_object()
        .field("name", name)
        .field("ph", phase)
        .field("pid", host)
        .field("tid", tid);
  }

  template <class Value>
  void add_metadata(std::string_view name, int host, std::int64_t tid, std::string_view key,
                    const Value& value) {
    begin(name, "M", host, tid).begin_object("args").field(key, value).end_object().end_object();
  }

  void add_lane(const Lane& lane) {
    const auto [found, is_new] =
        hosts_.try_emplace(lane.worker.host, static_cast<int>(hosts_.size()) + 1);
    const int host = found->second;
    const std::int64_t pid = lane.worker.pid.value_or(0);
    const std::string name = worker_text({{}, lane.worker.pid, lane.worker.rank, lane.worker.comm});
    if (is_new) {
      add_metadata("process_name", host, pid, "name", lane.worker.host);
      add_metadata("process_sort_index", host, pid, "sort_index", host);
    }
    Tracks tracks;
    std::size_t named = 0;
    const auto tid_of = [&](std::size_t track) {
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(pid) ^
                                       (std::uint64_t{track} << kTrackShift));
    };
    const auto name_track = [&] {
      add_metadata("thread_name", host, tid_of(named), "name",
                   named == 0 ? name : fmt::format("{}, track {}", name, named + 1));
      add_metadata("thread_sort_index", host, tid_of(named), "sort_index", order_++);
      ++named;
    };
    name_track();
    for (const ScopeBar& bar : lane.bars) {
      const Tracks::Place place = tracks.add(ns_of(bar.begin_s), ns_of(bar.end_s));
      while (named <= place.track) {
        name_track();
      }
      events_.push_back({place.begin_ns, place.end_ns - place.begin_ns, tid_of(place.track), host,
                         &bar, nullptr});
    }
    for (const Mark& mark : lane.marks) {
      events_.push_back({ns_of(mark.at_s), 0, pid, host, nullptr, &mark});
    }
  }

  void write(const TraceEvent& event) {
    const double at_us = static_cast<double>(event.at_ns) / 1e3;
    if (event.mark != nullptr) {
      begin(event.mark->text, "i", event.host, event.tid)
          .field("s", "t")
          .field("cat", name_of(event.mark->kind))
          .fixed("ts", at_us, 3)
          .end_object();
      return;
    }
    const ScopeBar& bar = *event.bar;
    begin(bar.scope, "X", event.host, event.tid)
        .fixed("ts", at_us, 3)
        .fixed("dur", static_cast<double>(event.took_ns) / 1e3, 3);
    if (bar.kind != ScopeBar::Kind::kEnded) {
      json_.begin_object("args")
          .field("expired", bar.kind == ScopeBar::Kind::kExpired)
          .field("paused", bar.is_paused)
          .field("end_is_recorded", bar.has_end);
      if (bar.timeout_s) {
        json_.field("timeout_s", *bar.timeout_s);
      }
      json_.end_object();
    }
    json_.end_object();
  }

  double zero_s_;
  JsonWriter json_;
  std::map<std::string_view, int> hosts_;
  std::vector<TraceEvent> events_;
  int order_ = 0;
};

}  // namespace

std::string trace_events(const Hang& hang) {
  return Trace(hang).text();
}

}  // namespace filetimer::cli
