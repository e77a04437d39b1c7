"""Which revisions form a chain, in any order of arrival and whatever goes wrong with them."""

import array
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.runtime import worker_wire as wire
from mallob_py.service import JobFileError
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job

APPLICATIONS = {"SAT": InputUse.REVISIONS, "OTHER": InputUse.REVISIONS}


def packed(*literals: int) -> bytes:
    return array.array("i", literals).tobytes()


def file(name: str, precursor: str = "", **fields: Any) -> JobFile:
    job = {"user": "u", "name": name, "incremental": True} | fields
    if precursor:
        job["precursor"] = f"u.{precursor}"
    parsed = parse_job(json.dumps(job).encode(), APPLICATIONS)
    assert isinstance(parsed, JobFile)
    return parsed


def admit(book: ChainBook, job: int, name: str, precursor: str = "", now: float = 0.0, **fields: Any) -> None:
    one = file(name, precursor, **fields)
    book.check(one)
    book.admit(job, one, now)


def refusal(book: ChainBook, name: str, precursor: str = "", **fields: Any) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        book.check(file(name, precursor, **fields))
    assert caught.value.identity == f"u.{name}"
    return caught.value


def before(book: ChainBook, job: int) -> wire.Before:
    place = book.place_of(job)
    assert place is not None
    return place[0].before(place[1])


def was_read(book: ChainBook, job: int, data: bytes) -> None:
    place = book.place_of(job)
    assert place is not None
    place[0].was_read(place[1], wire.Inline(data))


def end(book: ChainBook, job: int) -> None:
    chain = book.chain_to_end(job)
    assert chain is not None
    book.end(chain, "its chain is done")
    book.ended(job, None, 0.0)


@pytest.fixture
def book() -> ChainBook:
    """Return a book with a chain of two revisions: a (job 1) and b (job 2)."""
    book = ChainBook(timeout_s=10.0)
    admit(book, 1, "a", literals=[1, 0])
    admit(book, 2, "b", "a", literals=[2, 0])
    return book


def test_revisions_are_numbered_and_the_chain_has_the_id_of_its_first(book: ChainBook) -> None:
    places = [book.place_of(job) for job in (1, 2)]
    assert [(place[0].first, place[1].number) for place in places if place] == [(1, 0), (1, 1)]
    assert book.place_of(3) is None


def test_a_revision_is_read_on_top_of_what_the_one_before_has_given(book: ChainBook) -> None:
    assert before(book, 1) == wire.Before(0, None, ())
    was_read(book, 1, b"one")
    assert before(book, 2) == wire.Before(1, wire.Inline(b"one"), ())


def test_a_revision_that_was_never_read_is_read_with_the_next(book: ChainBook) -> None:
    admit(book, 3, "c", "b")
    assert before(book, 3).inputs == (
        wire.EarlierInput("u.a", (), packed(1, 0), {}),
        wire.EarlierInput("u.b", (), packed(2, 0), {}),
    )
    was_read(book, 3, b"all")
    admit(book, 4, "d", "c")
    assert before(book, 4) == wire.Before(3, wire.Inline(b"all"), ())


def test_a_chain_does_not_branch(book: ChainBook) -> None:
    error = refusal(book, "c", "a")
    assert error.field == "precursor"
    assert "u.a is the precursor of u.b already" in error.message


def test_a_precursor_that_nobody_knows_is_refused(book: ChainBook) -> None:
    assert "not incremental, refused, or never seen" in refusal(book, "c", "x").message


def test_names_in_a_chain_are_not_used_twice(book: ChainBook) -> None:
    assert refusal(book, "a", "b").field == "name"
    assert refusal(book, "a").field == "name"


def test_a_chain_is_of_one_application(book: ChainBook) -> None:
    assert refusal(book, "c", "b", application="OTHER").field == "application"
    book.check(file("c", "b", application="OTHER", done=True))


def test_nothing_follows_the_end(book: ChainBook) -> None:
    admit(book, 3, "end", "b", done=True)
    assert "done already" in refusal(book, "c", "b").message
    assert "done already" in refusal(book, "end2", "b", done=True).message
    end(book, 3)
    assert len(book) == 0
    assert "its chain is done" in refusal(book, "c", "b").message
    assert "its chain is done" in refusal(book, "c", "a").message
    book.check(file("a"))  # names are free again


def test_an_end_that_was_interrupted_ends_nothing(book: ChainBook) -> None:
    admit(book, 3, "end", "b", done=True)
    book.ended(3, None, 0.0)
    book.check(file("c", "b"))


def test_a_revision_that_cannot_be_read_leaves_the_chain_with_all_that_wait_for_it(book: ChainBook) -> None:
    was_read(book, 1, b"one")
    admit(book, 3, "c", "b")
    admit(book, 4, "d", "c")
    book.drop(2)
    why = "u.b, an earlier revision of its chain, has failed: see its reply"
    assert book.orphaned(3) == book.orphaned(4) == why
    assert book.place_of(2) is book.place_of(4) is None
    admit(book, 5, "b", "a")  # a correct revision with b's name
    assert before(book, 5) == wire.Before(1, wire.Inline(b"one"), ())
    book.ended(3, None, 0.0)
    assert book.orphaned(3) is None


