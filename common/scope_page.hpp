// The scope page, version 1: the small file in `scopes/` into which a worker writes its open scopes
// and from which the server reads them, both through a shared mapping. Fixed offsets, no pointer,
// no lock, no allocator: whoever dies at whatever moment leaves nothing that the other waits for.
// docs/protocol.md has the same as tables of bytes. 64-bit little-endian machines only.
//
// Every word has one writer, the owner of the page, except Slot::deadline, which both sides change
// by compare-and-swap; see wake_protocol.hpp for the order in which it is done, and for idleness.
//
//   0        PageHeader                           always allocated
//   1,024    Slot[1,024]                          allocated in steps of a memory page
//   69,632   SlotName[1,024]                      likewise, as slots come into use
//   331,776  SlotStatistics[1,024]                likewise, as names come into use
//   856,064  end
//
// What lies between is a hole in the file; only what is allocated (posix_fallocate) may be touched.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/boot.hpp"
#include "common/limits.hpp"

namespace filetimer {

inline constexpr std::uint64_t kPageMagic = 0x4547'4150'5245'4D54;  // "TMERPAGE" as bytes
inline constexpr std::uint32_t kPageVersion = 1;
inline constexpr std::size_t kMemoryPage = 4096;  // what the file is allocated in

inline constexpr std::size_t kMaxStatistics = 1024;  // names with statistics, of all threads
inline constexpr std::size_t kHistogramBuckets = 48;

// The values of Slot::deadline. A deadline is nanoseconds on CLOCK_MONOTONIC.
//
//   kFree --acquire--> D --renew--> D' --release--> kFree          the worker alone
//                      |
//                      +--verdict--> -D --end of the kill--> kJudged --release--> kFree
//                                     |                                  (the worker learns it
//                                     lost)
//                                     +--release--> kReleasedLate --server is done--> kFree
//
// A pause is a renewal to kPaused + now, and a resumption one to what was left by then. A slot that
// holds no scope but an idle timeout says kIdleWatch, or -D from its verdict to the end of its
// kill.
namespace slot_word {
inline constexpr std::int64_t kFree = 0;
// This and more: open without a deadline. The owner adds the time of the acquire, so that no two
// endless scopes in one slot look alike to who compares words.
inline constexpr std::int64_t kNoDeadline = std::int64_t{1} << 62;
// This and more: open and paused. What is above it is the time since when.
inline constexpr std::int64_t kPaused = kNoDeadline + (std::int64_t{1} << 61);
// The verdict was given and the server needs the slot no more; the worker is still in the scope.
inline constexpr std::int64_t kJudged = std::numeric_limits<std::int64_t>::min();
// Released after the verdict; the server has still to take note.
inline constexpr std::int64_t kReleasedLate = std::numeric_limits<std::int64_t>::min() + 1;
// No scope: the worker expires when it has been in none for Slot::timeout since its last one.
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
// A verdict was given on it and its kill is not over.
constexpr bool is_expired(std::int64_t word) {
  return word < 0 && word > kIdleWatch;
}
}  // namespace slot_word

// Bits of Slot::flags.
namespace slot_flag {
inline constexpr std::uint16_t kWholeProcess = 1;  // the worker's end ends the scope in time
inline constexpr std::uint16_t kThreadEnded = 2;   // the thread that opened it is no more
inline constexpr std::uint16_t kIdle = 4;          // no scope but an idle timeout
inline constexpr std::uint16_t kResumed = 8;       // after a pause; see Slot::left
// Of a paused scope: by whom. The owner's own business.
inline constexpr std::uint16_t kPausedByCaller = 16;
inline constexpr std::uint16_t kSuspended = 32;    // with all others of its thread
inline constexpr std::uint16_t kSpareIfLeft = 64;  // left within the grace, nobody is killed for it
}  // namespace slot_flag

// Of Slot::grace_ms.
inline constexpr std::uint32_t kServersGrace = 0xFFFF'FFFF;  // whatever the server's --grace says
inline constexpr std::uint32_t kNoSigkill = 0xFFFF'FFFE;     // one signal and no more
inline constexpr std::uint32_t kLongestGraceMs = 0xFFFF'FFFD;

// One open scope: one cache line, so that what a thread writes is in no other thread's way. Written
// while `deadline` says free, except `deadline` itself and what a renewal (`started`, `timeout`), a
// pause and a resumption (`started`, `left`, `flags`) and a release (`left`) write before it.
struct alignas(64) Slot {
  std::atomic<std::int64_t> deadline;   // see slot_word
  std::atomic<std::int64_t> acquired;   // ns, CLOCK_MONOTONIC
  std::atomic<std::int64_t> started;    // as acquired, or the last renewal
  std::atomic<std::int64_t> timeout;    // ns, as asked for; max: none
  std::atomic<std::uint32_t> grace_ms;  // from the signal to SIGKILL
  std::atomic<std::uint32_t> soft_ms;   // from `started` to a warning; 0: the server's --warn-at
  // ns. Of a paused scope, and one with the flag kResumed: what was left of its time when it was
  // paused; max: it has no deadline. Of a free slot: when its last scope was released, on
  // CLOCK_MONOTONIC, if there was an idle timeout then.
  std::atomic<std::int64_t> left;
  std::atomic<std::int32_t> tid;      // in the worker's pid namespace
  std::atomic<std::uint16_t> signal;  // 0: kill nobody
  std::atomic<std::uint16_t> flags;   // see slot_flag
  // In a page made by the server, where the name is the whole scope_id: how many bytes of it people
  // gave as the name; 0: all.
  std::atomic<std::uint32_t> shown_bytes;
  std::atomic<std::uint32_t> reserved;
};

// What the slot with the same number is called. The first byte is the length. In words, so that it
// can be read while it is written; what was read counts if the slot's deadline is the same before
// and after.
inline constexpr std::size_t kNameWords = 32;
struct alignas(64) SlotName {
  std::atomic<std::uint64_t> words[kNameWords];
};
static_assert(kMaxScopeNameBytes < kNameWords * 8);

// How long scopes of one name took in one thread; written by that thread only.
struct alignas(64) SlotStatistics {
  SlotName name;
  std::atomic<std::uint64_t> count;
  std::atomic<std::int64_t> total_ns;
  std::atomic<std::int64_t> last_ns;
  std::atomic<std::int64_t> longest_ns;
  std::atomic<std::int64_t> smallest_margin_ns;  // left to the deadline at a release; max: no scope
                                                 // had one
  std::atomic<std::uint64_t> reserved[3];
  // [i]: scopes of 2^i to 2^(i+1) ns; the last one: all that were longer.
  std::atomic<std::uint32_t> histogram[kHistogramBuckets];
};

// Bits of PageHeader::flags.
namespace page_flag {
inline constexpr std::uint32_t kStatistics = 1;
inline constexpr std::uint32_t kMadeByServer = 2;  // for a worker that speaks on the pipe only
}  // namespace page_flag

struct alignas(64) PageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  BootId boot;
  // What the worker says of itself; it counts only as far as the kernel says the same.
  std::int32_t pid;  // in the worker's pid namespace
  std::uint32_t uid;
  std::uint64_t start_time;  // clock ticks since boot, field 22 of /proc/PID/stat; 0: not known
  std::int64_t created_ns;   // CLOCK_MONOTONIC
  // Only grow. Slots at and above `slots` were never used.
  alignas(64) std::atomic<std::uint32_t> slots;
  std::atomic<std::uint32_t> statistics;
  std::atomic<std::uint32_t> flags;  // see page_flag
  // Makes the worker write its Python stacks into .stacks/NAME; 0: none does.
  std::atomic<std::uint32_t> dump_signal;
  std::atomic<std::uint64_t> wakes;  // wake lines that this worker has written
  std::atomic<std::uint64_t> reserved[5];
  // Who it is in its job, NUL at the end; empty: not known.
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

static_assert(std::atomic<std::int64_t>::is_always_lock_free);
static_assert(sizeof(PageHeader) == 1024);
static_assert(sizeof(Slot) == 64);
static_assert(sizeof(SlotName) == 256);
static_assert(sizeof(SlotStatistics) == 512);
static_assert(kSlotsAt + kMaxScopesPerWorker * sizeof(Slot) <= kNamesAt);
static_assert(kStatisticsAt == 331'776 && kPageBytes == 856'064);
static_assert(kNamesAt % kMemoryPage == 0 && kStatisticsAt % kMemoryPage == 0);
static_assert(offsetof(PageHeader, slots) == 64 && offsetof(PageHeader, rank) == 128);

// A mapped page by its parts.
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

}  // namespace filetimer
