// Tells the checker (check.cpp) each step of a search, through a pipe.
//
// The search's thread writes most steps, its owner those that choose clauses to share: hence the mutex. A pipe
// whose reader has ended, since a step was refuted, sets `broken`, and the search ends.

#pragma once

#include "tracer.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace CaDiCaL {

class Exchange;

#if CADICAL_RELEASE >= 300
typedef int64_t ClauseId;
#else
typedef uint64_t ClauseId;
#endif

class Recorder : public Tracer {
public:
  Recorder (int fd, Exchange &exchange) : fd (fd), exchange (exchange) {}

  // Called by CaDiCaL.
#if CADICAL_RELEASE >= 300
  void add_derived_clause (ClauseId, bool, int, const std::vector<int> &, const std::vector<ClauseId> &) override;
#else
  void add_derived_clause (ClauseId, bool, const std::vector<int> &, const std::vector<ClauseId> &) override;
#endif
  void delete_clause (ClauseId, bool, const std::vector<int> &) override;
  void add_assumption_clause (ClauseId, const std::vector<int> &, const std::vector<ClauseId> &) override;

  // `signature` are 16 bytes.
  void import (uint64_t id, const int *first, const int *last, const int *signature);

  // Called by the owner of the search.
  void load (const int *literals, uint64_t n_literals);
  void end_load (const int *assumptions, uint64_t n_assumptions);
  void share (const std::vector<int64_t> &ids, const std::vector<int> &lbds);
  void flush ();

  std::atomic<bool> broken{false};
  // Of the clause that says which assumptions failed; 0: there is none.
  uint64_t failed_id = 0;

private:
  void derive (uint64_t id, const std::vector<int> &clause, const std::vector<ClauseId> &hints);
  void put (const void *data, size_t size);
  template <class T> void put (const T &value) { put (&value, sizeof value); }
  void write_out ();

  const int fd;
  Exchange &exchange;
  std::mutex mutex;
  std::string buffer;
};

} // namespace CaDiCaL
