"""Rules for clients of the service: programs written for Mallob, and what users have in Python."""

from __future__ import annotations

from mutations.mutation import Mutation, instead_of, never, without

_REPLY = "mallob_py/service/jobs/reply.py"
_MALLOB_CLIENTS = "mallob_py/service/jobs/mallob_clients.py"
_ENDINGS = "mallob_py/service/endings.py"
_INTAKE = "mallob_py/service/intake.py"
_INCREMENTAL = "mallob_py/api/incremental.py"

CLIENTS = (
    # --- the IPASIR bridge --------------------------------------------------------------------
    Mutation(
        "the bridge has its models and cores in a file, however small",
        _REPLY,
        "result_reply",
        instead_of("is_long or (is_bridge and bool(solution))", "is_long"),
        "test_the_ipasir_bridge_has_models_and_cores_as_integers_and_in_a_file",
    ),
    Mutation(
        "the bridge has its models and cores in the reply, too",
        _REPLY,
        "result_reply",
        instead_of("not is_long", "not is_beside"),
        "test_the_ipasir_bridge_has_models_and_cores_as_integers_and_in_a_file",
    ),
    Mutation(
        "a user called as that of the bridge is told from it by the names of jobs",
        _MALLOB_CLIENTS,
        "is_bridge",
        instead_of("_BRIDGE_NAME.fullmatch(name) is not None", "True"),
        "test_others_whose_user_is_called_as_that_of_the_bridge_have_their_models_as_they_are",
    ),
    Mutation(
        "the end of a chain comes before no reply",
        _INTAKE,
        "Intake._accept",
        instead_of(
            "not file.done and self._directory.came_before_reply(incoming, identity)",
            "self._directory.came_before_reply(incoming, identity)",
        ),
        "test_a_chain_ends_though_something_lies_where_the_reply_to_its_end_would_be",
    ),
    Mutation(
        "the solution before that of a chain's last revision goes",
        _ENDINGS,
        "Endings._discard_solution_before",
        without("self._discard_solution(chain.revisions[revision.number - 1])"),
        "test_revisions_with_assumptions_come_and_go_through_named_pipes",
    ),
    Mutation(
        "the last solution of a chain goes with it",
        _ENDINGS,
        "Endings._let_go",
        without("self._discard_solution(chain.revisions[-1])"),
        "test_revisions_with_assumptions_come_and_go_through_named_pipes",
    ),
    Mutation(
        "solutions of others than the bridge stay",
        _ENDINGS,
        "Endings._discard_solution",
        instead_of("mallob_clients.has_read(revision.identity)", "True"),
        "test_large_models_of_earlier_revisions_stay",
    ),
    # --- PySAT's methods ------------------------------------------------------------------------
    Mutation(
        "constraints on numbers of literals are refused and not left out",
        _INCREMENTAL,
        "IncrementalSolver.append_formula",
        never('getattr(formula, "atmosts", ())'),
        "test_what_cannot_be_had_is_told_as_pysats_solvers_tell_it",
    ),
)
