"""Clauses between two processes arrive whole and in order, and no process ever waits for the other."""

from collections.abc import Iterator

import pytest
from clause_lists import clauses_of

from mallob_sat.clauses import ClausePipe, Clauses

Ends = tuple[ClausePipe, ClausePipe]


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = ClausePipe.pair()
    yield pair
    for end in pair:
        end.close()


def lists(received: list[Clauses]) -> list[list[list[int]]]:
    return [clauses.lists() for clauses in received]


def test_both_ends_receive_what_the_other_has_sent(ends: Ends) -> None:
    here, there = ends
    here.send(clauses_of([[1], [2, -3]]))
    here.send(clauses_of([[-70000, 4, 5]]))
    there.send(clauses_of([[6]]))
    assert lists(there.received()) == [[[1], [2, -3]], [[-70000, 4, 5]]]
    assert lists(here.received()) == [[[6]]]
    assert there.received() == []


def test_the_time_on_the_way_is_counted_for_each_clause(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr("mallob_sat.clauses.time.monotonic", lambda: now[0])
    ends[0].send(clauses_of([[1], [2, -3]]))
    now[0] = 5.25
    ends[1].received()
    assert (ends[0].waited_s, ends[1].waited_s) == (0.0, 0.5)


def test_nothing_is_sent_for_no_clauses(ends: Ends) -> None:
    ends[0].send(Clauses.none())
    assert ends[1].received() == []


def test_what_the_other_end_does_not_read_is_dropped_and_what_it_reads_is_whole(ends: Ends) -> None:
    here, there = ends
    for number in range(1, 201):
        here.send(clauses_of([[number, other] for other in range(1000, 3000)]))
    found = lists(there.received())
    while more := (here.send(clauses_of([[1, 2]])), there.received())[1]:
        found += lists(more)
        if found[-1] == [[1, 2]]:
            break
    whole = [clauses for clauses in found if clauses != [[1, 2]]]
    assert 0 < len(whole) < 200
    assert all(len(clauses) == 2000 for clauses in whole)
    assert [clauses[0][0] for clauses in whole] == list(range(1, len(whole) + 1))


def test_an_end_that_is_closed_does_no_harm(ends: Ends) -> None:
    here, there = ends
    there.close()
    here.send(clauses_of([[1]]))
    here.send(clauses_of([[2]]))
    assert here.received() == []
