// One search behind a C interface, to be called through ctypes (which releases the interpreter's
// lock in every call). `apps/mallob_sat/native.py` is its only caller and keeps its rules:
// between engine_solve and its return only engine_interrupt, engine_learned, engine_give, engine_share
// and engine_counts may be called; engine_model after 10, engine_failed after 20. CaDiCaL ends the
// process if its own rules are broken.

#include "cadical.hpp"
#include "exchange.hpp"
#include "recorder.hpp"

#include <cstring>
#include <new>

using namespace CaDiCaL;

namespace {

const int out_of_memory = -1;

// Adds variables, and clauses that do not follow from the formula: not with an exchange.
const char *const factoring = "factor";

struct Engine : Terminator {
  Engine (int max_length, size_t capacity, int checker_fd) : exchange (max_length, capacity) {
#if CADICAL_RELEASE >= 300
    solver.set (factoring, 0);
#endif
    solver.connect_terminator (this);
    solver.connect_exchange (&exchange);
    if (checker_fd < 0)
      return;
    recorder = exchange.recorder = new Recorder (checker_fd, exchange);
    solver.connect_proof_tracer (recorder, true); // which deletes it in the end
  }
  bool terminate () override {
    return stopped.load (std::memory_order_relaxed) || (recorder && recorder->broken);
  }

  std::atomic<bool> stopped{false};
  Exchange exchange;
  Recorder *recorder = nullptr; // null: nothing is checked
  Solver solver;
};

} // namespace

#define API extern "C" __attribute__ ((visibility ("default")))

// To be raised whenever one of these functions changes.
API int engine_interface () { return 3; }

// A checker reads the steps of the search from `checker_fd`; -1: there is none.
API Engine *engine_new (int max_length, size_t capacity, int checker_fd) {
  try {
    return new Engine (max_length, capacity, checker_fd);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

API void engine_delete (Engine *engine) { delete engine; }

API int engine_set (Engine *engine, const char *name, int value) {
  return Solver::is_valid_option (name) && std::strcmp (name, factoring) &&
         engine->solver.set (name, value);
}

// With a checker, before engine_add: the whole formula, once.
API int engine_load (Engine *engine, const int *literals, size_t n_literals, int n_clauses,
                     const int *assumptions, size_t n_assumptions) {
  try {
    engine->recorder->load (literals, n_literals);
    engine->recorder->end_load (assumptions, n_assumptions);
    engine->solver.reserve_clause_ids (n_clauses);
    return 0;
  } catch (const std::bad_alloc &) {
    return out_of_memory;
  }
}

API int engine_add (Engine *engine, const int *literals, size_t n_literals) {
  try {
    for (size_t i = 0; i < n_literals; i++)
      engine->solver.add (literals[i]);
    return 0;
  } catch (const std::bad_alloc &) {
    return out_of_memory;
  }
}

API void engine_phases (Engine *engine, const int *literals, size_t n_literals) {
  for (size_t i = 0; i < n_literals; i++)
    engine->solver.phase (literals[i]);
}

// To be called before engine_solve: an interruption counts from here on.
API void engine_ready (Engine *engine) { engine->stopped = false; }

// 10 satisfiable, 20 unsatisfiable, 0 interrupted.
API int engine_solve (Engine *engine, const int *assumptions, size_t n_assumptions) {
  int status = out_of_memory;
  try {
    for (size_t i = 0; i < n_assumptions; i++)
      engine->solver.assume (assumptions[i]);
    engine->exchange.searching = true;
    status = engine->solver.solve ();
  } catch (const std::bad_alloc &) {
  }
  engine->exchange.searching = false;
  return status;
}

API void engine_interrupt (Engine *engine) { engine->stopped = true; }

API size_t engine_learned (Engine *engine, int *literals, size_t *n_literals, int *lbds) {
  return engine->exchange.drain (literals, n_literals, lbds);
}

// With a checker: have it pass on the best learned clauses, up to so many literals. Whether it still runs.
API int engine_share (Engine *engine, size_t max_literals) {
  try {
    std::vector<int64_t> ids;
    std::vector<int> lbds;
    engine->exchange.choose (max_literals, ids, lbds);
    engine->recorder->share (ids, lbds);
    return !engine->recorder->broken;
  } catch (const std::bad_alloc &) {
    return out_of_memory;
  }
}

// With a checker, after engine_solve: have it know all steps. The clause of the failed assumptions, or 0.
API uint64_t engine_flush (Engine *engine) {
  engine->recorder->flush ();
  return engine->recorder->failed_id;
}

API long engine_give (Engine *engine, const int *literals, size_t n_literals, const int *lbds,
                      const int *signatures) {
  try {
    return engine->exchange.give (literals, n_literals, lbds, signatures);
  } catch (const std::bad_alloc &) {
    return out_of_memory;
  }
}

// Literal of variable i + 1 into literals[i].
API void engine_model (Engine *engine, int *literals, int n_vars) {
  const int known = engine->solver.vars ();
  for (int v = 1; v <= n_vars; v++)
    literals[v - 1] = v <= known && engine->solver.val (v) > 0 ? v : -v;
}

// Overwrites each assumption that was not needed with 0.
API void engine_failed (Engine *engine, int *assumptions, size_t n_assumptions) {
  for (size_t i = 0; i < n_assumptions; i++)
    if (!engine->solver.failed (assumptions[i]))
      assumptions[i] = 0;
}

API void engine_counts (Engine *engine, int64_t *six) {
  const Exchange::Counts &counts = engine->exchange.counts;
  six[0] = counts.offered;
  six[1] = counts.displaced;
  six[2] = counts.taken;
  six[3] = counts.satisfied;
  six[4] = counts.removed;
  six[5] = counts.refused;
}
