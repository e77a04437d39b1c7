"""The bundled bags keep the laws of bags; a bag that breaks a law gets an error that names the law."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mallob_bags.queens import QueensApplication
from mallob_py.cli import main as main_module
from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication, BagError, BrokenLaw, NothingToCheck, check_bag
from mallob_py.kit.bags.ledger import Ledger
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.simulation.bags import TreeBag, TreeWork

WORK = TreeWork(seed=5, depth=8)


class Tree(BagApplication):
    """The simulator's tree application, with bags of the class `kind`."""

    name = "TREE"

    def __init__(self, kind: type[TreeBag] = TreeBag) -> None:
        self.kind = kind

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return self.kind([(splitmix64(each), 6) for each in range(16)])

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return self.kind(WORK.bag_from_bytes(data).nodes)


class LosesTasks(TreeBag):
    def split(self) -> TreeBag | None:
        given = super().split()
        if given is not None:
            given.nodes = given.nodes[1:] or given.nodes
        return given


class DoublesTasks(TreeBag):
    def split(self) -> TreeBag | None:
        kept = list(self.nodes)
        given = super().split()
        self.nodes = kept
        return given


class ForgetsOnMerging(TreeBag):
    def merge(self, other: Bag) -> None:
        assert isinstance(other, TreeBag)
        self.nodes = other.nodes


class GivesNothing(TreeBag):
    def split(self) -> TreeBag | None:
        return GivesNothing([])


class GivesTooMany(TreeBag):
    def split_into(self, parts: int) -> list[Bag]:
        return super().split_into(parts + 1)


class ForgetsInBytes(TreeBag):
    def to_bytes(self) -> bytes:
        return np.array(self.nodes[1:] or self.nodes, dtype=np.uint64).tobytes()


class IsEmptiedByBytes(TreeBag):
    def to_bytes(self) -> bytes:
        data = super().to_bytes()
        self.nodes = self.nodes[:1]
        return data


class IsNoBytes(TreeBag):
    def to_bytes(self) -> bytes:
        return self.nodes  # type: ignore[return-value]


class NeverEnds(TreeBag):
    def process(self, count: int) -> int:
        return 0


class DoesNotBeginAnew(TreeBag):
    def take_result(self) -> Any:
        return np.array([self._count], dtype=np.uint64)


class GivesItsOwn(TreeBag):
    def take_result(self) -> Any:
        if not hasattr(self, "own"):
            self.own = np.zeros(2, dtype=np.uint64)
        self.own[:] = super().take_result()
        return self.own


class ExpectsNodesOfTheStack(TreeBag):
    """A bag that expects only the nodes on its stack, although these trees have some 80 nodes."""

    def expected_tasks(self) -> float:
        return float(len(self.nodes))


class ExpectsTooMuch(TreeBag):
    def expected_tasks(self) -> float:
        return 1e5 * len(self.nodes)


class ExpectsLessThanNothing(TreeBag):
    def expected_tasks(self) -> float:
        return -1.0


class WorksInParts(TreeBag):
    """A bag whose `process` returns one task too many."""

    def process(self, count: int) -> int:
        return super().process(count) + 1


class CountsInParts(TreeBag):
    def process(self, count: int) -> int:
        return super().process(count) / 1  # type: ignore[return-value]


class HasAnOddResult(TreeBag):
    def take_result(self) -> Any:
        return {"tasks": self._count}


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (LosesTasks, r"split loses or doubles tasks: \d+ tasks are done of a piece with \d+ tasks"),
        (DoublesTasks, "split loses or doubles tasks"),
        (ForgetsOnMerging, "merge of what split has given loses or doubles tasks"),
        (GivesNothing, "split gives an empty bag"),
        (GivesTooMany, r"split_into\(3\) gives 4 bags"),
        (ForgetsInBytes, r"bag_from_bytes\(to_bytes\(\)\) is another bag"),
        (IsEmptiedByBytes, "to_bytes changes the bag"),
        (IsNoBytes, "to_bytes gives list, not bytes"),
        (CountsInParts, r"process\(\d+\) gives float, not the number of tasks done"),
        (NeverEnds, r"process\(\d+\) does no task although the bag is not empty"),
        (DoesNotBeginAnew, "take_result gives a result that it has given before"),
        (GivesItsOwn, "take_result gives an object that later tasks change"),
        (
            ExpectsNodesOfTheStack,
            r"expected_tasks and process count differently: for a piece of ExpectsNodesOfTheStack, they give"
            r" \d+ and \d+ tasks",
        ),
        (ExpectsTooMuch, "expected_tasks and process count differently"),
        (ExpectsLessThanNothing, r"expected_tasks gives -1\.0; it must give a number"),
        (HasAnOddResult, "take_result: the result of a bag must be a number"),
    ],
)
def test_a_broken_law_of_a_bag_is_named(kind: type[TreeBag], law: str) -> None:
    with pytest.raises(BrokenLaw, match=law):
        check_bag(Tree(kind), {})


