"""Rules of calls of functions: which outcome counts, and what becomes of calls whose workers go."""

from __future__ import annotations

from mutations.mutation import table

CALLING = table("""
mallob_py/api/calls/book.py
  calls of a worker that is lost are done by others
    Book.lose: self._put_back(group, calls, alone=is_to_blame) => pass
    test_each_call_has_one_outcome_whatever_workers_do
  a call whose workers die again and again is given up
    Book.lose: count >= LOSSES_MAX => False
    test_a_call_that_has_lost_three_workers_on_its_own_fails

mallob_py/api/calls/hub.py
  calls end with an error when the executor's ranks have ended
    Hub.lose_service: without self.call(lose)
    test_calls_end_with_an_error_when_the_ranks_of_their_own_are_killed
  a fork of the program does not remove what the executor needs
    _removed_by: always os.getpid() == process
    test_a_program_that_forks_and_shuts_nothing_down_has_its_results_and_leaves_nothing

mallob_py/api/calls/ranks.py
  the thread that has started an executor's ranks lives as long as they do
    _look_after: without process.wait()
    test_ranks_of_its_own_outlive_the_thread_that_has_started_them
  a fork of the program does not end the executor's ranks
    _end: never os.getpid() != ours
    test_a_program_that_forks_and_shuts_nothing_down_has_its_results_and_leaves_nothing

mallob_py/runtime/world/session_folder.py
  what killed processes have left among temporary files goes
    temporary_folder: without sweep(parent)
    test_a_temporary_folder_is_made_once_those_of_killed_processes_are_gone

apps/mallob_calls/worker.py
  what a call has forked answers nothing
    Worker._end_if_forked: always os.getpid() == self._process
    test_what_a_call_has_forked_answers_nothing
""")
