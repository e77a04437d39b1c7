"""The book of calls: whatever workers do, every call gets exactly one outcome."""

import random

import pytest
from seeds import seeds

from mallob_py.api.calls.book import LOSSES_MAX, OVERDUE_S, SILENT_S, Assignment, Book, Group


class Play:
    """A book, and workers that answer some calls, give calls back, are lost, go away and come back, all at
    random.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.book = Book()
        self.now = 0.0
        self.workers: dict[int, dict[int, tuple[Group, list[int]]]] = {}
        self.away: set[int] = set()
        self.joined = 0
        self.accepted: list[tuple[Group, int]] = []
        self.failed: list[tuple[Group, int]] = []

    def join(self) -> None:
        self.joined += 1
        self.workers[self.joined] = {}
        self.book.join(self.joined, self.now)
        self.book.place(self.joined, len(self.workers) - 1, len(self.workers), self.now)

    def assign(self) -> None:
        for made in self.book.assignments(self.now):
            assert made.worker not in self.away
            assert made.calls
            self.workers[made.worker][made.batch] = (made.group, list(made.calls))

    def step(self) -> None:
        self.now += self.random.random() * 0.05
        self.book.look_for_silent(self.now)
        self.assign()
        deed = self.random.random()
        worker = self.random.choice(list(self.workers)) if self.workers else None
        if worker is None or (deed < 0.05 and len(self.workers) < 6):
            self.join()
        elif deed < 0.10:
            self.lose(worker)
        elif deed < 0.15:
            self.go(worker)
        elif deed < 0.20 and self.away:
            self.come(self.random.choice(list(self.away)))
        elif deed < 0.30:
            for number, batches in self.book.recalls(self.now).items():
                for batch in batches:
                    self.give_back(number, batch)
        elif worker not in self.away:
            self.answer(worker)

    def answer(self, worker: int) -> None:
        if self.workers[worker]:
            batch, (group, calls) = next(iter(self.workers[worker].items()))
            count = self.random.randint(1, len(calls))
            answered, left = calls[:count], calls[count:]
            new = self.book.results(worker, batch, answered, count * 1e-4, self.now)
            self.accepted += ((group, call) for call in new)
            self.keep(worker, batch, group, left)

    def give_back(self, worker: int, batch: int) -> None:
        group, calls = self.workers[worker][batch]
        count = self.random.randint(0, len(calls) - 1)
        self.book.given_back(worker, batch, calls[len(calls) - count :])
        self.keep(worker, batch, group, calls[: len(calls) - count])

    def keep(self, worker: int, batch: int, group: Group, calls: list[int]) -> None:
        if calls:
            self.workers[worker][batch] = (group, calls)
        else:
            del self.workers[worker][batch]

    def lose(self, worker: int) -> None:
        self.failed += self.book.lose(worker, is_to_blame=self.random.random() < 0.3)
        del self.workers[worker]
        self.away.discard(worker)

    def go(self, worker: int) -> None:
        """Suspend this worker and all others but one, which reports a volume of 1."""
        others = [each for each in self.workers if each != worker]
        if others:
            self.book.place(others[0], 0, 1, self.now)
            self.away = {each for each in self.workers if each != others[0]}

    def come(self, worker: int) -> None:
        """Let the worker come back: it reports a volume of 1000."""
        self.book.place(worker, 0, 1000, self.now)
        self.book.place(worker, 100 + worker, 1000, self.now)
        self.away.discard(worker)


@pytest.mark.parametrize("seed", seeds(150))
def test_each_call_has_one_outcome_whatever_workers_do(seed: int) -> None:
    play = Play(seed)
    groups = [Group(None, play.random.randint(1, 300), chunk=play.random.choice((0, 0, 1, 7)))]
    play.book.add(groups[0])
    steps = 0
    while play.book.left:
        steps += 1
        assert steps < 100_000
        if play.random.random() < 0.01 and len(groups) < 5:
            groups.append(Group(None, play.random.randint(1, 50)))
            play.book.add(groups[-1])
        if play.random.random() < 0.01 and play.book.left:
            play.book.add(groups[-1], 3)
        play.step()
    outcomes = play.accepted + play.failed
    assert sorted((id(group), call) for group, call in outcomes) == sorted(
        (id(group), call) for group in groups for call in range(len(group.state))
    )
    assert play.book.done == len(outcomes)
    assert not any(group.has_waiting and group.left for group in groups)


def assigned(book: Book, now: float = 0.0) -> list[Assignment]:
    return list(book.assignments(now))


def test_batches_are_as_large_as_calls_are_short() -> None:
    book, group = Book(), Group(None, 10_000)
    book.add(group)
    book.join(1, 0.0)
    (first,) = assigned(book)
    assert len(first.calls) == 1
    book.results(1, first.batch, first.calls, 1e-5, 0.0)
    assert [len(each.calls) for each in assigned(book)] == [400]
    long = Book()
    group = Group(None, 10)
    long.add(group)
    long.join(1, 0.0)
    (first,) = assigned(long)
    long.results(1, first.batch, first.calls, 2.0, 0.0)
    assert [len(each.calls) for each in assigned(long)] == [1]


def test_a_call_that_has_lost_three_workers_on_its_own_fails() -> None:
    book, group = Book(), Group(None, 2)
    book.add(group)
    for worker in range(LOSSES_MAX):
        assert book.left == 2
        book.join(worker, 0.0)
        assigned(book)
        failed = book.lose(worker)
    assert failed == [(group, 0)]
    assert book.left == 1


def test_who_loses_several_calls_blames_none_but_has_them_go_out_alone() -> None:
    book, group = Book(), Group(None, 3, chunk=3)
    book.add(group)
    book.join(1, 0.0)
    (batch,) = assigned(book)
    assert len(batch.calls) == 3
    assert book.lose(1) == []
    book.join(2, 0.0)
    assert [list(each.calls) for each in assigned(book)] == [[0]]


def test_what_waits_behind_a_long_call_is_asked_back_and_done_elsewhere() -> None:
    book, group = Book(), Group(None, 4, chunk=4)
    book.add(group)
    book.join(1, 0.0)
    (batch,) = assigned(book)
    book.join(2, 0.0)
    assert assigned(book) == []
    assert book.recalls(OVERDUE_S / 2) == {}
    assert book.recalls(2 * OVERDUE_S) == {1: [batch.batch]}
    assert book.recalls(3 * OVERDUE_S) == {}
    book.given_back(1, batch.batch, [1, 2, 3])
    (other,) = assigned(book, 1.0)
    assert (other.worker, list(other.calls)) == (2, [1, 2, 3])


def test_a_long_call_of_a_worker_that_is_away_is_done_anew_when_nothing_else_is_to_be_done() -> None:
    book, group = Book(), Group(None, 2)
    book.add(group)
    for worker in (1, 2):
        book.join(worker, 0.0)
        book.place(worker, worker - 1, 2, 0.0)
    first, second = assigned(book)
    book.place(1, 0, 1, 0.1)
    assert assigned(book, 0.2) == []
    book.results(1, first.batch, first.calls, 1.0, 1.0)
    (again,) = assigned(book, 1.0)
    assert (again.worker, again.calls) == (1, second.calls)
    assert book.results(1, again.batch, again.calls, 1.0, 2.0) == list(again.calls)
    assert book.results(2, second.batch, second.calls, 1.0, 3.0) == []
    assert book.left == 0


def test_demand_is_for_the_calls_left_and_keeps_who_is_busy() -> None:
    book, group = Book(), Group(None, 3)
    book.add(group)
    assert book.demand() == 3
    book.join(1, 0.0)
    book.place(1, 6, 7, 0.0)
    (batch,) = assigned(book)
    assert book.demand() == 7
    book.results(1, batch.batch, batch.calls, 1e-6, 0.0)
    assert book.demand() == 1


def test_a_group_that_is_cancelled_has_no_further_calls() -> None:
    book, group = Book(), Group(None, 5)
    book.add(group)
    book.join(1, 0.0)
    (batch,) = assigned(book)
    assert book.cancel_waiting(group) == [1, 2, 3, 4]
    assert book.results(1, batch.batch, batch.calls, 0.1, 0.1) == [0]
    assert assigned(book, 0.1) == []
    assert book.left == 0


def test_who_joins_beyond_the_number_of_workers_that_the_root_tells_gets_no_call() -> None:
    book, group = Book(), Group(None, 1)
    book.join(1, 0.0)
    book.place(1, 0, 1, 0.0)
    book.join(2, 0.0)
    book.place(2, 1, 2, 0.0)  # worker 2 does not know yet that the volume is 1
    book.lose(1)
    book.add(group)
    assert assigned(book) == []
    book.join(3, 0.1)
    book.place(3, 0, 1, 0.1)
    assert [each.worker for each in assigned(book)] == [3]


def test_the_call_of_a_worker_that_says_nothing_is_done_by_another_one_too() -> None:
    book, group = Book(), Group(None, 1)
    book.add(group)
    for worker in (1, 2):
        book.join(worker, 0.0)
        book.place(worker, worker - 1, 2, 0.0)
    (first,) = assigned(book)
    book.place(2, 1, 2, SILENT_S)
    book.look_for_silent(SILENT_S / 2)
    assert assigned(book, SILENT_S / 2) == []
    book.look_for_silent(2 * SILENT_S)
    (second,) = assigned(book, 2 * SILENT_S)
    assert (first.worker, second.worker, second.calls) == (1, 2, first.calls)
    assert book.results(1, first.batch, first.calls, 3.0, 2 * SILENT_S) == [0]
    assert book.results(2, second.batch, second.calls, 3.0, 2 * SILENT_S) == []


def test_calls_that_have_ended_before_they_were_sent_are_skipped_however_many_there_are() -> None:
    book, last = Book(), Group(None, 3000)
    for group in [*(Group(None, 1) for _ in range(3000)), last]:
        book.add(group)
        book.done_without_worker(group, range(len(group.state) - (group is last)))
    book.join(1, 0.0)
    (made,) = assigned(book)
    assert (made.group, list(made.calls)) == (last, [2999])
