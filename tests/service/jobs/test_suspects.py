"""Suspects are tried one at a time, and each only after some time in which no suspect runs."""

import math

from mallob_py.service.jobs.holds import QUIET_S, TRIAL_S, Suspects


def test_suspects_begin_one_after_the_other_after_a_quiet_time() -> None:
    suspects = Suspects(100.0)
    assert suspects.next_deadline() == math.inf
    suspects.wait(1)
    suspects.wait(2)
    assert suspects.next(100.0 + QUIET_S - 1) is None
    assert suspects.next_deadline() == 100.0 + QUIET_S
    assert suspects.next(100.0 + QUIET_S) == 1
    assert suspects.next(100.0 + QUIET_S) is None
    suspects.ended(7)  # job 7 is another job
    assert suspects.next(100.0 + QUIET_S + 1) is None
    suspects.ended(1)
    assert suspects.next(100.0 + QUIET_S + 1) == 2
    assert suspects.next_deadline() == math.inf


def test_a_suspect_that_works_on_and_on_does_not_keep_others_waiting_for_ever() -> None:
    suspects = Suspects(0.0)
    suspects.wait(1)
    suspects.wait(2)
    assert suspects.next(50.0) == 1
    assert suspects.next(50.0 + TRIAL_S - 1) is None
    assert suspects.next(50.0 + TRIAL_S) == 2


def test_a_suspect_that_ends_before_its_trial_is_not_tried_and_keeps_nobody_waiting() -> None:
    """The suspect ends, for example, because it is interrupted."""
    suspects = Suspects(0.0)
    suspects.wait(1)
    suspects.wait(2)
    suspects.ended(1)
    assert suspects.next(QUIET_S) == 2
    suspects.wait(3)
    suspects.ended(3)
    assert suspects.next_deadline() == math.inf
    assert suspects.next(QUIET_S + TRIAL_S) is None
