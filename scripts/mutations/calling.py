"""Rules of calls of functions: which outcome counts, and what becomes of calls whose workers go."""

from __future__ import annotations

from mutations.mutation import Mutation, instead_of

_BOOK = "mallob_py/api/calls/book.py"

CALLING = (
    Mutation(
        "calls of a worker that is lost are done by others",
        _BOOK,
        "Book.lose",
        instead_of("self._put_back(group, calls, alone=is_to_blame)", "pass"),
        "test_each_call_has_one_outcome_whatever_workers_do",
    ),
    Mutation(
        "a call whose workers die again and again is given up",
        _BOOK,
        "Book.lose",
        instead_of("count >= LOSSES_MAX", "False"),
        "test_a_call_that_has_lost_three_workers_on_its_own_fails",
    ),
)
