// Every limit on resources that another process controls, by name. Both sides include this header.
// docs/design.md lists the numbers.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

namespace filetimer {

// The longest request. PyTorch's client refuses a JSON text longer than PIPE_BUF (4,096 bytes)
// before it adds the newline, so 4,097 bytes is the longest line that it can send.
inline constexpr std::size_t kMaxLineBytes = 4097;
// The longest atomic write to a pipe (PIPE_BUF on Linux), which our own clients never exceed.
inline constexpr std::size_t kMaxAtomicWrite = 4096;

inline constexpr std::size_t kMaxWorkers = 4096;
inline constexpr std::size_t kMaxScopesPerWorker = 1024;
inline constexpr std::size_t kMaxScopeNameBytes = 255;
inline constexpr std::size_t kMaxPageNameBytes = 64;  // of a file in `scopes`

// The longest finite timeout, about 31 years. A longer one is a mistake in units.
inline constexpr std::chrono::nanoseconds kMaxTimeout = std::chrono::seconds{1'000'000'000};

// The most warnings of one worker in kWarningPeriod; further ones are counted. Scopes nest, but a
// loop in which every step passes its soft deadline would fill the log.
inline constexpr std::size_t kMaxWarningsPerWorker = 16;
inline constexpr std::chrono::nanoseconds kWarningPeriod = std::chrono::seconds{10};

// Records.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;
// The length of a record at which its list ends: the rest is for the fields after it.
inline constexpr std::size_t kMaxRecordBytesOfLists = kMaxRecordBytes - 4096;
inline constexpr std::size_t kMaxEvidenceBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxCommandOutputBytes = std::size_t{64} << 10;  // as written
inline constexpr std::size_t kMaxEvidenceThreads = 1024;
inline constexpr std::size_t kMaxStacksShown = 64;   // different ones, in a record
inline constexpr std::size_t kMaxStackFrames = 128;  // of each
inline constexpr std::size_t kMaxFrameBytes = 256;   // of a frame's text, which is cut
inline constexpr std::size_t kMaxStacksBytes = std::size_t{1} << 20;        // of a helper's answer
inline constexpr std::size_t kMaxPythonDumpBytes = std::size_t{256} << 10;  // of a worker's dump
inline constexpr std::size_t kMaxRejectedBytesShown = 200;
inline constexpr std::size_t kMaxCmdlineBytesShown = 1024;
inline constexpr std::size_t kMaxJobIdBytesShown = 128;  // an incident has it for each worker
// A control request, and each packet of its answers: a longer answer takes several.
inline constexpr std::size_t kMaxControlBytes = 4096;
inline constexpr std::size_t kAnswerPacketBytes = std::size_t{32} << 10;
// Clients that may wait for an answer at a time. Each takes a descriptor, so there may be fewer.
inline constexpr std::size_t kMaxWaitingClients = 1024;
// The backlog: records that wait in memory until the log can be written again.
inline constexpr std::size_t kMaxLogBacklogBytes = std::size_t{16} << 20;
// The backlog up to which statistics, evidence, lists, hooks, rendezvous and rejected requests are
// recorded: the rest is for verdicts and outcomes.
inline constexpr std::size_t kMaxLogBacklogBytesOfDetails = kMaxLogBacklogBytes / 2;

}  // namespace filetimer
