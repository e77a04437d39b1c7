"""Rules for clients of the service: programs written for Mallob, and what users have in Python."""

from __future__ import annotations

from mutations.mutation import table

CLIENTS = table("""
mallob_py/service/jobs/job_file.py
  half a character in a number of a job file ends no service
    read_fields: UnicodeEncodeError => ZeroDivisionError
    test_half_a_character_is_refused_wherever_it_stands_or_kept_as_a_text

mallob_py/api/client.py
  a name is free when its job has its answer
    Client._watch: without self._forget(name)
    test_a_name_is_free_when_its_job_has_its_answer
  a reply that cannot be read for want of descriptors is read later
    _ending_of: isinstance(cause, OSError) and cause.errno in WANTING => False
    test_a_client_short_of_descriptors_reads_replies_later_and_misses_no_service

mallob_py/service/store/lock.py
  want of descriptors does not say that no service is there
    holder_of: error.errno in own_folder.WANTING => False
    test_want_of_descriptors_does_not_say_that_no_service_is_there

# the IPASIR bridge
mallob_py/service/jobs/reply.py
  the bridge has its models and cores in a file, however small
    result_reply: is_long or (is_bridge and bool(solution)) => is_long
    test_the_ipasir_bridge_has_models_and_cores_as_integers_and_in_a_file
  the bridge has its models and cores in the reply, too
    result_reply: not is_long => not is_beside
    test_the_ipasir_bridge_has_models_and_cores_as_integers_and_in_a_file

mallob_py/service/jobs/mallob_clients.py
  a user called as that of the bridge is told from it by the names of jobs
    is_bridge: _BRIDGE_NAME.fullmatch(name) is not None => True
    test_others_whose_user_is_called_as_that_of_the_bridge_have_their_models_as_they_are

mallob_py/service/intake.py
  the end of a chain comes before no reply
    Intake._accept: not file.done and self._directory.came_before_reply(incoming, identity)
    => self._directory.came_before_reply(incoming, identity)
    test_a_chain_ends_though_something_lies_where_the_reply_to_its_end_would_be

mallob_py/service/endings.py
  the solution before that of a chain's last revision goes
    Endings._discard_solution_before: without self._discard_solution(chain.revisions[revision.number - 1])
    test_revisions_with_assumptions_come_and_go_through_named_pipes
  the last solution of a chain goes with it
    Endings._let_go: without self._discard_solution(chain.revisions[-1])
    test_revisions_with_assumptions_come_and_go_through_named_pipes
  solutions of others than the bridge stay
    Endings._discard_solution: mallob_clients.has_read(revision.identity) => True
    test_large_models_of_earlier_revisions_stay

# PySAT's methods
mallob_py/api/incremental.py
  constraints on numbers of literals are refused and not left out
    IncrementalSolver.append_formula: never getattr(formula, "atmosts", ())
    test_what_cannot_be_had_is_told_as_pysats_solvers_tell_it
""")
