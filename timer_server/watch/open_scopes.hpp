// The open scopes of all workers, as answers list them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "common/json_writer.hpp"
#include "timer_server/scopes/workers.hpp"
#include "timer_server/watch/scope_policy.hpp"

namespace filetimer {

// Counts and lists the open scopes on which there is no verdict. Used on the loop thread. The
// arguments of the constructor must outlive this object.
class OpenScopes {
 public:
  // Scopes that the record of a stop lists.
  static constexpr std::size_t kMaxLeftScopes = 8192;
  // Scopes, and workers, that an answer lists.
  static constexpr std::size_t kMostListed = 64;

  OpenScopes(Workers& workers, const ScopePolicy& policy) : workers_(workers), policy_(policy) {}

  // Returns the number of open scopes.
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] bool has_workers() const { return workers_.count() > 0; }
  // Adds the number of open scopes and a list of them, and with `with_workers` a list of workers.
  // The lists are shortened so that the answer has about `room` bytes.
  void write(JsonWriter& json, bool with_workers, std::size_t room) const;
  // Adds the number of all scopes, the judged ones included, and a list of them: a stopping server
  // leaves them.
  void write_left(JsonWriter& json) const;

 private:
  void write_scopes(JsonWriter& json, std::size_t room) const;
  void write_workers(JsonWriter& json, std::size_t room) const;

  Workers& workers_;
  const ScopePolicy& policy_;
};

}  // namespace filetimer
