// Every limit on what somebody else controls, in one place and by name.
// Both sides include this; a number here is a promise of docs/design.md.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

namespace filetimer {

// What a request may be. PyTorch's client refuses a JSON text longer than PIPE_BUF (4,096 bytes)
// before it adds the newline, so 4,097 bytes is the longest line that it can send.
inline constexpr std::size_t kMaxLineBytes = 4097;
// What one write to a pipe keeps whole (POSIX PIPE_BUF on Linux); our own clients stay within it.
inline constexpr std::size_t kMaxAtomicWrite = 4096;

inline constexpr std::size_t kMaxWorkers = 4096;
inline constexpr std::size_t kMaxScopesPerWorker = 1024;
inline constexpr std::size_t kMaxScopeNameBytes = 255;
inline constexpr std::size_t kMaxPageNameBytes = 64;  // of a file in `scopes`

// The longest finite timeout, about 31 years; what is longer is a mistake in units.
inline constexpr std::chrono::nanoseconds kMaxTimeout = std::chrono::seconds{1'000'000'000};

// Of one worker within kWarningPeriod; more are counted. Scopes nest, but a loop whose every step
// takes long enough to be warned about would fill the log.
inline constexpr std::size_t kMaxWarningsPerWorker = 16;
inline constexpr std::chrono::nanoseconds kWarningPeriod = std::chrono::seconds{10};

// Records.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;
// A list ends when its record has become so long: what is left is for the fields behind it.
inline constexpr std::size_t kMaxRecordBytesOfLists = kMaxRecordBytes - 4096;
inline constexpr std::size_t kMaxEvidenceBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxEvidenceThreads = 64;
inline constexpr std::size_t kMaxStackFrames = 128;  // of each of those threads
inline constexpr std::size_t kMaxFrameBytes = 256;   // a frame's text; what is longer is cut
inline constexpr std::size_t kMaxStacksBytes = std::size_t{1} << 20;        // of a helper's answer
inline constexpr std::size_t kMaxPythonDumpBytes = std::size_t{256} << 10;  // of a worker's dump
inline constexpr std::size_t kMaxRejectedBytesShown = 200;
inline constexpr std::size_t kMaxCmdlineBytesShown = 1024;
inline constexpr std::size_t kMaxJobIdBytesShown = 128;  // an incident has it for each worker
// Records that could not be written yet and wait in memory for the log to be usable again.
inline constexpr std::size_t kMaxLogBacklogBytes = std::size_t{16} << 20;

}  // namespace filetimer
