"""All workers learn the best solution of a search; the solution survives if a bag was pruned by it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fake_context import FakeContext

from mallob_py.kit import Payload, Result
from mallob_py.kit.bags import Bag, BagApplication, BagError, BrokenLaw, check_bag
from mallob_py.kit.bags.books import Books
from mallob_py.kit.bags.incumbent import TELL_S, Incumbent
from mallob_py.kit.bags.ledger import NEIGHBOURS, Ledger
from mallob_py.kit.bags.messages import Better, Lend, Return, Settle, WorkWanted
from mallob_py.simulation.bags import SearchBag, SearchWork

ROOT, LEFT = (0, 10), (1, 11)
WORK = SearchWork(seed=5, depth=14)
LEAST = WORK.least()


class Search(BagApplication):
    """The simulator's search application, with bags of the class `kind`."""

    name = "SEARCH"
    minimizes = True

    def __init__(self, kind: type[SearchBag] = SearchBag) -> None:
        self.kind = kind

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return self.kind(WORK.first_bag().nodes)

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return self.kind(WORK.bag_from_bytes(data).nodes)


def two_workers() -> tuple[Ledger, Ledger, Lend]:
    """Return the ledgers of a root and a worker, and a loan from the root that the worker has not received
    yet.
    """
    root, left = Ledger(WORK, seed=1), Ledger(WORK, seed=2)
    root.open_root(0.0)
    root.receive(LEFT, WorkWanted(None, 7, 0, 0), 0.0)
    (loan,) = (message for _, message in root.outbox if isinstance(message, Lend))
    root.outbox.clear()
    return root, left, loan


def search_on(ledger: Ledger, now: float) -> None:
    while ledger.process(64, now):
        pass


def sent_by(ledger: Ledger, kind: type) -> Any:
    sent = [message for _, message in ledger.outbox if isinstance(message, kind)]
    ledger.outbox.clear()
    return sent[-1]


def test_neighbours_are_told_at_once_and_then_once_in_a_while() -> None:
    incumbent, told = Incumbent(minimizes=False), []
    assert incumbent.found((3, 1), 0.0)
    assert not incumbent.found((3, 2), 0.0)
    incumbent.spread(0.0, told.append)
    assert incumbent.found((4,), 0.0)
    assert incumbent.found((5,), 0.0)
    incumbent.spread(TELL_S / 2, told.append)
    assert len(told) == 1
    assert incumbent.tell_s == TELL_S
    incumbent.spread(TELL_S, told.append)
    assert told[1:] == [incumbent.data]
    assert incumbent.tell_s == math.inf


def test_who_hears_of_a_better_solution_learns_it_and_tells_others() -> None:
    root, left, loan = two_workers()
    left.receive(ROOT, loan, 0.0)
    search_on(left, 0.0)
    better = sent_by(left, Better)
    root.receive(LEFT, better, 0.0)
    assert root.books.best == left.books.best
    assert root.books.root is not None
    assert isinstance(root.books.root.bag, SearchBag)
    assert root.books.root.bag.best() == left.books.best
    assert (NEIGHBOURS, better) in root.outbox
    root.outbox.clear()
    root.receive(LEFT, better, 1.0)
    assert (NEIGHBOURS, better) not in root.outbox


def test_who_borrows_knows_what_the_lender_does() -> None:
    root, left, _ = two_workers()
    while root.books.best is None:
        root.process(8, 0.0)
    root.receive((2, 12), WorkWanted(None, 8, 0, 0), 0.0)
    left.receive(ROOT, sent_by(root, Lend), 0.0)
    assert left.books.best == root.books.best


def test_a_settlement_in_part_brings_what_its_tasks_were_pruned_by() -> None:
    root, left, loan = two_workers()
    left.receive(ROOT, loan, 0.0)
    while left.books.best is None:
        left.process(8, 0.0)
    left.outbox.clear()
    left.tick(2.0)
    settle = sent_by(left, Settle)
    assert not settle.final
    root.receive(LEFT, settle, 2.0)
    assert Books.counted(root.books.checkpoint()).best == left.books.best


def test_who_leaves_brings_what_its_tasks_were_pruned_by() -> None:
    root, left, loan = two_workers()
    left.receive(ROOT, loan, 0.0)
    while left.books.best is None:
        left.process(8, 0.0)
    left.outbox.clear()
    left.leave(0.5)
    root.receive(LEFT, sent_by(left, Return), 0.5)
    assert root.books.best == left.books.best


def test_a_root_that_goes_on_knows_the_best_of_its_checkpoint() -> None:
    root, successor = Ledger(WORK, seed=1), Ledger(WORK, seed=2)
    root.open_root(0.0)
    while root.books.best is None:
        root.process(8, 0.0)
    successor.open_root(1.0, root.books.checkpoint())
    assert successor.books.best == root.books.best
    search_on(successor, 1.0)
    assert successor.books.is_finished
    assert successor.books.best[0] == LEAST


@pytest.mark.parametrize(
    "best", [np.int64(3), (), ("a",), True, [3], math.nan, math.inf, (-math.inf, 1), 2**64, -(10**400)]
)
def test_a_best_that_cannot_be_compared_is_refused(best: object) -> None:
    with pytest.raises(BagError, match="the best of a bag must be a number"):
        Incumbent(minimizes=False).found(best, 0.0)


class Offers(FakeContext):
    """A context that keeps the worker's offers."""

    def __init__(self) -> None:
        super().__init__({}, 0, {})
        self.offers: list[tuple[Result | None, float | None]] = []

    def offer(
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        self.offers.append((result, value))

    def last_checkpoint(self) -> bytes | None:
        return None


def test_the_root_offers_each_better_solution_and_answers_with_the_last() -> None:
    context = Offers()
    result = Search().run(context)
    assert result is not None
    assert result.fields["value"] == LEAST
    values = [value for _, value in context.offers if value is not None]
    assert values == sorted(values, reverse=True)


class ForgetsWhatItLearns(SearchBag):
    def learn(self, best: Any) -> None:
        pass


class PrunesTooMuch(SearchBag):
    def learn(self, best: Any) -> None:
        super().learn(best)
        self.nodes = []


class HasAWrongBest(SearchBag):
    def best(self) -> Any:
        return None if super().best() is None else "much"


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (ForgetsWhatItLearns, r"after learn\(.*\): the best is"),
        (PrunesTooMuch, r"after learn\(.*\): the best is"),
        (HasAWrongBest, "best: the best of a bag must be a number"),
    ],
)
def test_a_broken_law_of_searches_is_named(kind: type[SearchBag], law: str) -> None:
    with pytest.raises(BrokenLaw, match=law):
        check_bag(Search(kind), {})


def test_a_search_keeps_the_laws_though_its_counts_depend_on_the_order() -> None:
    assert "best, learn, take_result" in check_bag(Search(), {})


class Fails(SearchBag):
    def process(self, count: int) -> int:
        raise ValueError("no such node")

    def current_task(self) -> str:
        return f"node {self.nodes[-1][0] % 10}"


def test_the_task_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match="no such node") as raised:
        Search(Fails).run(Offers())
    node = WORK.first_bag().nodes[-1][0] % 10
    assert raised.value.__notes__ == [f"Fails.process(1) raised this at node {node}"]


class HasAWrongResult(SearchBag):
    def take_result(self) -> Any:
        return {"no": "result"}


def test_a_result_of_a_wrong_kind_is_refused_though_nobody_else_sees_it() -> None:
    with pytest.raises(Exception, match="the result of a bag must be a number"):
        Search(HasAWrongResult).run(Offers())
