// What the edits in CMakeLists.txt call inside CaDiCaL, and the buffers between the threads.
//
// Why this is sound. Let F be the formula. CaDiCaL 1.9.5 keeps two promises, and so does 3.0.0
// without its bounded variable addition (`factor`, which engine.cpp switches off):
//   (1) Every clause it holds follows from F. It adds clauses by conflict analysis, probing,
//       vivification, hyper ternary resolution, resolvents of eliminated variables, and equivalent
//       literals; in 3.0.0 also by congruence closure, sweeping, and backbone literals. Blocked,
//       covered and globally blocked clauses (block.cpp, cover.cpp, condition.cpp) are only
//       removed. The witness: each clause and unit added has an LRAT chain (proof.cpp,
//       add_derived_clause), and the LRAT checker takes nothing but unit propagation
//       (lratchecker.cpp, check). Steps of another kind (add_derived_rat_clause, in 3.0.0 only)
//       come from factor.cpp alone, as do variables that are not the formula's.
//   (2) A model of its irredundant clauses extends to a model of F (extend.cpp).
// A clause that follows from F and comes in as a redundant one keeps both: (1) at once; (2) since
// redundant clauses may replace irredundant ones by subsuming or strengthening them or by showing
// literals equivalent, which loses models and adds none. Hence clauses learned later follow from F,
// too, and may go out. No other option changes this. Assumptions are decisions to the search, so
// no learned clause depends on them.
//
// A clause over a variable that was eliminated, substituted or found pure cannot come in: to the
// search this variable is not there. It is counted and dropped. A proof file is not written, as a foreign
// clause has no derivation here; the checker knows it by its signature (recorder.hpp).

#include "exchange.hpp"

#include "internal.hpp"
#include "recorder.hpp"

#include <algorithm>
#include <cstdlib>

