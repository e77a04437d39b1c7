"""MaxSAT: each search alone, and workers together, find the least cost of all assignments."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seeds import seeds

from mallob_maxsat import flips
from mallob_maxsat.app import MaxSatApplication, Worker
from mallob_maxsat.core_guided import CoreGuided
from mallob_maxsat.declaration import MaxSatDeclaration
from mallob_maxsat.encodings import Adder, AtMost, Generalized, Totalizer, Watchdog
from mallob_maxsat.improving import Improving
from mallob_maxsat.local_search import LocalSearch, _Assignment, _Clauses
from mallob_maxsat.neighbourhoods import Neighbourhoods
from mallob_maxsat.oracle import Asking, Oracle
from mallob_maxsat.problem import Problem
from mallob_maxsat.roles import ROLES_MAX, Running, next_of, searches_of
from mallob_maxsat.state import Bounds
from mallob_maxsat.talk import Talk
from mallob_maxsat.wcnf import read_wcnf
from mallob_py.kit import InputError, JobInput, TreeMessage, WorkerContext
from mallob_sat.clauses import Clauses
from mallob_sat.solvers import Verdict

N_VARS = 6
_LITERAL = st.integers(1, N_VARS).flatmap(lambda variable: st.sampled_from((variable, -variable)))
_CLAUSE = st.lists(_LITERAL, min_size=0, max_size=4)
_WEIGHT = st.one_of(st.just(1), st.integers(0, 9), st.just(2**40 + 1))
_FORMULA = st.tuples(
    st.lists(st.lists(_LITERAL, min_size=1, max_size=4), max_size=12),
    st.lists(st.tuples(_WEIGHT, _CLAUSE), max_size=14),
)


def text_of(hard: list[list[int]], soft: list[tuple[int, list[int]]]) -> bytes:
    lines = [f"h {' '.join(map(str, clause))} 0" for clause in hard]
    lines += [f"{weight} {' '.join(map(str, clause))} 0" for weight, clause in soft]
    return "\n".join(lines).encode()


def least_cost(hard: list[list[int]], soft: list[tuple[int, list[int]]]) -> int | None:
    """Return the least cost, found by trying all assignments."""
    best = None
    for signs in itertools.product((False, True), repeat=N_VARS):

        def holds(clause: list[int], signs: tuple[bool, ...] = signs) -> bool:
            return any(signs[abs(literal) - 1] == (literal > 0) for literal in clause)

        if all(map(holds, hard)):
            cost = sum(weight for weight, clause in soft if not holds(clause))
            best = cost if best is None else min(best, cost)
    return best


def problem_of(hard: list[list[int]], soft: list[tuple[int, list[int]]]) -> Problem:
    return Problem(read_wcnf(text_of(hard, soft), "f").to_payload())


def check(bounds: Bounds, problem: Problem, expected: int | None) -> None:
    assert bounds.is_closed
    if expected is None:
        assert bounds.model is None
    else:
        assert bounds.model is not None
        assert bounds.upper == expected == problem.cost(bounds.model)


@settings(max_examples=60, deadline=None)
@given(_FORMULA, st.sampled_from(("glucose4", "cadical195")))
def test_from_below(formula: Any, engine: str) -> None:
    problem = problem_of(*formula)
    bounds = Bounds(problem)
    for _ in CoreGuided(problem, bounds, Oracle(problem, engine)).run():
        pass
    check(bounds, problem, least_cost(*formula))


@settings(max_examples=80, deadline=None)
@given(_FORMULA, st.sampled_from((Totalizer, Generalized, Watchdog, Adder)), st.sampled_from((0.0, 0.3, 0.9)))
def test_from_above_and_between(formula: Any, kind: type[AtMost], split: float) -> None:
    problem = problem_of(*formula)
    bounds = Bounds(problem)
    for _ in Improving(problem, bounds, Oracle(problem, "glucose4"), (kind,), split).run():
        pass
    check(bounds, problem, least_cost(*formula))


@settings(max_examples=80, deadline=None)
@given(
    _FORMULA,
    st.integers(0, 60),
    st.randoms(use_true_random=False),
    st.sampled_from(("glucose4", "cadical195")),
)
def test_from_above_on_what_cores_leave(formula: Any, turns: int, choose: random.Random, engine: str) -> None:
    """Both searches share one solver; the search from above begins at any moment of the search from below."""
    problem = problem_of(*formula)
    bounds = Bounds(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mallob_maxsat.oracle.SLICE_S", 0.0)
        below = CoreGuided(problem, bounds, Oracle(problem, engine))
        first = below.run()
        for _ in itertools.islice(first, turns):
            pass
        above = Improving(problem, bounds, below.oracle, (Generalized,), objective=below.objective).run()
        only_above = choose.random() < 0.3
        while not bounds.is_closed:
            next(above if only_above or choose.random() < 0.5 else first, None)
    check(bounds, problem, least_cost(*formula))


def test_a_core_is_made_smaller_for_so_many_conflicts_in_all() -> None:
    """One limit of conflicts holds for all questions about a core, or a large core would cost too much."""
    problem = problem_of([], [(weight, [weight]) for weight in range(1, N_VARS + 1)])

    class Hesitant(Oracle):
        asked: list[tuple[list[int], int]]
        conflicts = 5000

        def ask(self, assumptions: Sequence[int], conflicts: int | None = None) -> Asking[Verdict]:
            assert conflicts is not None
            self.asked.append((list(assumptions), conflicts))
            self.conflicts += 400
            self.model = -np.arange(1, N_VARS + 1, dtype=np.int32)
            return Verdict.SATISFIABLE
            yield

    oracle = Hesitant(problem, "glucose4")
    oracle.asked = []
    below = CoreGuided(problem, Bounds(problem), oracle)
    assert _answer(below.smaller([3, 1, 2, 5, 4])) == [1, 2, 3, 4, 5]
    assert oracle.asked == [([2, 3, 4, 5], 1000), ([1, 3, 4, 5], 600), ([1, 2, 4, 5], 200)]


@pytest.mark.parametrize(
    ("seed", "turns"),
    [
        *((turns, turns) for turns in (3, 90, 110, 140, 180, 250)),
        *((0, 91), (2, 122), (3, 128), (6, 143), (6, 189), (10, 209)),  # stops while a core's sum is encoded
    ],
)
def test_what_cores_leave_is_what_a_better_solution_costs(
    seed: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_maxsat.oracle.SLICE_S", 0.0)
    problem = Problem(read_wcnf(hard_one(seed, n_vars=7, n_clauses=70)[0], "f").to_payload())
    bounds = Bounds(problem)
    monkeypatch.setattr(bounds, "found", lambda model: False)  # so every solution counts as better
    below = CoreGuided(problem, bounds, Oracle(problem, "glucose4"))
    for _ in itertools.islice(below.run(), turns):
        pass
    terms, offset = below.objective()
    encoding = Generalized(below.oracle, terms, bounds.upper - offset, 10**6)
    for signs in itertools.product((1, -1), repeat=7):
        literals = [sign * v for v, sign in enumerate(signs, 1)]
        cost = problem.cost(np.array(literals, dtype=np.int32))
        assert cost is not None
        assert cost >= offset
        for bound, verdict in ((cost, Verdict.SATISFIABLE), (cost - 1, Verdict.UNSATISFIABLE)):
            if bound >= offset:
                assert _answer(below.oracle.ask([*literals, *encoding.at_most(bound - offset)])) is verdict


@pytest.mark.parametrize("kind", [Totalizer, Generalized, Watchdog, Adder])
@settings(max_examples=60, deadline=None)
@example(weights=[1], bound=4, limit=4)
@given(weights=st.lists(st.integers(1, 12), max_size=6), bound=st.integers(0, 40), limit=st.integers(0, 40))
def test_an_encoding_lets_pass_exactly_what_is_within_its_bound(
    kind: type[AtMost], weights: list[int], bound: int, limit: int
) -> None:
    if kind is Totalizer:
        weights = [3] * len(weights)
    bound, limit = min(bound, limit), max(bound, limit)
    text = "".join(f"h {v} {-v} 0\n" for v in range(1, len(weights) + 1)).encode()
    problem = Problem(read_wcnf(text, "f").to_payload())
    oracle = Oracle(problem, "glucose4")
    terms = {(-1) ** v * v: weight for v, weight in enumerate(weights, 1)}
    encoding = kind(oracle, terms, limit, 10**6)
    assumed = encoding.at_most(bound)
    for signs in itertools.product((1, -1), repeat=len(weights)):
        literals = [sign * v for v, sign in enumerate(signs, 1)]
        total = sum(weight for literal, weight in terms.items() if literal in literals)
        verdict = _answer(oracle.ask([*literals, *assumed]))
        assert (verdict is Verdict.SATISFIABLE) == (total <= bound)


def _answer(asking: Any) -> Any:
    while True:
        try:
            next(asking)
        except StopIteration as end:
            return end.value


def hard_one(seed: int, n_vars: int = 20, n_clauses: int = 110) -> tuple[bytes, int]:
    """Return a formula that takes some time, and its least cost, found from above."""
    choose = random.Random(seed)
    lines = []
    for _ in range(n_clauses):
        clause = [v * choose.choice((1, -1)) for v in choose.sample(range(1, n_vars + 1), 3)]
        lines.append(f"{choose.randint(1, 9)} {' '.join(map(str, clause))} 0")
    text = "\n".join(lines).encode()
    problem = Problem(read_wcnf(text, "f").to_payload())
    bounds = Bounds(problem)
    for _ in Improving(problem, bounds, Oracle(problem, "cadical195"), (Adder,)).run():
        pass
    return text, bounds.upper


def some_solution(problem: Problem, bounds: Bounds) -> bool:
    oracle = Oracle(problem, "glucose4")
    if _answer(oracle.ask([])) is not Verdict.SATISFIABLE:
        return False
    assert oracle.model is not None
    return bounds.found(oracle.model)


@settings(max_examples=30, deadline=None)
@given(_FORMULA)
def test_local_search_finds_solutions_and_often_the_best(formula: Any) -> None:
    problem = problem_of(*formula)
    bounds = Bounds(problem)
    if problem.hard.has_empty_clause or not some_solution(problem, bounds) or not LocalSearch.suits(problem):
        return
    for _ in itertools.islice(LocalSearch(problem, bounds, 1).run(), 5):
        pass
    assert bounds.model is not None
    least = least_cost(*formula)
    assert least is not None
    assert least <= bounds.upper == problem.cost(bounds.model)
    assert bounds.lower == problem.unavoidable, "it proves nothing"


def test_local_search_comes_to_the_least_cost() -> None:
    text, cost = hard_one(5)
    problem = Problem(read_wcnf(text, "f").to_payload())
    bounds = Bounds(problem)
    assert some_solution(problem, bounds)
    for _ in itertools.islice(LocalSearch(problem, bounds, 1).run(), 100):
        if bounds.upper == cost:
            return
    pytest.fail(f"{bounds.upper} after ten seconds, and {cost} is the least")


def test_compiled_flips_are_the_same_flips() -> None:
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    compiled = flips.compiled_walk()
    assert compiled is not None
    problem = Problem(read_wcnf(hard_one(6)[0] + b"\nh 1 2 0\nh -1 3 0", "f").to_payload())
    bounds = Bounds(problem)
    assert some_solution(problem, bounds)
    assert bounds.model is not None
    clauses = _Clauses(problem)
    ours, theirs = (_Assignment(clauses, bounds.model, 7, walk) for walk in (None, compiled))
    for one in (ours, theirs):
        assert one.best(20_000, -1.0) is None
    for mine, other in zip(ours.arrays, theirs.arrays, strict=True):
        assert mine == other.tolist()


def _with_numbers(count: int, values: int) -> Problem:
    """Return a problem of `count` numbers: literal n * values + k says, at a cost, that number n > k."""
    hard = [[-(v + 1), v] for v in range(1, count * values) if v % values]
    return problem_of(hard, [(1 + v % 3, [-v]) for v in range(1, count * values + 1)])


def test_a_neighbourhood_keeps_all_of_what_bounds_a_number_or_nothing() -> None:
    problem = _with_numbers(10, 5)
    model = np.array([v if v % 5 in (1, 2) else -v for v in range(1, 51)], dtype=np.int32)
    nearby, sizes = Neighbourhoods(problem, 1), set()
    for _ in range(40):
        kept = nearby.kept(model)
        if max(kept, default=0) < 0:  # otherwise the neighbourhood keeps all literals but consecutive ones
            numbers = {(-literal - 1) // 5 for literal in kept}
            assert sorted(kept) == sorted(
                -v for number in numbers for v in range(number * 5 + 3, number * 5 + 6)
            )
            sizes.add(len(numbers))
            nearby.learn(Verdict.UNSATISFIABLE)
    assert 9 in sizes
    assert min(sizes) < 9


def test_soft_literals_that_all_hang_together_bound_no_numbers() -> None:
    problem = _with_numbers(1, 30)
    nearby = Neighbourhoods(problem, 1)
    sizes = {len(nearby.kept(np.arange(-1, -31, -1, dtype=np.int32))) for _ in range(20)}
    assert sizes == {10, 27}  # all but 20 soft literals, or nine tenths of them


@pytest.mark.parametrize("index", range(ROLES_MAX))
def test_every_role_ends_with_the_least_cost(index: int) -> None:
    text, cost = hard_one(index)
    problem = Problem(read_wcnf(text, "f").to_payload())
    bounds = Bounds(problem)
    searches = [one.search for one in searches_of(index, problem, bounds)]
    for search in itertools.cycle(searches):
        if bounds.is_closed:
            break
        next(search, None)
    assert bounds.model is not None
    assert problem.cost(bounds.model) == bounds.upper == cost


class Member(WorkerContext):
    """A worker that shares one thread with other workers; its messages wait for its next poll."""

    job, chain, revision, threads, configuration = 1, 0, 0, 1, {}

    def __init__(self, payload: Any, index: int, team: dict[int, Member]) -> None:
        self.payload, self.index, self._team = payload, index, team
        self.volume = 4
        self.inbox: list[TreeMessage] = []
        self.offered: list[int] = []
        self.demands: list[int] = []
        self.bound = -1
        team[index] = self

    @property
    def children(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(child for child in (2 * self.index + 1, 2 * self.index + 2) if child in self._team)

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        messages, self.inbox = self.inbox, []
        return messages

    def fileno(self) -> int:
        raise NotImplementedError

    def park(self) -> Any:
        raise NotImplementedError

    def set_demand(self, demand: int) -> None:
        self.demands.append(demand)

    def send_to_parent(self, data: bytes) -> None:
        if self.index:
            self._team[(self.index - 1) // 2].inbox.append(TreeMessage(self.index, data))

    def send_to_children(self, data: bytes) -> None:
        for child in self.children:
            self._team[child].inbox.append(TreeMessage(self.index, data))

    def finish(self, result: Any) -> Any:
        raise NotImplementedError

    def offer(self, result: Any = None, *, value: Any = None, bound: Any = None) -> None:
        if value is not None:
            assert result.fields["cost"] == value
            self.offered.append(value)
        if bound is not None:
            self.bound = bound


@pytest.mark.parametrize(("alone_s", "demands"), [(math.inf, []), (0.0, [ROLES_MAX])])
def test_the_root_asks_for_others_once_it_has_been_alone_for_a_moment(
    alone_s: float, demands: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_maxsat.app._ALONE_S", alone_s)
    text, _ = hard_one(0)
    team: dict[int, Member] = {}
    members = [Member(read_wcnf(text, "f").to_payload(), index, team) for index in (0, 1)]
    for one in members:
        Worker(one).run()
    assert team[0].demands == demands
    assert not team[1].demands


def searches_of_worker(index: int) -> list[Running]:
    problem = Problem(read_wcnf(hard_one(0)[0], "f").to_payload())
    return list(searches_of(index, problem, Bounds(problem)))


@pytest.mark.parametrize("index", range(5))
def test_a_worker_that_becomes_the_root_goes_on_with_its_searches(index: int) -> None:
    following = next_of(searches_of_worker(index), 1.0, has_solution=False, is_helped=True)
    assert following.starts_s == 0.0


def test_while_there_are_others_the_root_works_from_below_alone_at_first() -> None:
    running = searches_of_worker(0)

    def at_work(now_s: float, is_helped: bool) -> list[str]:
        ready = (one for one in running if one.is_ready(now_s, has_solution=True, is_helped=is_helped))
        return [one.name for one in ready]

    assert at_work(10.0, is_helped=False) == [one.name for one in running]
    assert at_work(10.0, is_helped=True) == ["from below, glucose4"]
    assert at_work(100.0, is_helped=True) == [one.name for one in running]


def test_a_search_that_has_waited_does_not_get_the_time_later() -> None:
    running = searches_of_worker(0)
    below, above, _ = running
    below.charge(60.0, is_helped=True)
    assert next_of(running, 19.0, has_solution=True, is_helped=True) is below
    assert above.turn_s == below.turn_s == 60.0


def test_a_better_model_that_breaks_a_hard_clause_is_refused() -> None:
    problem = problem_of([[1, 2]], [(3, [-1]), (4, [-2])])
    bounds = Bounds(problem)
    with pytest.raises(RuntimeError, match="hard clauses"):
        bounds.found(np.array([-1, -2], dtype=np.int32))
    assert bounds.model is None


@pytest.mark.parametrize("seed", seeds(4))
def test_workers_that_tell_each_other_agree_on_the_least_cost(seed: int) -> None:
    text, cost = hard_one(seed)
    payload = read_wcnf(text, "f").to_payload()
    problem, team = Problem(payload), {}
    members = [Member(payload, index, team) for index in range(4)]
    bounds = [Bounds(problem) for _ in members]
    talks = [
        Talk(m, b, problem.n_vars, with_clauses=True, news_period_s=0.0)
        for m, b in zip(members, bounds, strict=True)
    ]
    searches = [
        list(searches_of(m.index, problem, b, is_told=True)) for m, b in zip(members, bounds, strict=True)
    ]
    choose = random.Random(seed)
    while not any(one.is_closed for one in bounds):
        at = choose.randrange(4)
        running = choose.choice(searches[at])
        next(running.search, None)
        if running.below is not None:
            talks[at].note_clauses(running.below.take_cores())
        if running.oracle is not None:
            talks[at].note_clauses(running.oracle.learned())
        talks[at].turn(members[at].poll())
        for clause in talks[at].take_heard().lists():
            for one in searches[at]:
                if one.oracle is not None:
                    one.oracle.add(clause)
    closed = next(one for one in bounds if one.is_closed)
    assert closed.model is not None
    assert problem.cost(closed.model) == closed.upper == cost
    assert all(one.lower <= cost <= one.upper for one in bounds)


def test_what_solvers_learn_holds_for_all_better_solutions() -> None:
    """Several seeds are tried, because the number of learned clauses differs from run to run."""
    assert sum(map(_clauses_that_hold, (0, 1, 2, 3, 5, 7))) > 0


def _clauses_that_hold(index: int) -> int:
    """Return how many clauses the search passed on while it found bounds; each clause is checked."""
    text, _ = hard_one(index, n_vars=13, n_clauses=120)
    text += b"\nh 1 2 0\nh -3 4 5 0\nh -6 -7 8 0"
    problem = Problem(read_wcnf(text, "f").to_payload())
    signs = np.arange(2**13)[:, None] >> np.arange(13) & 1
    # Each assignment, extended by the variables that say which soft clauses are false.
    whole = np.zeros((2**13, problem.n_all + 1), np.bool_)
    whole[:, 1:14] = signs
    for clause in problem.relaxed:
        whole[:, clause[-1]] = ~_holds(whole, clause[:-1])
    hard, soft, weights = problem.clauses()
    costs = sum(weight * ~_holds(whole, clause) for clause, weight in zip(soft, weights, strict=True))
    costs[~np.all([_holds(whole, clause) for clause in hard], axis=0)] = problem.cost_max + 2
    bounds = Bounds(problem)
    learned, told = [], 0
    searches = list(searches_of(index, problem, bounds, is_told=True))
    for one in itertools.cycle(searches):
        next(one.search, None)
        if bounds.is_closed:
            break
        if one.oracle is not None:
            learned = one.oracle.learned().lists()
            told += len(learned)
        is_better = costs < bounds.upper
        for clause in learned:
            assert _holds(whole, clause)[is_better].all(), clause
    return told


def _holds(whole: Any, clause: list[int]) -> Any:
    return np.any([whole[:, abs(literal)] == (literal > 0) for literal in clause], axis=0)


def clauses_of(lists: list[list[int]]) -> Clauses:
    return Clauses.of(np.array([len(one) for one in lists]), np.concatenate(lists))


def test_a_clause_is_not_taken_from_who_knows_a_better_solution_than_we_do() -> None:
    problem = problem_of([[1, 2]], [(3, [-1]), (4, [-2])])
    team: dict[int, Member] = {}
    for index in (0, 1):
        Member({}, index, team)
    knows, does_not = Bounds(problem), Bounds(problem)
    knows.found(np.array([1, -2, -3, -4, -5, -6], dtype=np.int32)[: problem.n_vars])
    teller = Talk(team[1], knows, problem.n_vars, with_clauses=True, news_period_s=0.0)
    teller.note_clauses(clauses_of([[-2]]))
    teller.turn([])
    (message,) = team[0].inbox
    listener = Talk(team[0], does_not, problem.n_vars, with_clauses=True)
    without_model = Talk(team[0], Bounds(problem), problem.n_vars, with_clauses=True)
    listener.turn([message])
    assert listener.take_heard().lists() == [[-2]]
    teller.note_clauses(clauses_of([[-1, -2]]))
    teller.turn([])
    assert len(team[0].inbox) == 2
    without_model.turn(team[0].inbox[-1:])
    assert without_model.take_heard().lists() == []


@pytest.fixture
def alone() -> Any:
    def run(text: str) -> tuple[Any, Member]:
        member = Member(read_wcnf(text.encode(), "f").to_payload(), 0, {})
        member.volume = 1
        return Worker(member).run(), member

    return run


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["o 0", "s OPTIMUM FOUND", "v"]),
        ("h 0\n", ["s UNSATISFIABLE"]),
        ("h 1 0\nh -1 0\n5 2 0\n", ["s UNSATISFIABLE"]),
        ("5 0\n", ["o 5", "s OPTIMUM FOUND", "v"]),
        ("5 0\nh 2 0\n0 3 0\n", ["o 5", "s OPTIMUM FOUND", "v 010"]),
        ("h 1 -1 0\n2 -2 2 0\n", ["o 0", "s OPTIMUM FOUND", "v 00"]),
        ("4 1 0\n3 -1 0\n", ["o 3", "s OPTIMUM FOUND", "v 1"]),
        (
            "9223372036854775807 1 0\n9223372036854775806 -1 0\n",
            ["o 9223372036854775806", "s OPTIMUM FOUND", "v 1"],
        ),
        ("p cnf 1 2\n1 0\n-1 0\n", ["o 1", "s OPTIMUM FOUND"]),
    ],
)
def test_answers_as_in_the_evaluations(alone: Any, text: str, lines: list[str]) -> None:
    result, _ = alone(text)
    told = {**result.fields, "resultcode": result.code}
    solution = [] if result.solution is None else result.solution.tolist()
    assert list(MaxSatDeclaration.answer_lines(told, solution))[: len(lines)] == lines


def test_what_is_known_is_offered_before_the_end(alone: Any) -> None:
    text, cost = hard_one(99)
    result, member = alone(text.decode())
    assert result.fields["cost"] == cost
    assert member.offered == sorted(member.offered, reverse=True)
    assert member.offered[-1] >= cost >= member.bound


@pytest.mark.parametrize(
    ("configuration", "problem"),
    [
        ({"proof": "p"}, "MAXSAT writes no proofs"),
        ({"solutions": 2}, "one solution, of the smallest cost"),
        ({"speed": 1}, "unknown key 'speed'"),
        ({"sharing": 1}, "must be true or false"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(configuration: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        MaxSatApplication().check(configuration)


def test_literals_and_missing_files_are_refused(tmp_path: Any) -> None:
    for given_ in (JobInput(literals=[1, 0]), JobInput(), JobInput(files=[str(tmp_path / "none")])):
        with pytest.raises(InputError):
            MaxSatApplication().read(given_)


def test_a_byte_order_mark_before_a_weighted_formula_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "f.wcnf"
    path.write_bytes(b"\xef\xbb\xbfh 1 2 0\n3 -1 0\n")
    payload = MaxSatApplication().read(JobInput(files=[str(path)]))
    assert payload["hard"].tolist() == [1, 2, 0]


@pytest.mark.parametrize("text", ["3 1 2147483646 0\n", "p wcnf 2147483646 1 5\n5 1 0\n"])
def test_a_formula_of_which_hardly_any_variable_occurs_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f.wcnf"
    path.write_text(text)
    with pytest.raises(InputError, match="2147483646 variables, but at most"):
        MaxSatApplication().read(JobInput(files=[str(path)]))
