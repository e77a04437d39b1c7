"""Clauses in a job tree: every worker gets the best clauses once, even while workers come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from clause_lists import clauses_of
from fake_context import FakeContext

from mallob_py.kit import Result, TreeMessage
from mallob_sat import sharing
from mallob_sat.clauses import Clauses, KnownClauses
from mallob_sat.figures import Figures
from mallob_sat.sharing import PERIOD_S, Sharing, literals_max


class FakeSearch:
    """A search that learns the clauses that a test sets, and remembers the clauses that it is given."""

    title = "fake"

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.cpu_s = clock
        self.to_tell = Clauses.none()
        self.skipped = 0
        self.asked = 0
        self.given: list[list[int]] = []
        self._known = KnownClauses()

    def learns(self, *lists: list[int]) -> None:
        self.to_tell = clauses_of(lists)

    def learned(self) -> Clauses:
        self.asked += 1
        told, self.to_tell = self._known.take_new(self.to_tell), Clauses.none()
        return told

    def skip_learned(self) -> None:
        self.skipped += 1

    def figures(self) -> Figures:
        return Figures(came=len(self.given), used=1, removed=2, conflicts=7, waited_s=0.5)

    def give(self, clauses: Clauses) -> int:
        new = self._known.take_new(clauses)
        self.given += new.lists()
        return len(new)


class Place(FakeContext):
    """A worker's place in a `Tree`."""

    def __init__(self, tree: Tree, index: int) -> None:
        super().__init__({}, index, {})
        self.tree = tree
        self.inbox: deque[TreeMessage] = deque()

    def send_to_parent(self, data: bytes) -> None:
        if self.index > 0:
            self.tree.deliver(self.index, (self.index - 1) // 2, data)

    def send_to_children(self, data: bytes) -> None:
        for child in self.children:
            self.tree.deliver(self.index, child, data)


class Tree:
    """Workers 0..n-1 of one job, each with its searches, and a clock that they share."""

    def __init__(
        self, workers: int, threads: int = 1, has_partners: Callable[[int], bool] = lambda count: count > 1
    ) -> None:
        self.has_partners = has_partners
        self.now = 0.0
        self.threads = threads
        self.places: dict[int, Place] = {}
        self.sharing: dict[int, Sharing] = {}
        self.searches: dict[int, list[FakeSearch]] = {}
        self.asleep: set[int] = set()
        for index in range(workers):
            self.join(index)

    def join(self, index: int) -> None:
        place = self.places[index] = Place(self, index)
        place.threads = self.threads
        self.sharing[index] = Sharing(place, self.has_partners, clock=lambda: self.now)
        self.searches[index] = [FakeSearch(lambda: self.now) for _ in range(self.threads)]
        self._tell_places()

    def leave(self, index: int) -> None:
        del self.places[index], self.sharing[index], self.searches[index]
        self._tell_places()

    def _tell_places(self) -> None:
        for index, place in self.places.items():
            place.volume = len(self.places)
            place.children = tuple(i for i in (2 * index + 1, 2 * index + 2) if i in self.places)

    def deliver(self, source: int, dest: int, data: bytes) -> None:
        if dest in self.places:
            self.places[dest].inbox.append(TreeMessage(source, data))
        else:
            self.places[source].inbox.append(TreeMessage(dest, data, returned=True))

    def play(self, periods: float) -> None:
        until_s = self.now + periods * PERIOD_S
        while self.now < until_s:
            self.now += PERIOD_S / 20
            for index, place in list(self.places.items()):
                if index not in self.asleep:
                    messages, place.inbox = list(place.inbox), deque()
                    self.sharing[index].turn(messages, self.searches[index])

    def given(self, index: int, thread: int = 0) -> list[list[int]]:
        return self.searches[index][thread].given


@pytest.mark.parametrize("workers", [2, 3, 7, 20])
def test_what_one_worker_learns_all_others_are_given_once(workers: int) -> None:
    tree = Tree(workers)
    source = workers - 1
    tree.searches[source][0].learns([1, -2], [3])
    tree.play(6)
    for index in range(workers):
        assert sorted(tree.given(index)) == ([] if index == source else [[1, -2], [3]])


def test_a_clause_that_two_workers_have_learned_goes_to_those_who_have_not() -> None:
    tree = Tree(4)
    tree.searches[1][0].learns([1, -2])
    tree.searches[2][0].learns([-2, 1], [5])
    tree.play(4)
    assert tree.given(0) == [[5], [1, -2]] or tree.given(0) == [[5], [-2, 1]]
    assert tree.given(1) == [[5]]
    assert tree.given(2) == []
    assert len(tree.given(3)) == 2


def test_solvers_of_one_worker_share_without_any_other_worker() -> None:
    tree = Tree(1, threads=3)
    tree.searches[0][1].learns([4, 5])
    tree.play(3)
    assert [tree.given(0, thread) for thread in range(3)] == [[[4, 5]], [], [[4, 5]]]


def test_a_worker_alone_looks_at_nothing_that_is_learned() -> None:
    tree = Tree(1)
    tree.searches[0][0].learns([1])
    tree.play(3)
    assert tree.searches[0][0].skipped >= 3
    assert len(tree.searches[0][0].to_tell) == 1


def test_what_no_other_search_can_take_is_not_looked_at_until_one_comes_that_can() -> None:
    tree = Tree(2, has_partners=lambda count: count > 2)
    tree.searches[1][0].learns([1])
    tree.play(3)
    assert all(tree.searches[index][0].skipped >= 3 for index in (0, 1))
    assert tree.searches[1][0].to_tell
    tree.join(2)
    tree.play(4)
    assert tree.given(2) == [[1]]


def test_the_best_clauses_of_all_are_shared_where_not_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "GIVEN_LITERALS_MAX", 10)
    tree = Tree(3)
    for index in range(3):
        base = 100 * (index + 1)
        tree.searches[index][0].learns(*([base + i, base + i + 1, base + i + 2] for i in range(10)), [base])
    tree.play(6)
    assert tree.given(0)[:2] == [[200], [300]]
    assert {200, 201, 202} in [set(clause) for clause in tree.given(0)]


