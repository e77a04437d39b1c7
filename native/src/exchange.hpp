// The door between a running search and the rest of the world: learned clauses go out, foreign
// clauses come in.
//
// Two threads meet here. The search (import.. and export.. in exchange.cpp, called from CaDiCaL's
// own code) and whoever owns the search. Each side holds the mutex only to move a batch of integers.
// Both directions are bounded; the outgoing side keeps the shortest clauses, the incoming side
// refuses what does not fit.
//
// Literals here are the formula's (CaDiCaL: external). LBD is the number of decision levels in a
// clause, one more than CaDiCaL's glue.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace CaDiCaL {

class Recorder;

class Exchange {
public:
  Exchange (int max_length, size_t capacity)
      : max_length (max_length), capacity (capacity), outgoing (max_length + 1) {}

  const int max_length;  // of clauses that go out
  const size_t capacity; // integers that may wait on either side, closing zeros included

  // The search's side.

  void offer (const std::vector<int> &literals, int lbd, int64_t id = 0);
  // With a recorder, a clause is offered when it has its ID: which the next derived clause of its size brings.
  void announce (size_t length, int lbd) { announced_length = length, announced_lbd = lbd; }
  void derived (const std::vector<int> &literals, int64_t id) {
    if (announced_length && literals.size () == announced_length)
      offer (literals, announced_lbd, id);
    announced_length = 0;
  }
  bool waiting () const { return incoming_waits.load (std::memory_order_relaxed); }
  // LBD, signature (of `signature_ints`), literals, 0 for each clause.
  std::vector<int> take ();
  size_t signature_ints () const { return recorder ? 4 : 0; }

  // The other side.

  // Writes clauses closed by 0, shortest first, and the LBD of each; there must be room for
  // `capacity` integers and half as many LBDs. Returns the number of clauses.
  size_t drain (int *literals, size_t *n_literals, int *lbds);
  // Returns how many clauses were accepted. With a recorder, each has a signature.
  size_t give (const int *literals, size_t n_literals, const int *lbds, const int *signatures);
  // Of the waiting clauses the IDs of the best, up to so many literals; the others are dropped.
  void choose (size_t max_literals, std::vector<int64_t> &ids, std::vector<int> &lbds);

  // Not null: each step is checked while it is made.
  Recorder *recorder = nullptr;

  // Nothing is offered while a formula is loaded: what follows by propagation alone everybody has.
  std::atomic<bool> searching{false};
  // The search that takes a foreign unit must not offer it as its own.
  bool importing_now = false;
  int64_t next_import_conflicts = 0;

  // Counted by the search, read by anybody.
  struct Counts {
    std::atomic<int64_t> offered{0};   // clauses short enough
    std::atomic<int64_t> displaced{0}; // of these, lost because the buffer was full
    std::atomic<int64_t> taken{0};     // foreign clauses that the search uses
    std::atomic<int64_t> satisfied{0}; // foreign clauses that were true for good
    std::atomic<int64_t> removed{0};   // foreign clauses over variables that are not there any more
    std::atomic<int64_t> refused{0};   // foreign clauses for which there was no room
  } counts;

private:
  std::mutex mutex;
  // By length; in each, LBD, ID (two integers) and literals of one clause after the other.
  std::vector<std::vector<int>> outgoing;
  size_t outgoing_size = 0; // integers, a closing zero counted for each clause, but not IDs
  size_t announced_length = 0;
  int announced_lbd = 0;
  std::vector<int> incoming;
  std::atomic<bool> incoming_waits{false};
};

} // namespace CaDiCaL
