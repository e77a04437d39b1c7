"""The table of a job's life: complete, and without a way that must not be."""

from __future__ import annotations

import itertools

import pytest

from mallob_py.protocol.job_life import LIFE, Happening, JobState, follow


def after(*happenings: Happening) -> JobState:
    state = JobState.HELD
    for what in happenings:
        state = follow(1, state, what)
    return state


def reached(start: JobState) -> set[JobState]:
    found, fresh = {start}, [start]
    while fresh:
        state = fresh.pop()
        following = {then for (one, _), then in LIFE.items() if one is state} - found
        found |= following
        fresh += following
    return found


def test_every_state_is_reached_and_every_happening_leads_somewhere() -> None:
    assert reached(JobState.HELD) == set(JobState)
    assert {what for _, what in LIFE} == set(Happening)


def test_every_job_may_be_answered_at_any_time_and_only_once() -> None:
    for state in JobState:
        if state is not JobState.ANSWERED:
            assert follow(1, state, Happening.ANSWERED) is JobState.ANSWERED
    assert not [state for state, _ in LIFE if state is JobState.ANSWERED]


def test_a_job_at_its_pe_comes_back_by_an_epoch_only() -> None:
    for (state, what), then in LIFE.items():
        if state.is_at_pe and not then.is_at_pe and then is not JobState.ANSWERED:
            assert (what, then) == (Happening.GIVEN_UP, JobState.AGAIN)


def test_nothing_leads_back_to_being_held() -> None:
    assert JobState.HELD not in LIFE.values()


def test_a_life_in_turns() -> None:
    turn = (Happening.SUBMITTED, Happening.ROOT_RUNS, Happening.HAD_TURN, Happening.SET_BACK)
    saved = (*turn, Happening.LEAVES, Happening.OVER_AT_PE, Happening.GIVEN_UP)
    assert after(Happening.FREED, Happening.READ, *saved) is JobState.AGAIN
    assert after(Happening.FREED, *saved, *saved, Happening.ANSWERED) is JobState.ANSWERED


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (JobState.HELD, Happening.SUBMITTED),
        (JobState.ANSWERED, Happening.ANSWERED),
        (JobState.RETRACTED, Happening.SET_BACK),
        (JobState.NEW, Happening.HAD_TURN),
    ],
)
def test_a_happening_that_cannot_be_is_named(state: JobState, what: Happening) -> None:
    with pytest.raises(AssertionError, match=f"job 7 {what.value} while {state.value}"):
        follow(7, state, what)


def test_a_job_is_at_the_service_or_at_its_pe() -> None:
    at_service = {state for state in JobState if not state.is_at_pe and state is not JobState.ANSWERED}
    assert {state for state in at_service if state.is_in_line} == {
        JobState.QUEUED,
        JobState.PLACELESS,
        JobState.AGAIN,
    }
    for state, what in itertools.product(at_service, (Happening.ROOT_RUNS, Happening.HAD_TURN)):
        assert (state, what) not in LIFE