def test_what_did_not_fit_follows_in_later_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "GIVEN_LITERALS_MAX", 10)
    tree = Tree(2)
    tree.searches[1][0].learns(*([i, i + 1] for i in range(1, 16)))
    tree.play(6)
    assert len(tree.given(0)) == 15


def test_the_limit_grows_with_the_workers_but_slower() -> None:
    sizes = [literals_max(workers) for workers in (1, 2, 4, 100, 1000)]
    assert sizes == sorted(sizes)
    per_worker = [size / workers for size, workers in zip(sizes, (1, 2, 4, 100, 1000), strict=True)]
    assert per_worker == sorted(per_worker, reverse=True)
    assert sizes[0] == sharing.GIVEN_LITERALS_MAX


def test_on_busy_cores_clauses_are_shared_as_often_for_the_solvers_and_at_last_by_the_clock() -> None:
    epochs = []
    for speed in (1.0, 0.25, 0.0):
        tree = Tree(2)
        for index in range(2):
            tree.searches[index] = [FakeSearch(lambda tree=tree, speed=speed: speed * tree.now)]  # type: ignore[misc]
        for told in range(200):
            tree.searches[1][0].learns([told + 1, told + 2])
            tree.play(0.05)
        epochs.append(tree.searches[1][0].asked)
    assert epochs[0] > 3 * epochs[1] > 6 * epochs[2] > 0


def test_below_the_root_learned_clauses_are_read_in_epochs_and_at_last_by_the_clock() -> None:
    tree = Tree(2)
    tree.play(2)
    tree.asleep = {0}
    asked = tree.searches[1][0].asked
    tree.play(2)
    assert tree.searches[1][0].asked == asked
    tree.play(16)
    assert asked < tree.searches[1][0].asked < asked + 12


def test_only_the_root_must_look_at_the_clock_often() -> None:
    tree = Tree(2)
    tree.play(2.1)
    assert tree.sharing[0].pause_s() < PERIOD_S / 2 < tree.sharing[1].pause_s()


def test_the_result_has_the_figures_of_all_workers() -> None:
    tree = Tree(3)
    for index in range(3):
        tree.searches[index][0].learns([index + 1, 9], [7, 8])
    tree.play(6)
    fields = tree.sharing[0].counted(Result(20)).fields
    rows = fields["figures"]
    assert [row["worker"] for row in rows] == [0, 1, 2]
    assert sum(row["given"] for row in rows) >= 4
    for row in rows:
        assert (row["solver"], row["learned"], row["passed on"]) == ("fake", 2, row["given"])
        assert (row["used"], row["removed"], row["conflicts"]) == (1, 2, 7)
        assert row["CPU [s]"] > 0
    assert rows[1]["came"] == rows[1]["taken"] == 2
    assert rows[1]["wait [ms]"] == 250


def test_no_more_figures_travel_than_a_result_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_FIGURES_MAX", 4)
    tree = Tree(7)
    tree.play(6)
    assert [row["worker"] for row in tree.sharing[0].counted(Result(20)).fields["figures"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("batches", [1, 40])
def test_a_worker_that_comes_later_gets_the_best_so_far(batches: int) -> None:
    tree = Tree(2)
    tree.searches[0][0].learns([1], [2, 3])
    tree.play(3 + batches)
    tree.join(2)
    tree.play(2)
    assert tree.given(2) == [[1], [2, 3]]
    assert tree.given(1) == [[1], [2, 3]]


def test_a_worker_that_was_suspended_gets_what_it_has_missed() -> None:
    tree = Tree(3)
    tree.play(2)
    tree.asleep = {2}
    tree.searches[0][0].learns([1])
    tree.places[0].children = (1,)
    tree.play(4)
    assert tree.given(1) == [[1]]
    tree.asleep = set()
    tree.places[0].children = (1, 2)
    tree.play(4)
    assert tree.given(2) == [[1]]


def test_a_worker_that_leaves_in_the_middle_holds_nobody_up() -> None:
    tree = Tree(7)
    tree.play(1.1)
    tree.leave(6)
    tree.leave(5)
    tree.leave(2)
    tree.searches[3][0].learns([7])
    tree.play(5)
    assert [tree.given(index) for index in (0, 1, 4)] == [[[7]]] * 3


def test_foreign_messages_are_left_alone() -> None:
    tree = Tree(2)
    tree.places[0].inbox.append(TreeMessage(1, b"something else"))
    tree.play(2)