namespace CaDiCaL {

/*------------------------------------------------------------------------*/

static const size_t head = 3; // LBD and ID

void Exchange::offer (const std::vector<int> &literals, int lbd, int64_t id) {
  const size_t length = literals.size ();
  counts.offered++;
  const std::lock_guard<std::mutex> lock (mutex);
  while (outgoing_size + length + 1 > capacity) { // drop the longest
    size_t longest = max_length;
    while (longest && outgoing[longest].empty ())
      longest--;
    counts.displaced++;
    if (longest <= length)
      return;
    outgoing[longest].resize (outgoing[longest].size () - longest - head);
    outgoing_size -= longest + 1;
  }
  std::vector<int> &same_length = outgoing[length];
  same_length.push_back (lbd);
  same_length.push_back (static_cast<int> (id));
  same_length.push_back (static_cast<int> (id >> 32));
  same_length.insert (same_length.end (), literals.begin (), literals.end ());
  outgoing_size += length + 1;
}

size_t Exchange::drain (int *literals, size_t *n_literals, int *lbds) {
  const std::lock_guard<std::mutex> lock (mutex);
  size_t n_clauses = 0;
  int *end = literals;
  for (size_t length = 1; length <= (size_t) max_length; length++) {
    std::vector<int> &clauses = outgoing[length];
    for (size_t i = 0; i < clauses.size (); i += length + head) {
      lbds[n_clauses++] = clauses[i];
      end = std::copy_n (&clauses[i + head], length, end);
      *end++ = 0;
    }
    clauses.clear ();
  }
  outgoing_size = 0;
  *n_literals = end - literals;
  return n_clauses;
}

void Exchange::choose (size_t max_literals, std::vector<int64_t> &ids, std::vector<int> &lbds) {
  const std::lock_guard<std::mutex> lock (mutex);
  for (size_t length = 1; length <= (size_t) max_length; length++) {
    std::vector<int> &clauses = outgoing[length];
    std::vector<std::pair<int, int64_t>> same_length; // LBD and ID
    for (size_t i = 0; i < clauses.size (); i += length + head)
      same_length.emplace_back (clauses[i], static_cast<uint32_t> (clauses[i + 1]) |
                                                static_cast<int64_t> (clauses[i + 2]) << 32);
    std::sort (same_length.begin (), same_length.end ());
    for (const auto &[lbd, id] : same_length) {
      if (length > max_literals)
        break;
      max_literals -= length;
      lbds.push_back (lbd);
      ids.push_back (id);
    }
    clauses.clear ();
  }
  outgoing_size = 0;
}

size_t Exchange::give (const int *literals, size_t n_literals, const int *lbds, const int *signatures) {
  const std::lock_guard<std::mutex> lock (mutex);
  size_t n_clauses = 0, accepted = 0;
  for (const int *first = literals, *end = literals + n_literals; first != end; n_clauses++) {
    const int *zero = std::find (first, end, 0);
    if (incoming.size () + (zero - first) + 2 + signature_ints () > capacity)
      counts.refused++;
    else {
      incoming.push_back (lbds[n_clauses]);
      const int *signature = signatures + n_clauses * signature_ints ();
      incoming.insert (incoming.end (), signature, signature + signature_ints ());
      incoming.insert (incoming.end (), first, zero);
      incoming.push_back (0);
      accepted++;
    }
    first = zero + (zero != end);
  }
  if (accepted)
    incoming_waits = true;
  return accepted;
}

std::vector<int> Exchange::take () {
  std::vector<int> batch;
  const std::lock_guard<std::mutex> lock (mutex);
  batch.swap (incoming);
  incoming_waits = false;
  return batch;
}

/*------------------------------------------------------------------------*/

void Solver::connect_exchange (Exchange *exchange) { internal->exchange = exchange; }

// The formula's clauses have the IDs from 1 on, whatever is derived while they are loaded.
void Solver::reserve_clause_ids (int number) { internal->reserve_ids (number); }

void Internal::export_clause (const std::vector<int> &literals, int glue) {
  if (literals.size () > (size_t) exchange->max_length)
    return;
  if (exchange->recorder)
    return exchange->announce (literals.size (), glue + 1);
  std::vector<int> external_literals;
  external_literals.reserve (literals.size ());
  for (int lit : literals)
    external_literals.push_back (externalize (lit));
  exchange->offer (external_literals, glue + 1);
}

void Internal::export_unit (int lit) {
  if (!exchange->searching || exchange->importing_now)
    return;
  if (exchange->recorder)
    exchange->announce (1, 1);
  else
    exchange->offer ({externalize (lit)}, 1);
}

/*------------------------------------------------------------------------*/

// Foreign clauses come in on level 0. The search does not get there by itself for long in its
// stable phases, nor at all under assumptions, so it is sent there, as by a restart: saved phases
// bring it back. To bound what this costs, there are conflicts between two such restarts.

static const int64_t import_interval_conflicts = 100;

bool Internal::importing () {
  return exchange && exchange->waiting () &&
         (!level || stats.conflicts >= exchange->next_import_conflicts);
}

void Internal::import_clauses () {
  exchange->next_import_conflicts = stats.conflicts + import_interval_conflicts;
  backtrack ();
  if (!propagate ()) { // units may have been found out of order
    learn_empty_clause ();
    return;
  }
  const std::vector<int> batch = exchange->take ();
  exchange->importing_now = true;
  for (auto first = batch.data (), end = first + batch.size (); first != end && !unsat;) {
    const int *literals = first + 1 + exchange->signature_ints (), *zero = std::find (literals, end, 0);
    import_clause (literals, zero, first[0] - 1, first + 1);
    first = zero + 1;
  }
  exchange->importing_now = false;
}

// The hints of a foreign clause without the literals that are false: their units, then its ID.
void Internal::begin_import (const int *first, const int *last, const int *signature) {
  for (const int *p = first; p != last; p++) {
    const int lit = *p < 0 ? -external->e2i[-*p] : external->e2i[*p];
    if (val (lit) >= 0)
      continue;
    ClauseId unit = external->ext_units[(*p > 0) + 2u * (unsigned) std::abs (*p)]; // of -*p
    if (!unit)
#if CADICAL_RELEASE >= 300
      unit = unit_id (-lit);
#else
      unit = unit_clauses[vlit (-lit)];
#endif
    if (std::find (lrat_chain.begin (), lrat_chain.end (), unit) == lrat_chain.end ())
      lrat_chain.push_back (unit);
  }
  lrat_chain.push_back (++clause_id);
  exchange->recorder->import (clause_id, first, last, signature);
}

void Internal::import_clause (const int *first, const int *last, int glue, const int *signature) {
  assert (!level && propagated == trail.size () && clause.empty ());
  bool removed = false, satisfied = false;
  for (const int *p = first; p != last && !removed && !satisfied; p++) {
    const int64_t index = std::abs ((int64_t) *p); // also of INT_MIN
    int lit = index <= external->max_var ? external->e2i[index] : 0;
    if (*p < 0)
      lit = -lit;
    if (!lit)
      removed = true;
    else if (val (lit) > 0 || marked (lit) < 0)
      satisfied = true;
    else if (val (lit) < 0 || marked (lit) > 0)
      continue; // false or met before
    else if (!active (lit))
      removed = true;
    else {
      mark (lit);
      clause.push_back (lit);
    }
  }
  for (int lit : clause)
    unmark (lit);
  if (satisfied)
    exchange->counts.satisfied++;
  else if (removed)
    exchange->counts.removed++;
  else {
    exchange->counts.taken++;
    ClauseId foreign = 0;
    if (exchange->recorder) {
      begin_import (first, last, signature);
      foreign = clause_id;
    }
    if (clause.empty ())
      learn_empty_clause ();
    else if (clause.size () == 1) {
      assign_unit (clause[0]);
      if (!propagate ())
        learn_empty_clause ();
    } else {
      glue = std::min (std::max (glue, 1), (int) clause.size () - 1);
      Clause *c = new_clause (true, glue);
#if CADICAL_RELEASE >= 300 // as for a clause learned here
      c->used = max_used;
#else
      c->used = 1 + (glue <= opts.reducetier2glue);
#endif
      if (proof)
        proof->add_derived_clause (c, lrat_chain);
      lrat_chain.clear ();
      watch_clause (c); // any two literals: none is assigned
    }
    if (foreign)
      exchange->recorder->delete_clause (foreign, true, {});
  }
  clause.clear ();
}

} // namespace CaDiCaL
