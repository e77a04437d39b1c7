"""Live jobs, arrivals, dependencies and interruptions of one client."""

import math

import pytest

from mallob_py.service import JobFileError
from mallob_py.service.jobs.holds import QUIET_S, Holds


def test_a_plain_job_is_ready_at_once_and_named_once() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    assert book.deadline_s == 0.0
    assert book.ready(0.0) == [1]
    assert book.ready(9.0) == []
    assert book.deadline_s == math.inf
    assert "u.a" in book


def test_a_second_job_of_a_live_name_is_refused_and_its_error_keeps_off_that_name() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    with pytest.raises(JobFileError) as caught:
        book.admit(2, "u.a", 0.0, ())
    assert (caught.value.field, caught.value.identity) == ("name", None)
    book.ended(1)
    book.admit(3, "u.a", 0.0, ())
    assert len(book) == 1


def test_jobs_are_held_until_they_arrive() -> None:
    book = Holds()
    book.admit(1, "u.late", 5.0, ())
    book.admit(2, "u.later", 7.0, ())
    assert book.ready(4.9) == []
    assert book.deadline_s == 5.0
    assert book.ready(5.0) == [1]
    assert book.deadline_s == 7.0


def test_a_job_waits_for_all_it_depends_on_live_or_never_seen() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.c", 0.0, ("u.a", "u.b"))
    assert book.ready(0.0) == [1]
    book.ended(1)
    assert book.ready(0.0) == []
    book.admit(3, "u.b", 0.0, ())
    assert book.ready(0.0) == [3]
    book.ended(3)
    assert book.ready(0.0) == [2]


def test_both_arrival_and_dependencies_must_be_met() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.b", 9.0, ("u.a",))
    book.ready(0.0)
    book.ended(1)
    assert book.ready(1.0) == []
    assert book.deadline_s == 9.0
    assert book.ready(9.0) == [2]


def test_jobs_that_ended_before_satisfy_dependencies_unless_live_again() -> None:
    book = Holds(finished={"u.old": "result"})
    book.admit(1, "u.a", 0.0, ("u.old",))
    assert book.ready(0.0) == [1]
    book.admit(2, "u.old", 0.0, ())
    book.admit(3, "u.b", 0.0, ("u.old",))
    assert book.ready(0.0) == [2]


def test_finished_names_are_bounded() -> None:
    book = Holds(finished=dict.fromkeys(["u.x", "u.y", "u.z"], "result"), finished_max=2)
    book.admit(1, "u.a", 0.0, ("u.x",))
    book.admit(2, "u.b", 0.0, ("u.y",))
    assert book.ready(0.0) == [2]


def test_the_job_that_closes_a_cycle_is_refused() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ("u.b",))
    book.admit(2, "u.b", 0.0, ("u.c", "u.d"))
    with pytest.raises(JobFileError, match=r"u\.c -> u\.a -> u\.b -> u\.c") as caught:
        book.admit(3, "u.c", 0.0, ("u.a",))
    assert (caught.value.field, caught.value.identity) == ("dependencies", "u.c")
    book.admit(4, "u.c", 0.0, ())
    book.admit(5, "u.d", 0.0, ("u.c",))
    assert book.ready(0.0) == [4]


def test_a_job_that_depends_on_itself_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"u\.a -> u\.a"):
        Holds().admit(1, "u.a", 0.0, ("u.a",))


def test_a_job_that_depends_on_itself_is_refused_also_if_one_of_its_name_has_ended() -> None:
    with pytest.raises(JobFileError, match=r"u\.a -> u\.a"):
        Holds({"u.a": "result"}).admit(1, "u.a", 0.0, ("u.a",))


def test_a_cycle_of_thousands_of_jobs_is_told_in_short_and_everybody_ends() -> None:
    book, count = Holds(), 3000
    for job in range(count - 1):
        book.admit(job, f"u.{job}", 0.0, (f"u.{job + 1}",))
    with pytest.raises(JobFileError, match=r"\.\.\. 3000 jobs in all \.\.\.") as caught:
        book.admit(count, f"u.{count - 1}", 0.0, ("u.0",))
    assert len(caught.value.message) < 300
    book.refused(f"u.{count - 1}")
    started = []
    while ready := book.ready(0.0):
        started += ready
        for job in ready:
            book.ended(job)
    assert sorted(started) == list(range(count - 1))


def test_a_diamond_is_no_cycle() -> None:
    book = Holds()
    book.admit(1, "u.top", 0.0, ("u.left", "u.right"))
    book.admit(2, "u.left", 0.0, ("u.base",))
    book.admit(3, "u.right", 0.0, ("u.base",))
    book.admit(4, "u.base", 0.0, ())
    started: list[int] = []
    for _ in range(3):
        ready = book.ready(0.0)
        started += ready
        for job_id in ready:
            book.ended(job_id)
    assert started == [4, 2, 3, 1]


def test_interrupting_an_unknown_job_is_refused_without_touching_its_reply() -> None:
    with pytest.raises(JobFileError) as caught:
        Holds().interrupt("u.a", 5)
    assert (caught.value.field, caught.value.identity) == ("interrupt", None)


def test_interruptions_are_settled_when_their_job_ends() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    assert book.interrupt("u.a", 5) == 1
    assert book.interrupt("u.a", 6) == 1
    assert book.ended(1) == [5, 6]