@pytest.mark.parametrize(
    ("fold", "law"),
    [
        (lambda one, other: one - other, "fold is not commutative"),
        (lambda one, other: (one + other) // np.uint64(2), "fold"),
        (lambda one, other: np.add(one, other, out=one), "fold changes its arguments"),
        (lambda one, other: one + other[0] + "?", "fold raises"),
        (lambda one, other: None, "fold: the result of a bag must be a number"),
    ],
)
def test_a_broken_law_of_fold_is_named(fold: Any, law: str) -> None:
    application = Tree()
    application.fold = fold  # type: ignore[method-assign]
    with pytest.raises(BrokenLaw, match=law):
        check_bag(application, {})


def test_bytes_that_cannot_be_read_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "bag_from_bytes", lambda self, data, *given: np.frombuffer(data[:3], np.uint64))
    with pytest.raises(BrokenLaw, match="bag_from_bytes raises ValueError: buffer size"):
        check_bag(Tree(), {})


def test_bags_that_keep_the_laws_are_said_to() -> None:
    assert "fold keep the laws on" in check_bag(Tree(), {})
    assert "fold keep the laws on" in check_bag(Tree(WorksInParts), {})
    assert "fold keep the laws on 12 pieces" in check_bag(QueensApplication(), {"n": 9}, {})


def test_where_all_pieces_are_too_large_a_smaller_job_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_py.kit.bags.laws.TASKS_MAX", 0)
    with pytest.raises(NothingToCheck, match="check a smaller job"):
        check_bag(QueensApplication(), {"n": 20}, seconds_max=0.1)


def test_an_empty_job_is_not_called_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "first_bag", lambda self, *given: TreeBag([]))
    with pytest.raises(NothingToCheck, match="first_bag gives an empty bag"):
        check_bag(Tree(), {})


def test_a_bag_that_does_nothing_ends_its_job() -> None:
    class Work(TreeWork):
        def first_bag(self) -> TreeBag:
            return NeverEnds(list(self.first))

    ledger = Ledger(Work(5, 8), seed=1)
    ledger.open_root(0.0)
    with pytest.raises(BagError, match="has done no task of a bag that is not empty"):
        ledger.process(8, 0.0)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["QUEENS", "--set", "n=8"], 0, "QUEENS: process, to_bytes"),
        (["QUEENS", "--set", "n=0"], 2, "'n' must be a whole number from 1 to 30, not 0"),
        (["NOOP"], 2, "NOOP has no laws that could be checked"),
        (["TREE"], 2, "mallob-py run: TREE: split loses or doubles tasks"),
    ],
)
def test_the_command_says_what_holds_or_what_is_broken_in_one_line(
    arguments: list[str],
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOB_PY_APPS", f"TREE={__name__}:BrokenTree")
    assert main_module.main(["run", *arguments, "--check-laws"]) == code
    printed = capsys.readouterr()
    assert told in (printed.err if code else printed.out)
    assert (printed.out + printed.err).count("\n") == 1


class BrokenTree(Tree):
    def __init__(self) -> None:
        super().__init__(LosesTasks)


def test_a_part_that_turns_out_too_large_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bag may do more tasks in small chunks than it did in one chunk, by which its pieces were chosen."""
    monkeypatch.setattr("mallob_py.kit.bags.laws.TASKS_MAX", 30)
    work, counted = TreeBag.process, iter(range(1_000_000))
    monkeypatch.setattr(TreeBag, "process", lambda self, count: work(self, count) + 31 * (next(counted) > 5))
    with pytest.raises(NothingToCheck, match="more than 30 tasks; check a smaller job"):
        check_bag(Tree(), {})
