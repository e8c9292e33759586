// The scope page, version 1: the file in `scopes/` into which a worker writes its open scopes and
// from which the server reads them, both through a shared mapping. It has fixed offsets and no
// pointer, lock or allocator, so that neither side waits for the other, whenever a process dies.
// docs/protocol.md has the same as tables of bytes. For 64-bit little-endian machines only.
//
// The owner of the page writes every word. The server changes Slot::deadline only, by
// compare-and-swap; wake_protocol.hpp explains the order.
//
//   0        PageHeader                           always allocated
//   1,024    Slot[1,024]                          allocated in steps of a memory page
//   69,632   SlotName[1,024]                      likewise, as slots come into use
//   331,776  SlotStatistics[1,024]                likewise, as names come into use
//   2,166,784  end
//
// The rest is a hole in the file. Only what is allocated (posix_fallocate) may be touched.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <string_view>

#include "common/clock.hpp"
#include "common/limits.hpp"

namespace filetimer {

inline constexpr std::uint64_t kPageMagic = 0x4547'4150'5245'4D54;  // "TMERPAGE" as bytes
inline constexpr std::uint32_t kPageVersion = 1;
inline constexpr std::size_t kMemoryPage = 4096;  // the file is allocated in steps of this

inline constexpr std::size_t kMaxStatistics = 1024;  // names with statistics, of all threads
// Of each name in each thread, the scopes that ended last.
inline constexpr std::size_t kEndedScopes = 16;

// Of the fields of a page; wake_protocol.hpp has the words that need more.
inline constexpr auto kRelaxed = std::memory_order_relaxed;

// The values of Slot::deadline. A deadline is nanoseconds on CLOCK_MONOTONIC.
//
//   kFree --acquire--> D --renew--> D' --release--> kFree          the worker alone
//                      |
//                      +--verdict--> -D --end of the kill--> kJudged --release--> kFree
//                                     |                                  (the worker learns it
//                                     lost)
//                                     +--release--> kReleasedLate --server is done--> kFree
//
// A pause is a renewal to kPaused + now, and a resume is one to now + the time that was left. A
// slot with an idle timeout has kIdleWatch, or -D from its verdict to the end of its kill.
namespace slot_word {
inline constexpr std::int64_t kFree = 0;
// This and more: open without a deadline. The owner adds the time of the acquire, so that no two
// such scopes in one slot have the same word.
inline constexpr std::int64_t kNoDeadline = std::int64_t{1} << 62;
// This and more: open and paused. The difference is the time of the pause.
inline constexpr std::int64_t kPaused = kNoDeadline + (std::int64_t{1} << 61);
// The kill is over; the worker is still in the scope.
inline constexpr std::int64_t kJudged = std::numeric_limits<std::int64_t>::min();
// Released after the verdict, and not yet acknowledged by the server.
inline constexpr std::int64_t kReleasedLate = std::numeric_limits<std::int64_t>::min() + 1;
// An idle timeout: the worker expires when it was in no scope for Slot::timeout since its last one.
inline constexpr std::int64_t kIdleWatch = std::numeric_limits<std::int64_t>::min() + 2;

constexpr bool is_open(std::int64_t word) {
  return word > 0;
}
constexpr bool is_paused(std::int64_t word) {
  return word >= kPaused;
}
constexpr std::int64_t expired(std::int64_t deadline) {
  return -deadline;
}
// Returns whether a verdict was given and its kill is not over.
constexpr bool is_expired(std::int64_t word) {
  return word < 0 && word > kIdleWatch;
}
constexpr bool is_in_use(std::int64_t word) {
  return is_open(word) || is_expired(word);
}
}  // namespace slot_word

// Bits of Slot::flags.
namespace slot_flag {
inline constexpr std::uint16_t kWholeProcess = 1;  // the end of the worker releases the scope
inline constexpr std::uint16_t kThreadEnded = 2;   // the thread that opened it has ended
inline constexpr std::uint16_t kIdle = 4;          // not a scope but an idle timeout
inline constexpr std::uint16_t kResumed = 8;       // after a pause; see Slot::left
// The reason for a pause. Read by the owner only.
inline constexpr std::uint16_t kPausedByCaller = 16;
inline constexpr std::uint16_t kSuspended = 32;  // with all other scopes of its thread
// The signal is sent when the timeout has passed, and the scope expires after the grace period.
inline constexpr std::uint16_t kSignalFirst = 64;
}  // namespace slot_flag

// Of Slot::grace_ms.
inline constexpr std::uint32_t kServersGrace = 0xFFFF'FFFF;  // by the server's --grace
inline constexpr std::uint32_t kNoSigkill = 0xFFFF'FFFE;     // one signal, no SIGKILL
inline constexpr std::uint32_t kLongestGraceMs = 0xFFFF'FFFD;

// Of Slot::code_timeout_ms; also for a time of 49 days and more.
inline constexpr std::uint32_t kNoCodeTimeout = 0xFFFF'FFFF;

// One open scope, on a cache line of its own, so that threads do not write to the same line. Fields
// are written while `deadline` is free, except `deadline` itself and the fields that a renewal
// (`started`, `timeout`, `code_timeout_ms`), a pause and a resume (`started`, `left`, `flags`) and
// a release (`left`) write before it.
struct alignas(64) Slot {
  std::atomic<std::int64_t> deadline;   // see slot_word
  std::atomic<std::int64_t> acquired;   // ns, CLOCK_MONOTONIC
  std::atomic<std::int64_t> started;    // as acquired, or the last renewal
  std::atomic<std::int64_t> timeout;    // ns, as requested; max: none
  std::atomic<std::uint32_t> grace_ms;  // from the signal to SIGKILL
  std::atomic<std::uint32_t> soft_ms;   // from `started` to a warning; 0: the server's --warn-at
  // ns. Of a paused scope, and one with the flag kResumed: the time that was left at the pause;
  // max: no deadline. Of a free slot, and one with an idle timeout: when its last scope was
  // released, on CLOCK_MONOTONIC, if there was an idle timeout or the release was late.
  std::atomic<std::int64_t> left;
  std::atomic<std::int32_t> tid;      // in the worker's pid namespace
  std::atomic<std::uint16_t> signal;  // 0: none
  std::atomic<std::uint16_t> flags;   // see slot_flag
  // In a page made by the server, where the name is the whole scope_id: how many bytes of it are
  // the scope's name; 0: all.
  std::atomic<std::uint32_t> shown_bytes;
  // The timeout in the code, in whole milliseconds, rounded up, if a file of the worker's replaced
  // it; 0: it did not; kNoCodeTimeout: there was none.
  std::atomic<std::uint32_t> code_timeout_ms;
};

// The name of the slot with the same number. The first byte is the length. The name is in words, so
// that it can be read while it is written; a reading counts if the slot's deadline is the same
// before and after it.
inline constexpr std::size_t kNameWords = 32;
struct alignas(64) SlotName {
  std::atomic<std::uint64_t> words[kNameWords];
};
static_assert(kMaxScopeNameBytes < kNameWords * 8);

// A scope that was left.
struct EndedScope {
  std::atomic<std::int64_t> ended;    // on CLOCK_MONOTONIC
  std::atomic<std::int64_t> took_ns;  // since it was opened or renewed, without pauses
};

// The buckets of a histogram of durations: 8 of 64 ns, then 8 of equal width for each power of two.
// A bucket from 512 ns on is at most an eighth as wide as it begins, so a duration that is taken
// for the middle of its bucket is off by at most 6.25 %.
inline constexpr std::size_t kHistogramBuckets = 304;  // the last one has all from 66,000 s on

// Returns the number of the bucket of a duration in nanoseconds; a negative one counts as 0.
constexpr std::size_t bucket_of(std::int64_t duration_ns) {
  constexpr int kFirstPower = 9;  // 512 ns: below it the buckets are 64 ns wide
  const auto ns = static_cast<std::uint64_t>(duration_ns > 0 ? duration_ns : 0);
  const int power = static_cast<int>(std::bit_width(ns >> kFirstPower));  // 0: below 512 ns
  // Of the larger ones the three bits below the highest one tell the eighth.
  const std::size_t bucket =
      power == 0 ? ns >> (kFirstPower - 3)
                 : static_cast<std::size_t>(power) * 8 + ((ns >> (kFirstPower + power - 4)) & 7);
  return bucket < kHistogramBuckets ? bucket : kHistogramBuckets - 1;
}

// Returns the least duration of a bucket, in nanoseconds. Returns the largest number for
// kHistogramBuckets: the last bucket has no end.
constexpr std::int64_t bucket_begin(std::size_t bucket) {
  if (bucket >= kHistogramBuckets) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const auto eighth = static_cast<std::int64_t>(bucket % 8);
  const std::size_t power = bucket / 8;
  return power == 0 ? eighth * 64 : (8 + eighth) << (power + 5);
}

// The durations of scopes of one name in one thread, written by that thread only.
struct alignas(64) SlotStatistics {
  SlotName name;
  std::atomic<std::uint64_t> count;
  std::atomic<std::int64_t> total_ns;
  std::atomic<std::int64_t> last_ns;
  std::atomic<std::int64_t> longest_ns;
  // The least time that was left at a release; max: no scope had a deadline.
  std::atomic<std::int64_t> smallest_margin_ns;
  std::atomic<std::int64_t> first_ns;  // the duration of the first, which often warms something up
  std::atomic<std::int64_t> timeout_ns;  // of the latest, as requested; max: none
  std::atomic<std::uint64_t> reserved;
  // The scope that was counted as the n-th, from 0, is at n % kEndedScopes. It is written before
  // `count` says so; see read_ended_scopes().
  EndedScope ended[kEndedScopes];
  // [i]: number of scopes in this bucket.
  std::atomic<std::uint32_t> histogram[kHistogramBuckets];
};

// Bits of PageHeader::flags.
namespace page_flag {
inline constexpr std::uint32_t kStatistics = 1;
inline constexpr std::uint32_t kMadeByServer = 2;  // for a worker that sends lines only
}  // namespace page_flag

struct alignas(64) PageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  BootId boot;
  // The worker's claims, which the server believes only if the kernel confirms them.
  std::int32_t pid;  // in the worker's pid namespace
  std::uint32_t uid;
  std::uint64_t start_time;  // clock ticks since boot, field 22 of /proc/PID/stat; 0: not known
  std::int64_t created_ns;   // CLOCK_MONOTONIC
  // These two only grow. Slots at and above `slots` were never used.
  alignas(64) std::atomic<std::uint32_t> slots;
  std::atomic<std::uint32_t> statistics;
  std::atomic<std::uint32_t> flags;  // see page_flag
  // The signal on which the worker writes its Python stacks to .stacks/NAME; 0: none.
  std::atomic<std::uint32_t> dump_signal;
  std::atomic<std::uint64_t> wakes;  // wake-up messages that this worker has written
  std::atomic<std::uint64_t> reserved[5];
  // The worker's place in its job, NUL at the end; empty: not known.
  alignas(64) char rank[32];
  char local_rank[32];
  char job_id[64];
  char comm[16];
  char unused[752];
};

