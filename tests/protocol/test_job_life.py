"""The table of a job's states is complete, and contains no forbidden transition."""

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


AT_SERVICE = reached(JobState.HELD)
AT_PE = reached(JobState.NEW)


def test_every_state_is_reached_at_one_place_and_every_happening_leads_somewhere() -> None:
    assert set(JobState) == AT_SERVICE | AT_PE
    assert not AT_SERVICE & AT_PE
    assert {what for _, what in LIFE} == set(Happening)


def test_every_job_may_be_answered_at_any_time_and_only_once() -> None:
    for state in AT_SERVICE - {JobState.ANSWERED}:
        assert follow(1, state, Happening.ANSWERED) is JobState.ANSWERED
    assert not [state for state, _ in LIFE if state is JobState.ANSWERED]


def test_a_job_at_its_pe_comes_back_only_if_it_is_given_up() -> None:
    leads_back = {(what, then) for (state, what), then in LIFE.items() if state is JobState.AT_PE}
    assert leads_back == {(Happening.GIVEN_UP, JobState.AGAIN), (Happening.ANSWERED, JobState.ANSWERED)}
    assert {state for (state, what), _ in LIFE.items() if what is Happening.GIVEN_UP} == {
        JobState.AT_PE,
        JobState.SAVING,
        JobState.RETRACTED,
    }


def test_nothing_leads_back_to_being_held_or_new_but_being_kept() -> None:
    assert JobState.HELD not in LIFE.values()
    assert [what for (_, what), then in LIFE.items() if then is JobState.NEW] == [Happening.KEPT]


def test_a_life_in_turns() -> None:
    assert after(Happening.FREED, Happening.READ, Happening.SUBMITTED, Happening.GIVEN_UP) is JobState.AGAIN
    turn = (Happening.ROOT_RUNS, Happening.HAD_TURN, Happening.SET_BACK)
    state = JobState.NEW
    for what in (*turn, Happening.LEAVES, Happening.RETRACTED, Happening.GIVEN_UP):
        state = follow(1, state, what)
    assert state is JobState.GONE


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
