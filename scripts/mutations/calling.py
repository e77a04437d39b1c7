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
""")
