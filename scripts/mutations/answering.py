"""Rules of answers: what an application says of its job, and how the service's replies get to clients."""

from __future__ import annotations

from mutations.mutation import Mutation, instead_of, without

_ENUMERATION = "apps/mallob_sat/enumeration.py"
_CORES = "apps/mallob_sat/cores.py"

ANSWERING = (
    # --- SAT ------------------------------------------------------------------------------------
    Mutation(
        "time that ends before the first solution is no answer",
        _ENUMERATION,
        "Enumerating._enumerate",
        instead_of("found.count and time.time() >= self.until", "time.time() >= self.until"),
        "test_when_time_has_ended_before_the_first_solution_that_one_is_still_looked_for",
    ),
    Mutation(
        "another solver confirms a core",
        _CORES,
        "find_core",
        without("check_core(formula, strategy)"),
        "test_another_solver_confirms_each_core",
    ),
)