inline constexpr std::size_t kSlotsAt = sizeof(PageHeader);
inline constexpr std::size_t kNamesAt = 69'632;
inline constexpr std::size_t kStatisticsAt = kNamesAt + kMaxScopesPerWorker * sizeof(SlotName);
inline constexpr std::size_t kPageBytes = kStatisticsAt + kMaxStatistics * sizeof(SlotStatistics);

static_assert(sizeof(void*) == 8 && sizeof(time_t) == 8 &&
                  std::endian::native == std::endian::little,
              "filetimer needs a 64-bit little-endian system: its pages have that layout");
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
static_assert(sizeof(PageHeader) == 1024);
static_assert(sizeof(Slot) == 64);
static_assert(sizeof(SlotName) == 256);
static_assert(sizeof(SlotStatistics) == 1792);
static_assert(kSlotsAt + kMaxScopesPerWorker * sizeof(Slot) <= kNamesAt);
static_assert(kStatisticsAt == 331'776 && kPageBytes == 2'166'784);
static_assert(kNamesAt % kMemoryPage == 0 && kStatisticsAt % kMemoryPage == 0);
static_assert(offsetof(PageHeader, slots) == 64 && offsetof(PageHeader, rank) == 128);

// Gives access to the parts of a mapped page.
class PageLayout {
 public:
  explicit PageLayout(void* base) : base_(static_cast<std::byte*>(base)) {}

  [[nodiscard]] PageHeader& header() const { return at<PageHeader>(0, 0); }
  [[nodiscard]] Slot& slot(std::size_t index) const { return at<Slot>(kSlotsAt, index); }
  [[nodiscard]] SlotName& name(std::size_t index) const { return at<SlotName>(kNamesAt, index); }
  [[nodiscard]] SlotStatistics& statistics(std::size_t index) const {
    return at<SlotStatistics>(kStatisticsAt, index);
  }
  [[nodiscard]] std::byte* base() const { return base_; }

 private:
  template <class Part>
  [[nodiscard]] Part& at(std::size_t offset, std::size_t index) const {
    return reinterpret_cast<Part*>(base_ + offset)[index];
  }
  std::byte* base_;
};

// --- for the owner of a page ---

// Writes the fields of the header that all pages have: magic, version, boot, user and time.
inline void begin_page(PageHeader& header, std::uint32_t flags) {
  header.magic = kPageMagic;
  header.version = kPageVersion;
  header.header_bytes = sizeof(PageHeader);
  header.boot = this_boot();
  header.uid = ::geteuid();
  header.created_ns = Instant::now().ns;
  header.flags.store(flags, kRelaxed);
}

// Writes a text with NUL at the end, cut to fit.
template <std::size_t Size>
void put_text(char (&field)[Size], std::string_view text) {
  std::memset(field, 0, Size);
  text.copy(field, Size - 1);
}

// Returns how many bytes of a SlotName a name of that length takes.
constexpr std::size_t name_bytes(std::size_t length) {
  return (std::min(length, kMaxScopeNameBytes) / 8 + 1) * 8;
}

// Writes at most kMaxScopeNameBytes of a name.
inline void write_name(SlotName& name, std::string_view text) {
  char bytes[kNameWords * 8] = {};
  const std::size_t length = std::min(text.size(), kMaxScopeNameBytes);
  bytes[0] = static_cast<char>(length);
  std::memcpy(bytes + 1, text.data(), length);
  const std::size_t words = name_bytes(length) / 8;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * 8, 8);
    name.words[i].store(word, kRelaxed);
  }
}

}  // namespace filetimer