def test_a_held_job_may_be_interrupted_and_is_never_ready_afterwards() -> None:
    book = Holds()
    book.admit(1, "u.late", 5.0, ())
    book.admit(2, "u.waiting", 0.0, ("u.never",))
    book.interrupt("u.late", 8)
    book.ended(1)
    book.interrupt("u.waiting", 9)
    book.ended(2)
    assert book.deadline_s == math.inf
    assert book.ready(99.0) == []
    book.admit(3, "u.never", 0.0, ())
    book.ended(3)
    assert len(book) == 0


def test_a_chain_of_thousands_of_waiting_jobs_is_released_one_by_one() -> None:
    book = Holds()
    count = 5000
    for index in range(count):
        book.admit(index, f"u.{index}", 0.0, (f"u.{index + 1}",) if index < count - 1 else ())
    order: list[int] = []
    while ready := book.ready(0.0):
        order += ready
        for job_id in ready:
            book.ended(job_id)
    assert order == list(reversed(range(count)))


def test_a_revision_whose_precursor_ends_while_held_waits_for_the_one_before_that() -> None:
    book = Holds()
    book.admit(1, "u.r0", 0.0, ())
    for number in range(1, 5):
        book.admit(1 + number, f"u.r{number}", 0.0, (), f"u.r{number - 1}")
    book.admit(9, "u.dependent", 0.0, ("u.r2",))
    assert book.ready(0.0) == [1]
    book.ended(3)  # the revision r2 was interrupted while it waits for r1
    assert book.ready(0.0) == [9]  # an ordinary dependency is met
    book.ended(4)  # r3 was interrupted, too
    book.ended(1)
    assert book.ready(0.0) == [2]
    assert book.ready(0.0) == []
    book.ended(2)
    assert book.ready(0.0) == [5]


def test_jobs_that_depend_on_a_refused_one_wait_no_longer_than_for_its_reply() -> None:
    book = Holds()
    book.admit(1, "u.early", 0.0, ("u.bad",))
    book.refused("u.bad")
    book.admit(2, "u.late", 0.0, ("u.bad",))
    assert book.ready(0.0) == [1, 2]
    book.admit(3, "u.live", 0.0, ())
    book.admit(4, "u.waiting", 0.0, ("u.live",))
    book.refused("u.live")  # a second job of this name is refused: the live job counts
    assert book.ready(0.0) == [3]


def test_a_job_that_needs_a_result_begins_after_one() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.b", 0.0, ("u.a",), needed=("u.a",))
    book.ready(0.0)
    book.ended(1, "result")
    assert (book.ready(0.0), book.lacking(2)) == ([2], None)


@pytest.mark.parametrize("outcome", ["failed", "interrupted", "wallclock-limit", "refused"])
def test_a_job_that_needs_a_result_is_named_at_once_when_there_will_be_none(outcome: str) -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.b", 1e9, ("u.a", "u.never"), needed=("u.a",))
    book.admit(3, "u.c", 0.0, ("u.a",))
    book.ready(0.0)
    if outcome == "refused":
        book.ended(1)
        book = Holds(finished={"u.a": "refused"})
        book.admit(2, "u.b", 1e9, ("u.a", "u.never"), needed=("u.a",))
        book.admit(3, "u.c", 0.0, ("u.a",))
    else:
        book.ended(1, outcome)
    assert book.ready(0.0) == [2, 3]
    assert (book.lacking(2), book.lacking(3)) == (("u.a", outcome), None)
    book.ended(2, "failed")
    book.admit(4, "u.never", 0.0, ())
    book.ended(4)
    assert book.ready(0.0) == []


def test_who_lacks_a_result_has_those_that_need_its_own_end_too() -> None:
    book = Holds()
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.b", 0.0, ("u.a",), needed=("u.a",))
    book.admit(3, "u.c", 0.0, ("u.b",), needed=("u.b",))
    book.ended(1, "failed")
    assert book.ready(0.0) == [2]
    book.ended(2, "failed")
    assert book.ready(0.0) == [3]
    assert book.lacking(3) == ("u.b", "failed")


@pytest.mark.parametrize(
    ("replied", "lacking"), [("result", None), ("", ("u.a", "")), ("failed", ("u.a", "failed"))]
)
def test_outcomes_of_jobs_long_ago_stand_in_their_replies(
    replied: str, lacking: tuple[str, str] | None
) -> None:
    book = Holds(replied=lambda identity: replied)
    book.admit(1, "u.b", 0.0, ("u.a",), needed=("u.a",))
    assert book.ready(0.0) == [1]
    assert book.lacking(1) == lacking


def test_a_suspect_is_held_until_its_trial_and_ends_at_once_if_it_lacks_a_result() -> None:
    book = Holds(is_suspect=lambda job: job < 3, started_s=100.0)
    book.admit(1, "u.a", 0.0, ())
    book.admit(2, "u.b", 0.0, ("u.c",), needed=("u.c",))
    book.admit(3, "u.c", 0.0, ())
    assert book.ready(100.0) == [3]
    assert book.deadline_s == 100.0 + QUIET_S
    book.ended(3, "failed")
    assert book.ready(101.0) == [2]
    assert book.ready(100.0 + QUIET_S) == [1]
    book.ended(1)
    assert book.deadline_s == math.inf