def test_a_chain_whose_first_revision_cannot_be_read_is_none(book: ChainBook) -> None:
    admit(book, 3, "end", "b", done=True)
    book.drop(1)
    assert len(book) == 0
    assert book.orphaned(2) is not None
    assert book.chain_to_end(3) is None


def test_a_revision_inherits_its_precursors_configuration_but_not_the_form_of_its_input() -> None:
    book = ChainBook(10.0)
    admit(book, 1, "a", configuration={"solvers": ["ergo"], "seed": 1, "content-mode": "raw"})
    admit(book, 2, "b", "a", configuration={"seed": 2})
    place = book.place_of(2)
    assert place is not None
    assert place[1].configuration == {"solvers": ["ergo"], "seed": 2}


def test_the_place_of_the_last_root_is_remembered(book: ChainBook) -> None:
    place = book.place_of(1)
    assert place is not None
    book.ended(1, 5, 0.0)
    book.ended(2, None, 0.0)  # job 2 never got a worker
    assert place[0].root == 5


def test_a_chain_that_waits_too_long_expires_but_none_with_a_live_revision(book: ChainBook) -> None:
    book.ended(1, None, 5.0)
    assert list(book.expired(100.0)) == []
    book.ended(2, None, 100.0)
    assert book.next_deadline() == 110.0
    assert list(book.expired(109.0)) == []
    (chain,) = book.expired(110.0)
    book.end(chain, "too late")
    assert "too late" in refusal(book, "c", "b").message
    assert len(book) == 0


def test_a_chain_that_is_being_ended_does_not_expire(book: ChainBook) -> None:
    for job in (1, 2):
        book.ended(job, None, 0.0)
    admit(book, 3, "end", "b", done=True)
    assert list(book.expired(100.0)) == []


def test_a_chain_expires_although_revisions_that_waited_for_a_failed_one_have_left_it() -> None:
    book = ChainBook(10.0)
    admit(book, 1, "a")
    book.ended(1, None, 0.0)
    admit(book, 2, "b", "a")
    admit(book, 3, "c", "b")
    book.drop(2)
    book.ended(2, None, 1.0)
    book.ended(3, None, 2.0)
    assert [chain.first for chain in book.expired(20.0)] == [1]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("rwde"), st.floats(0.0, 20.0)), max_size=40))
def test_chains_expire_when_they_have_waited_so_long_whatever_came_before(
    steps: list[tuple[int, str, float]],
) -> None:
    """The book is compared with a check of every chain. Steps: r is a revision, w its reply, d `done`, e the
    end of the job of `done`.
    """
    book, now, next_job = ChainBook(10.0), 0.0, 1
    last, live, ending, news, first = {}, {}, {}, {}, {}
    for which, step, pause_s in steps:
        now += pause_s
        waiting = {one for one in last if not live.get(one) and one not in ending}
        over = {one for one in waiting if news[one] + 10.0 <= now}
        expected = min((news[one] + 10.0 for one in waiting), default=float("inf"))
        assert book.next_deadline() == expected
        for chain in book.expired(now):
            (one,) = [one for one in over if first[one] == chain.first]
            book.end(chain, "late")
            over.remove(one)
            del last[one]
        assert not over
        if step == "r" and which not in ending:
            name = f"j{next_job}"
            admit(book, next_job, name, last.get(which, ""), now)
            first[which] = first[which] if which in last else next_job
            last[which], news[which] = name, now
            live.setdefault(which, []).append(next_job)
        elif step == "w" and live.get(which):
            book.ended(live[which].pop(0), None, now)
            news[which] = now
        elif step == "d" and which in last and which not in ending:
            admit(book, next_job, f"j{next_job}", last[which], now, done=True)
            ending[which], news[which] = next_job, now
        elif step == "e" and which in ending:
            book.ended(ending.pop(which), None, now)
        next_job += 1


def test_answered_revisions_are_known_again_after_a_restart() -> None:
    book = ChainBook(10.0)
    assert book.restore(1, 1, file("a", literals=[1, 0]), 0.0)
    assert book.restore(4, 1, file("b", "a"), 0.0)
    assert not book.restore(9, 1, file("d", "c"), 0.0)
    assert not book.restore(9, 8, file("d", "c"), 0.0)
    admit(book, 10, "c", "b", literals=[2, 0])
    assert [one.identity for one in before(book, 10).inputs] == ["u.a", "u.b"]
    assert book.next_deadline() == float("inf")


def test_of_two_answered_revisions_of_one_name_the_first_is_known_again() -> None:
    book = ChainBook(10.0)
    assert book.restore(1, 1, file("a", literals=[1, 0]), 0.0)
    assert book.restore(2, 1, file("b", "a"), 0.0)
    assert not book.restore(3, 1, file("a", "b"), 0.0)
    assert not book.restore(4, 4, file("b"), 0.0)
    (chain,) = book.expired(100.0)
    book.end(chain, "it has expired")
    assert len(book) == 0


def test_what_is_remembered_of_ended_chains_is_bounded() -> None:
    book = ChainBook(10.0, ended_max=10)
    for number in range(11):
        admit(book, 2 * number + 1, f"a{number}")
        admit(book, 2 * number + 2, "end", f"a{number}", done=True)
        end(book, 2 * number + 2)
    assert "never seen" in refusal(book, "b", "a0").message
    assert "is done" in refusal(book, "b", "a1").message
