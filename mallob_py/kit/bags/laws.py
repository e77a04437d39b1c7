"""The laws that a bag must obey so that results are exact, tested on pieces of a real bag.

Workers rely on the laws and cannot check them while they work: a `split` that loses a task gives a wrong
result and no error. So authors check the laws by `mallob-py run NAME --check-laws ...` or in their tests:

    check_bag(SubsetsApplication(), {"weights": [3, 4, 5], "target": 7})

The check splits the job's first bag into small pieces, and does each piece in several ways: as a whole, in
small steps, after conversion to bytes and back, in two or more parts, and merged again from such parts. All
ways must give the same result and the same number of tasks. The number may differ only if long tasks are
done in parts, or if a solution makes tasks needless (`Bag.best`, `Bag.counts_vary`). `expected_tasks` must
count as `process` does, because a worker does not give away tasks that take less time than sending them.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from mallob_py.kit.bags.bag import Bag, BagError
from mallob_py.kit.bags.incumbent import number_of
from mallob_py.kit.bags.values import decode_value, encode_value

if TYPE_CHECKING:
    from mallob_py.kit.app import Payload

#: greatest number of tasks of a piece that is tested
TASKS_MAX = 20_000
_PIECES_MAX = 12
_CUTS_MAX = 400
_PARTS = 3
#: factor between done and expected tasks of the median piece from which the law of `expected_tasks` is broken
_EXPECTED_FACTOR = 10.0
_EXPECTED_PIECES_MIN = 3
#: relative tolerance of sums of floats, because these depend on the order of addition
_TOLERANCE = 1e-9


class BrokenLaw(Exception):
    """A bag breaks a law; the message says which one and how."""


class NothingToCheck(Exception):
    """The bag is empty, or has no piece that is small enough."""


class _TooLarge(Exception):
    """The piece has more than TASKS_MAX tasks."""

    def __init__(self) -> None:
        super().__init__(f"a part of the bag has more than {TASKS_MAX} tasks; check a smaller job")


class MakesBags(Protocol):
    """The part of a `BagApplication` that concerns bags."""

    minimizes: ClassVar[bool]

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any], /) -> Bag: ...
    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any], /) -> Bag: ...
    def fold(self, one: Any, other: Any, /) -> Any: ...


class TasksResult(NamedTuple):
    """The result of a number of tasks; `best` as in `Bag.best`."""

    tasks: int
    result: Any
    best: Any = None


def check_bag(
    application: MakesBags,
    configuration: Mapping[str, Any],
    payload: Payload | None = None,
    seconds_max: float = 10.0,
) -> str:
    """Check a bag's laws on pieces of a job.

    Args:
        application: the application whose bag is tested.
        configuration: the job's configuration.
        payload: the job's payload.
        seconds_max: the time [s] after which the check seeks no further pieces.

    Returns:
        One line that says what was checked.

    Raises:
        BrokenLaw: a law is broken.
        NothingToCheck: the first bag is empty, or a piece is too large.
    """
    try:
        return _checked(_Checker(application, configuration, {} if payload is None else payload), seconds_max)
    except _TooLarge as error:  # a piece was small enough when done at once, but not in another way
        raise NothingToCheck(str(error)) from None


def _checked(checker: _Checker, seconds_max: float) -> str:
    pieces = checker.pieces(time.monotonic() + seconds_max)
    if not pieces:
        raise NothingToCheck(f"no piece with at most {TASKS_MAX} tasks was found; check a smaller job")
    checker.check_fold([outcome.result for _, outcome in pieces])  # first: other checks call `fold`
    for data, outcome in pieces:
        checker.check_piece(data, outcome)
    checker.check_learn(pieces)
    checker.check_first_bag()
    expected = ", expected_tasks" if checker.check_expected(pieces) else ""
    tasks = [outcome.tasks for _, outcome in pieces]
    search = ", best, learn" if any(outcome.best is not None for _, outcome in pieces) else ""
    return (
        f"process, to_bytes, bag_from_bytes, split, split_into, merge{search}{expected}, take_result and fold"
        f" keep the laws on {len(pieces)} pieces of {min(tasks)} to {max(tasks)} tasks"
    )


class _Checker:
    def __init__(self, application: MakesBags, configuration: Mapping[str, Any], payload: Payload) -> None:
        self._application = application
        self._given = (payload, configuration)
        #: whether all ways of doing a piece must do the same number of tasks; False if long tasks are done in
        #: parts
        self._counts = True

    # --- pieces of a bag ------------------------------------------------------------------------

    def pieces(self, deadline_s: float) -> list[tuple[bytes, TasksResult]]:
        """Split small pieces off the first bag; return them as bytes, with their results."""
        with _named("first_bag"):
            bag = self._application.first_bag(*self._given)
        if bag.counts_vary or type(bag).best is not Bag.best:
            self._counts = False
        if bag.is_empty():
            raise NothingToCheck("first_bag gives an empty bag; check a job with tasks")
        found: list[tuple[bytes, TasksResult]] = []
        for cut in range(_CUTS_MAX):
            with _named("to_bytes"):
                data = self._bytes(bag)
            with suppress(_TooLarge):
                if (outcome := self._run(self._bag(data))).tasks:
                    found.append((data, outcome))
            if bag.is_empty() or len(found) == _PIECES_MAX or time.monotonic() > deadline_s:
                break
            with _named("split"):
                given = bag.split()
            if given is None:
                with _named("process"):
                    self._process(bag, 1 + cut)
            elif cut % 3:
                bag = given
        return found

    def _bag(self, data: bytes) -> Bag:
        with _named("bag_from_bytes"):
            return self._application.bag_from_bytes(data, *self._given)

    def _bytes(self, bag: Bag) -> bytes:
        data = bag.to_bytes()
        if not isinstance(data, bytes):
            raise BrokenLaw(f"to_bytes gives {type(data).__name__}, not bytes")
        return data

    def _process(self, bag: Bag, count: int) -> int:
        done = bag.process(count)
        if not isinstance(done, int | np.integer):
            raise BrokenLaw(f"process({count}) gives {type(done).__name__}, not the number of tasks done")
        if done <= 0 and not bag.is_empty():
            raise BrokenLaw(f"process({count}) does no task although the bag is not empty")
        return int(done)

    def _run(self, bag: Bag, chunk: int = 1000) -> TasksResult:
        """Do all tasks of a bag. Raises _TooLarge."""
        tasks = 0
        with _named("process"):
            while not bag.is_empty():
                tasks += self._process(bag, chunk)
                if tasks > TASKS_MAX:
                    raise _TooLarge
        return TasksResult(tasks, self._result(bag), self._best(bag))

    def _best(self, bag: Bag) -> Any:
        with _named("best"):
            best = bag.best()
            if best is not None:
                number_of(best)
                encode_value(best)
        return best

    def _better(self, one: Any, other: Any) -> Any:
        """Return the better of two solutions, either of which may be missing."""
        if one is None or other is None:
            return other if one is None else one
        order = -1 if self._application.minimizes else 1
        return max(one, other, key=lambda best: order * number_of(best))

    def _result(self, bag: Bag) -> Any:
        with _named("take_result"):
            result = bag.take_result()
            if result is None:
                return None
            if not _same(decode_value(encode_value(result)), result):
                raise BrokenLaw(f"take_result: {result!r:.80} becomes another value when it is sent")
        return result

    # --- laws of one piece ------------------------------------------------------------------------

    def check_piece(self, data: bytes, expected: TasksResult) -> None:
        """Check that all ways of doing a piece give the same result."""
        self._check_taken_once(data)
        in_steps = self._in_steps(data)
        if in_steps.tasks != expected.tasks:
            self._counts = False
        self._expect("process in small steps does other tasks than in large steps", in_steps, expected)
        self._expect("to_bytes changes the bag", self._after_bytes(data), expected)
        self._expect(
            "bag_from_bytes(to_bytes()) is another bag", self._run(self._sent(self._bag(data))), expected
        )
        for began in (0, 1 + expected.tasks // 7):
            self._check_division("split", data, expected, began, self._halves)
            self._check_division("split_into", data, expected, began, self._parts)
        emptied = self._bag(data)
        self._run(emptied)
        with _named("merge"):
            emptied.merge(self._bag(data))
        self._expect("merge into an empty bag loses or doubles tasks", self._run(emptied), expected)

    def _check_taken_once(self, data: bytes) -> None:
        bag = self._bag(data)
        result = self._run(bag).result
        again = self._result(bag)
        if result is None or again is None:
            return
        with _named("fold"):
            both = self._application.fold(result, again)
        if not _same(both, result):
            raise BrokenLaw(
                f"take_result gives a result that it has given before: {again!r:.60} after {result!r:.60}"
            )

    def _after_bytes(self, data: bytes) -> TasksResult:
        bag = self._bag(data)
        with _named("to_bytes"):
            self._bytes(bag)
        return self._run(bag)

    def _sent(self, bag: Bag) -> Bag:
        with _named("to_bytes"):
            data = self._bytes(bag)
        return self._bag(data)

    def _in_steps(self, data: bytes) -> TasksResult:
        """Do a piece in steps, and check that later steps do not change results taken before."""
        bag, tasks = self._bag(data), 0
        taken: list[tuple[Any, bytes]] = []
        while not bag.is_empty():
            with _named("process"):
                tasks += self._process(bag, 1 + tasks // 4)
            result = self._result(bag)
            if result is not None:
                taken.append((result, encode_value(result)))
        if any(encode_value(result) != before for result, before in taken):
            raise BrokenLaw("take_result gives an object that later tasks change; return a copy")
        return TasksResult(tasks, self._folded([result for result, _ in taken], bag), self._best(bag))

    def _halves(self, bag: Bag) -> list[Bag]:
        given = bag.split()
        return [] if given is None else [given]

    def _parts(self, bag: Bag) -> list[Bag]:
        parts = bag.split_into(_PARTS)
        if len(parts) > _PARTS:
            raise BrokenLaw(f"split_into({_PARTS}) gives {len(parts)} bags")
        return parts

    def _check_division(
        self, name: str, data: bytes, expected: TasksResult, began: int, divide: Callable[[Bag], list[Bag]]
    ) -> None:
        """Check that a bag's parts, done separately or merged again, give the result of the whole bag."""
        for is_merged in (False, True):
            bag, tasks = self._bag(data), 0
            if began and not bag.is_empty():
                with _named("process"):
                    tasks = self._process(bag, began)
            with _named(name):
                parts = divide(bag)
            if any(part.is_empty() for part in parts):
                raise BrokenLaw(f"{name} gives an empty bag; if there is nothing to give, return None")
            if is_merged:
                for part in parts:
                    with _named("merge"):
                        bag.merge(self._sent(part))
                parts = []
            outcomes = [self._run(each) for each in (bag, *map(self._sent, parts))]
            results = self._folded([outcome.result for outcome in outcomes], bag)
            best = functools.reduce(self._better, (outcome.best for outcome in outcomes))
            whole = TasksResult(tasks + sum(outcome.tasks for outcome in outcomes), results, best)
            what = f"merge of what {name} has given" if is_merged else name
            self._expect(f"{what} loses or doubles tasks", whole, expected)

    def _folded(self, results: Sequence[Any], bag: Bag) -> Any:
        results = [result for result in results if result is not None]
        if not results:
            return self._result(bag)
        folded = results[0]
        with _named("fold"):
            for result in results[1:]:
                folded = self._application.fold(folded, result)
        return folded

    def _expect(self, law: str, found: TasksResult, expected: TasksResult) -> None:
        if self._counts and found.tasks != expected.tasks:
            raise BrokenLaw(f"{law}: {found.tasks} tasks are done of a piece with {expected.tasks} tasks")
        if not _same(found.result, expected.result):
            raise BrokenLaw(f"{law}: the result is {found.result!r:.80} instead of {expected.result!r:.80}")
        self._expect_best(law, found.best, expected.best)

    def _expect_best(self, law: str, found: Any, expected: Any) -> None:
        """Compare the best solutions by number: which of several equally good solutions is found varies."""
        numbers = [None if best is None else number_of(best) for best in (found, expected)]
        if numbers[0] != numbers[1]:
            raise BrokenLaw(f"{law}: the best is {found!r:.80} instead of {expected!r:.80}")

    # --- laws of all pieces -----------------------------------------------------------------------

    def check_learn(self, pieces: Sequence[tuple[bytes, TasksResult]]) -> None:
        """Check that a bag keeps a learnt solution of another piece unless it finds a better one."""
        for data, outcome in pieces:
            for learnt in (other.best for _, other in pieces if other.best is not None):
                bag = self._bag(data)
                with _named("learn"):
                    bag.learn(learnt)
                found = self._run(bag).best
                self._expect_best(f"after learn({learnt!r:.40})", found, self._better(outcome.best, learnt))

    def check_expected(self, pieces: Sequence[tuple[bytes, TasksResult]]) -> bool:
        """Check the expected tasks of the median piece; return whether enough pieces have an expectation."""
        found: list[tuple[float, float, int, Bag]] = []
        for data, outcome in pieces:
            bag = self._bag(data)
            with _named("expected_tasks"):
                left = bag.expected_tasks()
                if not left >= 0.0:
                    raise BrokenLaw(f"expected_tasks gives {left!r:.40}; it must give a number of at least 0")
            if left < math.inf:
                found.append((outcome.tasks / left if left else math.inf, left, outcome.tasks, bag))
        if len(found) < _EXPECTED_PIECES_MIN:
            return False
        factor, left, tasks, bag = sorted(found, key=itemgetter(0))[len(found) // 2]
        is_search = bag.counts_vary or type(bag).best is not Bag.best  # a found solution makes tasks needless
        if factor > _EXPECTED_FACTOR or (factor < 1.0 / _EXPECTED_FACTOR and not is_search):
            raise BrokenLaw(
                "expected_tasks and process count differently: for a piece of"
                f" {type(bag).__name__}, they give {left:.0f} and {tasks} tasks"
            )
        return True

    def check_fold(self, results: Sequence[Any]) -> None:
        results = [result for result in results if result is not None]
        if not results:
            return
        fold = self._application.fold
        for one, two in zip(results, [*results[1:], results[0]], strict=True):
            for three in results:
                before = list(map(encode_value, (one, two, three)))
                with _named("fold"):
                    left, right = fold(one, two), fold(two, one)
                    encode_value(left)
                    grouped = fold(fold(one, two), three), fold(one, fold(two, three))
                if list(map(encode_value, (one, two, three))) != before:
                    raise BrokenLaw("fold changes its arguments; return a new value")
                if not _same(left, right):
                    pair = f"{one!r:.60} folded with {two!r:.60} is {left!r:.60}"
                    raise BrokenLaw(f"fold is not commutative: {pair}, in the other order {right!r:.60}")
                if not _same(*grouped):
                    trio = f"{one!r:.40}, {two!r:.40} and {three!r:.40} give {grouped[0]!r:.40}"
                    raise BrokenLaw(
                        f"fold is not associative: {trio}; grouped otherwise, they give {grouped[1]!r:.40}"
                    )

    def check_first_bag(self) -> None:
        with _named("first_bag"):
            bags = [self._application.first_bag(*self._given) for _ in range(2)]
        one, two = map(self._bytes, bags)
        if one == two:
            return
        try:
            outcomes = [self._run(bag) for bag in bags]
        except _TooLarge:
            return  # too large to run; maybe the same tasks in another order
        self._expect("first_bag gives another bag at each call", outcomes[1], outcomes[0])


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Name the author's method in the exceptions that it raises."""
    try:
        yield
    except (BrokenLaw, _TooLarge):
        raise
    except BagError as error:
        raise BrokenLaw(f"{method}: {error}") from error
    except Exception as error:
        raise BrokenLaw(f"{method} raises {type(error).__name__}: {error}") from error


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) or isinstance(other, tuple):
        both = isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)
        return both and all(map(_same, one, other))
    if one is None or other is None:
        return one is other
    if isinstance(one, str | bytes | bool | int) and isinstance(other, str | bytes | bool | int):
        return one == other
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape:
        return False
    if "f" in left.dtype.kind + right.dtype.kind:
        return bool(np.allclose(left, right, rtol=_TOLERANCE, atol=0.0, equal_nan=True))
    return bool(np.array_equal(left, right))
