"""Several solutions: one worker, and several workers, find exactly the solutions that brute force finds."""

import queue
import random
import threading
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_context import FakeContext
from seeds import seeds
from waiting import DEADLINE_S

from mallob_py.kit import InputError, JobInput, Payload, Result, TreeMessage, result_file
from mallob_sat import SatApplication, enumeration, generate
from mallob_sat.enumeration import CUBE_BYTES_MAX, Helper, Leader, bits_of, cube_of, cubes_of, row_bytes
from mallob_sat.formula import ASSUMPTIONS_MARK

Solution = tuple[int, ...]


def flat(clauses: Sequence[Sequence[int]], assumptions: Sequence[int] = ()) -> list[int]:
    return [x for clause in clauses for x in (*clause, 0)] + [ASSUMPTIONS_MARK, *assumptions, 0]


def payload_of(literals: list[int], **configuration: object) -> Payload:
    application = SatApplication()
    application.check(configuration)
    return application.read(JobInput(literals=literals, configuration=configuration))


def run(literals: list[int], **configuration: object) -> Result:
    context = FakeContext(payload_of(literals, **configuration), 0, configuration)
    return SatApplication().run(context)


def solutions_of(result: Result) -> list[Solution]:
    found: list[Solution] = []
    one: list[int] = []
    for literal in np.asarray(result.solution).tolist():
        if literal:
            one.append(literal)
        else:
            found.append(tuple(one))
            one = []
    assert one == []
    return found


def counted(result: Result) -> tuple[int, bool]:
    return result.fields["solutions"], result.fields["complete"]


def brute_force(
    clauses: Sequence[Sequence[int]], n_vars: int, projection: Sequence[int]
) -> set[tuple[int, ...]]:
    found = set()
    for signs in product((-1, 1), repeat=n_vars):
        if all(any(signs[abs(x) - 1] * x > 0 for x in clause) for clause in clauses):
            found.add(tuple(v * signs[v - 1] for v in projection))
    return found


def random_case(rng: random.Random) -> tuple[int, list[list[int]], list[int]]:
    n_vars = rng.randint(1, 7)

    def literal() -> int:
        return rng.choice((1, -1)) * rng.randint(1, n_vars)

    shortest = 1 if rng.random() < 0.98 else 0
    clauses = [[literal() for _ in range(rng.randint(shortest, 3))] for _ in range(rng.randint(0, 14))]
    return n_vars, clauses, [literal() for _ in range(rng.choice((0, 0, 1, 2)))]


# --- one worker ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(20))
def test_small_formulas_have_the_solutions_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(120):
        n_vars, clauses, assumptions = random_case(rng)
        used = [abs(x) for clause in clauses for x in clause] + [abs(x) for x in assumptions]
        n_vars = max(used, default=0)
        projection = list(range(1, n_vars + 1))
        configuration: dict[str, object] = {"solutions": "all"}
        if n_vars and rng.random() < 0.6:
            projection = rng.sample(projection, rng.randint(1, n_vars))
            configuration["projection"] = projection
        expected = brute_force([*clauses, *([x] for x in assumptions)], n_vars, projection)
        result = run(flat(clauses, assumptions), **configuration)
        assert result.code == (10 if expected else 20)
        assert counted(result) == (len(expected), True)
        if not expected:
            assert np.asarray(result.solution).tolist() == assumptions
            continue
        found = solutions_of(result)
        assert found == sorted(found, key=lambda one: [x > 0 for x in one])
        assert len(found) == len(expected)
        assert set(found) == expected

        wanted = rng.randint(1, len(expected) + 1)
        some = run(flat(clauses, assumptions), **(configuration | {"solutions": wanted}))
        enough = wanted > len(expected) or n_vars == 0
        assert counted(some) == (min(wanted, len(expected)), enough)
        assert len(set(solutions_of(some))) == min(wanted, len(expected))
        assert set(solutions_of(some)) <= expected


def test_variables_that_never_occur_count_too() -> None:
    assert run([3, 0], solutions="all").fields["solutions"] == 4
    assert run([3, 0], solutions="all", projection=[3]).fields["solutions"] == 1


def test_more_variables_than_cubes_have() -> None:
    rng = random.Random(3)
    clauses = [[rng.choice((1, -1)) * v for v in rng.sample(range(1, 13), 3)] for _ in range(36)]
    result = run(flat(clauses), solutions="all")
    assert set(solutions_of(result)) == brute_force(clauses, 12, range(1, 13))


def test_a_hard_formula_is_searched_in_pieces() -> None:
    formula = generate.factoring(3 * 5 * 7 * 11 * 13 * 17)
    divisors = [n for n in range(3, 1 << 9) if 3 * 5 * 7 * 11 * 13 * 17 % n == 0]
    small = list(range(formula_first_small_wire(formula), formula_first_small_wire(formula) + 9))
    result = run(flat(formula.clauses), solutions="all", projection=small)
    values = {sum(1 << place for place, x in enumerate(one) if x > 0) for one in solutions_of(result)}
    assert values <= set(divisors)
    assert len(values) == result.fields["solutions"] > 10


def formula_first_small_wire(formula: generate.Formula) -> int:
    """Return the first variable of the small factor's bits, after the constant and the large factor's
    bits.
    """
    number = 3 * 5 * 7 * 11 * 13 * 17
    return 2 + number.bit_length() - 1


def test_a_reply_holds_no_more_than_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "LITERALS_MAX", 100)
    result = run([1, 2, 3, 4, 5, 0], solutions="all")
    assert counted(result) == (16, False)
    assert len(set(solutions_of(result))) == 16


def test_when_time_has_ended_before_the_first_solution_that_one_is_still_looked_for() -> None:
    """A search that has found nothing in time must not answer that there is no solution."""
    result = run([1, 2, 3, 4, 5, 0], solutions="all", **{"solutions-until": 0})
    assert result.code == 10
    assert counted(result) == (1, False)


def test_a_clock_that_is_set_meanwhile_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0.0])
    monkeypatch.setattr(time, "time", lambda: next(looks, 1e12))
    assert counted(run([1, 2, 3, 0], solutions="all", **{"solutions-until": 1e6})) == (7, True)
    assert counted(run([1, 2, 3, 0], solutions="all", **{"solutions-within": 1e6})) == (7, True)
    assert counted(run([1, 2, 3, 0], solutions="all", **{"solutions-within": 0})) == (1, False)


def test_when_time_has_ended_a_formula_without_solutions_has_none_all_the_same() -> None:
    result = run([1, 2, 0, -1, 2, 0, 1, -2, 0, -1, -2, 0], solutions="all", **{"solutions-until": 0})
    assert result.code == 20
    assert counted(result) == (0, True)


class Ended(BaseException):
    """Raised to end a job whose time is over."""


class _Offered(FakeContext):
    """A context that records offers, and ends the job when at least `enough` solutions were offered."""

    def __init__(self, payload: Payload, configuration: dict[str, object], enough: int) -> None:
        super().__init__(payload, 0, configuration)
        self._enough = enough
        self.offered: list[tuple[Result, float | None]] = []
        self.progress: list[tuple[float, float | None, str]] = []

    def report_progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        self.progress.append((done, total, unit))

    def offer(
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        assert result is not None
        self.offered.append((result, value))
        if result.fields["solutions"] >= self._enough:
            raise Ended


def ended_early(enough: int, **configuration: object) -> _Offered:
    """Return the offers of a search for the 2^11 * 3 models of a clause, ended after `enough` solutions."""
    literals = [1, 2, 0, 13, -13, 0]
    context = _Offered(payload_of(literals, **configuration), configuration, enough)
    with pytest.raises(Ended):
        SatApplication().run(context)
    return context


@pytest.fixture
def at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_TURN_S", "_OFFER_PAUSE", "_WRITE_S"):
        monkeypatch.setattr(enumeration, pause, 0)


@pytest.mark.usefixtures("at_every_turn")
def test_what_is_found_before_the_end_is_offered() -> None:
    context = ended_early(30, solutions=100)
    for result, value in context.offered:
        found = solutions_of(result)
        assert (result.code, value) == (10, len(found))
        assert counted(result) == (len(set(found)), False)
        assert found == sorted(found, key=lambda one: [literal > 0 for literal in one])
        assert all(one[0] > 0 or one[1] > 0 for one in found)
    assert context.progress[-1] == (30, 100, "solutions")


@pytest.mark.usefixtures("at_every_turn")
def test_no_more_is_offered_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "OFFERED_LITERALS_MAX", 100)
    context = ended_early(7, solutions="all")
    assert len(solutions_of(context.offered[-1][0])) == 100 // 14
    assert context.progress[-1][1] is None


@pytest.mark.usefixtures("at_every_turn")
def test_solutions_in_a_file_are_offered_as_their_number(tmp_path: Path) -> None:
    path = tmp_path / "solutions"
    context = ended_early(50, **{"solutions": "all", "solutions-file": str(path)})
    result, value = context.offered[-1]
    assert (result.code, result.solution, value) == (10, None, None)
    assert result.fields["solutions"] == len(path.read_text().splitlines()) == 50
    result_file.discard_unfinished(str(path))


@pytest.mark.parametrize("wanted", [1, 7, 15, 16, "all"])
def test_a_file_gets_every_solution_once(wanted: int | str, tmp_path: Path) -> None:
    path = tmp_path / "solutions"
    wishes = {"solutions": wanted, "solutions-file": str(path), "projection": [4, 2, 1, 5]}
    result = run([1, 2, 3, 0, 4, 5, 3, 0], **wishes)
    result_file.discard_unfinished(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["solutions"]
    lines = path.read_text().splitlines()
    assert len(set(lines)) == len(lines) == result.fields["solutions"] == (16 if wanted == "all" else wanted)
    assert [abs(int(word)) for word in lines[0].split()] == [4, 2, 1, 5, 0]
    assert result.solution is None


def test_the_file_is_empty_if_there_is_no_solution(tmp_path: Path) -> None:
    path = tmp_path / "solutions"
    assert run([1, 0, -1, 0], **{"solutions": 3, "solutions-file": str(path)}).code == 20
    assert path.read_bytes() == b""


def test_a_wrong_model_is_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_sat.solvers.Solver.model", lambda solver: np.array([-1, -2], dtype=np.int32))
    with pytest.raises(RuntimeError, match="wrong model"):
        run([1, 2, 0], solutions=2)


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"solutions": 0}, "solutions is 0; it must be a number from 1 on or 'all'"),
        ({"solutions": -3}, "solutions is -3"),
        ({"solutions": True}, "solutions is True"),
        ({"solutions": "many"}, "solutions is 'many'"),
        ({"solutions": None}, "solutions is None"),
        ({"projection": [1]}, "projection goes with solutions"),
        ({"solutions-file": "/tmp/x"}, "solutions-file goes with solutions"),
        ({"solutions": 2, "projection": []}, "must be a list of variables"),
        ({"solutions": 2, "projection": 1}, "must be a list of variables"),
        ({"solutions": 2, "projection": [1, -2]}, "projection holds -2"),
        ({"solutions": 2, "projection": [True]}, "projection holds True"),
        ({"solutions": 2, "projection": [1, 1]}, "names a variable twice"),
        ({"solutions": 2, "projection": [1, 9]}, "names variable 9, but the formula has 2"),
        ({"solutions": 2, "solutions-file": "here"}, "must be the absolute path"),
        ({"solutions": 2, "solutions-file": "/nowhere/at/all"}, "solutions-file /nowhere/at/all: cannot"),
        ({"solutions": 2, "proof": "/proof"}, "proof and solutions are not possible together"),
        ({"solutions": 2, "core": True}, "core and solutions are not possible together"),
        ({"solutions": 2, "model": "packed"}, "model has no effect on solutions"),
        ({"solutions": 2, "portfolio": "k"}, "portfolio has no effect"),
        ({"solutions": 2, "seed": 1}, "seed has no effect"),
    ],
)
def test_wrong_wishes_are_refused(configuration: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        run([1, 2, 0], **configuration)
    assert caught.value.field == "configuration"


# --- rows and cubes ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_variables", [1, 3, 8, 9, 20])
def test_a_row_lies_in_the_cube_whose_literals_it_has(n_variables: int) -> None:
    rng = random.Random(n_variables)
    projection = np.arange(11, 11 + n_variables, dtype=np.int32)
    cubes = cubes_of(projection)
    assert len(cubes) == 2 ** min(n_variables, 8)
    for _ in range(50):
        bits = np.array([rng.random() < 0.5 for _ in range(n_variables)])
        row = np.packbits(bits, bitorder="little").tobytes()
        assert len(row) == row_bytes(n_variables)
        assert bits_of(row, n_variables)[0].tolist() == bits.tolist()
        literals = np.where(bits, projection, -projection).tolist()
        assert cubes[cube_of(row)] == literals[:8]


# --- several workers ---------------------------------------------------------------------------


class Over(BaseException):
    """Raised in workers when the job has ended."""


class Net:
    """Workers in threads, whose messages along their tree are sometimes lost."""

    def __init__(
        self, workers: int, loss: float, literals: list[int], configuration: dict[str, object]
    ) -> None:
        payload = payload_of(literals, **configuration)
        self.rng = random.Random(workers)
        self.loss = loss
        self.over = threading.Event()
        self.helped = threading.Event()
        self.contexts = [_Joined(self, payload, index, configuration) for index in range(workers)]

    def send(self, dest: int, message: TreeMessage) -> None:
        if self.rng.random() >= self.loss:
            self.contexts[dest].inbox.put(message)
            if dest == 0:
                self.helped.set()

    def run(self) -> Result:
        helpers = [threading.Thread(target=self._help, args=(one,)) for one in self.contexts[1:]]
        for helper in helpers:
            helper.start()
        try:
            return SatApplication().run(self.contexts[0])
        finally:
            self.over.set()
            for helper in helpers:
                helper.join(DEADLINE_S)
                assert not helper.is_alive()

    def _help(self, context: FakeContext) -> None:
        try:
            SatApplication().run(context)
        except Over:
            return
        raise AssertionError("only the root has a result")


class _Joined(FakeContext):
    def __init__(self, net: Net, payload: Payload, index: int, configuration: dict[str, object]) -> None:
        super().__init__(payload, index, configuration)
        self._net = net
        self.inbox: queue.SimpleQueue[TreeMessage] = queue.SimpleQueue()

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        if self._net.over.is_set():
            raise Over
        if self.index == 0:  # a slow root: it searches only after another worker has helped
            assert self._net.helped.wait(DEADLINE_S)
        messages = []
        try:
            messages.append(
                self.inbox.get(timeout=min(timeout_s, 0.05)) if timeout_s else self.inbox.get_nowait()
            )
            while True:
                messages.append(self.inbox.get_nowait())
        except queue.Empty:
            return messages

    def send_to_parent(self, data: bytes) -> None:
        if self.index:
            self._net.send((self.index - 1) // 2, TreeMessage(self.index, data))

    def send_to_children(self, data: bytes) -> None:
        for child in (2 * self.index + 1, 2 * self.index + 2):
            if child < len(self._net.contexts):
                self._net.send(child, TreeMessage(self.index, data))


@pytest.mark.parametrize(("workers", "loss"), [(2, 0.0), (4, 0.0), (6, 0.3)])
@pytest.mark.parametrize("wanted", ["all", 500])
def test_with_helpers_the_solutions_are_the_same(
    workers: int, loss: float, wanted: int | str, tmp_path: Path
) -> None:
    rng = random.Random(5)
    clauses = [[rng.choice((1, -1)) * v for v in rng.sample(range(1, 15), 3)] for _ in range(20)]
    expected = brute_force(clauses, 14, range(1, 13))
    assert len(expected) > 550
    path = tmp_path / "solutions"
    configuration: dict[str, object] = {"solutions": wanted, "projection": list(range(1, 13))}
    if workers == 4:
        configuration["solutions-file"] = str(path)
    result = Net(workers, loss, flat(clauses), configuration).run()
    assert result.fields["complete"] == (wanted == "all")
    if workers == 4:
        lines = [tuple(map(int, line.split()[:-1])) for line in path.read_text().splitlines()]
    else:
        lines = solutions_of(result)
    assert len(lines) == result.fields["solutions"] == (len(expected) if wanted == "all" else wanted)
    assert set(lines) == expected if wanted == "all" else set(lines) < expected
    assert len(set(lines)) == len(lines)


class Recorded(FakeContext):
    """A context that keeps sent messages; the test gives it the messages to receive."""

    def __init__(self, index: int) -> None:
        super().__init__({}, index, {})
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.coming: list[TreeMessage] = []

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        coming, self.coming = self.coming, []
        return coming

    def send_to_parent(self, data: bytes) -> None:
        self.up.append(data)

    def send_to_children(self, data: bytes) -> None:
        self.down.append(data)


def test_a_cube_is_taken_once_and_helpers_hear_of_it() -> None:
    root, helper_context = Recorded(0), Recorded(1)
    leader, helper = Leader(root, clock=lambda: 0.0), Helper(helper_context, 8, clock=lambda: 0.0)
    cube = helper.choose()
    assert cube is not None
    helper.give(cube, b"rows")
    root.coming = [TreeMessage(1, helper_context.up[0])] * 2
    assert leader.turn() == [(cube, b"rows")]
    assert not helper.is_done(cube)
    helper_context.coming = [TreeMessage(0, root.down[-1])]
    helper.turn()
    assert helper.is_done(cube)
    assert helper_context.down == [root.down[-1]]


def test_what_the_root_has_not_got_is_sent_again() -> None:
    now_s = 0.0
    context = Recorded(1)
    helper = Helper(context, 8, clock=lambda: now_s)
    helper.give(3, b"rows")
    now_s = 4.0
    helper.turn()
    assert len(context.up) == 1
    now_s = 6.0
    helper.turn()
    assert context.up == [context.up[0]] * 2


def test_a_new_root_that_knows_less_is_given_everything_anew() -> None:
    now_s = 0.0
    root, context = Recorded(0), Recorded(1)
    leader = Leader(root, clock=lambda: now_s)
    helper = Helper(context, 8, clock=lambda: now_s)
    helper.give(3, b"rows")
    root.coming = [TreeMessage(1, context.up[0])]
    leader.turn()
    Leader(another := Recorded(0), clock=lambda: now_s).turn()
    for message in (root.down[-1], another.down[-1]):
        context.coming = [TreeMessage(0, message)]
        helper.turn()
    assert not helper.is_done(3)
    now_s = 6.0
    helper.turn()
    assert context.up == [context.up[0]] * 2


def test_helpers_choose_different_cubes_and_each_but_once() -> None:
    firsts = {Helper(Recorded(index), 256).choose() for index in range(1, 9)}
    assert len(firsts) == 8
    helper = Helper(Recorded(5), 16)
    chosen = []
    while (cube := helper.choose()) is not None:
        chosen.append(cube)
        helper.give(cube, b"")
    assert sorted(chosen) == list(range(16))


def test_a_cube_of_too_many_solutions_is_left_to_the_root() -> None:
    context = Recorded(1)
    helper = Helper(context, 1)
    helper.give(0, bytes(CUBE_BYTES_MAX + 1))
    assert context.up == []
    assert helper.choose() is None


def test_messages_of_children_are_passed_on_and_strange_ones_ignored() -> None:
    child, context = Recorded(3), Recorded(1)
    Helper(child, 8).give(2, b"rows")
    helper = Helper(context, 8)
    context.coming = [
        TreeMessage(3, child.up[0]),
        TreeMessage(3, child.up[0], returned=True),
        TreeMessage(0, b"something else"),
        TreeMessage(0, b""),
    ]
    helper.turn()
    assert context.up == child.up
