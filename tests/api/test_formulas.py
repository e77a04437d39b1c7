"""Every kind of formula object at every entry point: the whole formula is submitted, or it is refused with a
message.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pysat.formula import CNF, WCNF, Atom, CNFPlus, IDPool, WCNFPlus

from mallob_py import RC2, Client, FormulaExecutor, IncrementalSolver, Ipamir, Ipasir, solve
from mallob_py.api import client as client_module
from mallob_py.api.formulas import LITERAL_MAX, BoundsError, clauses_of
from mallob_py.service.store.directory import JobDirectory

CLAUSES = [[1, 2, 3], [-1, 3], [-2, -3]]
SOFT = [(4, [1]), (5, [-3])]


class Handed(BaseException):
    """Raised instead of submitting a job; holds the content of the job's formula, and the assumptions."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield a client that raises each job as `Handed` instead of submitting the job."""
    folder = tmp_path_factory.mktemp("formulas")
    directory = JobDirectory(folder / "api", tmp_dir=folder)

    def hand_in(_: Path, job: dict[str, Any], *__: Any, **___: Any) -> None:
        content: Any = job.get("literals")
        if "files" in job:
            content = Path(job["files"][0]).read_bytes()
        raise Handed(content, job.get("assumptions", []))

    with pytest.MonkeyPatch.context() as patch, Client(folder / "api", user="u") as opened:
        patch.setattr(client_module.service, "submit", hand_in)
        patch.chdir(folder)
        (folder / ".api").symlink_to("api")
        yield opened
    directory.close()


def flat(clauses: Any) -> list[int]:
    return [literal for clause in clauses for literal in (*clause, 0)]


def wcnf(hard: list[list[int]], soft: list[tuple[int, list[int]]]) -> bytes:
    lines = [("h", clause) for clause in hard] + [(str(weight), clause) for weight, clause in soft]
    return "".join(f"{word} {' '.join(map(str, clause))} 0\n" for word, clause in lines).encode()


def weighted(kind: Any = WCNF) -> Any:
    formula = kind()
    formula.extend(CLAUSES)
    for weight, clause in SOFT:
        formula.append(clause, weight=weight)
    return formula


def plus() -> Any:
    formula = CNFPlus()
    formula.extend(CLAUSES)
    return formula


def with_bounds(formula: Any) -> Any:
    formula.append([[1, 2, 3], 1], is_atmost=True)
    return formula


class Iterators:
    """A weighted formula whose parts are iterators."""

    def __init__(self) -> None:
        self.hard = map(iter, CLAUSES)
        self.soft = (iter(clause) for _, clause in SOFT)
        self.wght = (np.uint8(weight) for weight, _ in SOFT)


class OnlyClauses:
    clauses = CLAUSES


class FewWeights:
    hard, soft, wght = CLAUSES, [[1], [2]], [3]


PLAIN: dict[str, Callable[[], Any]] = {
    "lists": lambda: CLAUSES,
    "tuples": lambda: tuple(map(tuple, CLAUSES)),
    "map objects in a list": lambda: [map(int, clause) for clause in CLAUSES],
    "a generator of generators": lambda: ((literal for literal in clause) for clause in CLAUSES),
    "an iterator of iterators": lambda: iter([iter(clause) for clause in CLAUSES]),
    "keys of a dict": lambda: dict.fromkeys(map(tuple, CLAUSES)).keys(),
    "a list of arrays": lambda: [np.array(clause, dtype=np.int16) for clause in CLAUSES],
    "integers of numpy": lambda: [[np.int64(literal) for literal in clause] for clause in CLAUSES],
    "an array with zeros": lambda: np.array(flat(CLAUSES), dtype=np.int8),
    "a matrix": lambda: np.array([clause + [0] * (3 - len(clause)) for clause in CLAUSES]).view(np.matrix),
    "an array with rows": lambda: np.array([clause + [0] * (3 - len(clause)) for clause in CLAUSES]),
    "CNF": lambda: CNF(from_clauses=CLAUSES),
    "CNFPlus without bounds": plus,
    "an object with clauses": OnlyClauses,
}
WEIGHTED: dict[str, Callable[[], Any]] = {
    "WCNF": weighted,
    "WCNFPlus without bounds": lambda: weighted(WCNFPlus),
    "an object with iterators": Iterators,
}
REFUSED: dict[str, Callable[[], Any]] = {
    "CNFPlus": lambda: with_bounds(plus()),
    "WCNFPlus": lambda: with_bounds(weighted(WCNFPlus)),
    "IDPool": IDPool,
    "soft clauses without weights": FewWeights,
    "a dict": lambda: {(1, 2): True, (3,): False},
    "dicts as clauses": lambda: [{1: True, 2: False}],
    "texts as clauses": lambda: ["12", "3"],
    "bytes as clauses": lambda: [b"\x01\x02"],
    "literals alone": lambda: [1, 2],
    "an integer": lambda: 3,
    "a 0 within": lambda: [[1, 0, 2]],
    "a fraction": lambda: [[1, 2.0]],
    "a truth value": lambda: [[1, True]],
    "a truth value of numpy": lambda: [[np.True_]],
    "beyond 32 bits": lambda: [[2**31 - 1]],
    "beyond 64 bits": lambda: [[1], [2**70]],
    "the least of 64 bits": lambda: np.array([-(2**63), 0]),
    "the greatest of 64 bits": lambda: np.array([2**64 - 1, 0], dtype=np.uint64),
    "an array with masked entries": lambda: np.ma.array([[1, 2]], mask=[[False, True]]),
    "an array of fractions": lambda: np.array([[1.0]]),
    "an array that is not closed": lambda: np.array([1, 2]),
    "an array without dimensions": lambda: np.array(3),
    "an array with three": lambda: np.ones((1, 1, 1), dtype=int),
    "clauses of unlike objects": lambda: np.array([[1], [1, 2]], dtype=object),
}
#: input that goes into a job without conversion -> its content in the job file
CONTENT: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: path.read_bytes(),
    "a bytearray": lambda path: bytearray(path.read_bytes()),
    "a view": lambda path: memoryview(path.read_bytes()),
    "a name": os.fspath,
    "a path": lambda path: path,
}
FORMS = PLAIN | WEIGHTED | REFUSED


def with_executor(_: Client, formula: Any) -> None:
    executor = FormulaExecutor()
    try:
        executor.submit(solve, formula)
    finally:
        executor.shutdown()


def bootstrap(client: Client, formula: Any) -> None:
    IncrementalSolver(client, formula).solve()


def append(client: Client, formula: Any) -> None:
    solver = IncrementalSolver(client)
    solver.append_formula(formula)
    solver.solve()


SOLVING: dict[str, Callable[[Client, Any], Any]] = {
    "solve": Client.solve,
    "submit": Client.submit,
    "solve_many": lambda client, formula: client.solve_many(iter([formula])),
    "FormulaExecutor": with_executor,
}
ADDING: dict[str, Callable[[Client, Any], Any]] = {"IncrementalSolver": bootstrap, "append_formula": append}
MINIMIZING: dict[str, Callable[[Client, Any], Any]] = {
    "minimize": lambda client, formula: client.minimize(formula, {-1: 4, 3: 5}),
    "maximize": lambda client, formula: client.maximize(formula, {1: 4, np.int8(-3): np.uint8(5)}),
}
OF_WEIGHTED: dict[str, Callable[[Client, Any], Any]] = {
    "minimize as it is": Client.minimize,
    "RC2": lambda client, formula: RC2(formula, client).compute(),
}
DOORS = SOLVING | ADDING | MINIMIZING | OF_WEIGHTED


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", FORMS)
def test_a_formula_is_handed_in_whole_or_refused_by_a_sentence(client: Client, form: str, door: str) -> None:
    if form not in (WEIGHTED if door in OF_WEIGHTED else PLAIN):
        with pytest.raises((TypeError, ValueError), match=r"[a-z]+ [a-z]+ [a-z]+"):
            DOORS[door](client, FORMS[form]())
        return
    with pytest.raises(Handed) as handed:
        DOORS[door](client, FORMS[form]())
    content, assumptions = handed.value.args
    assert assumptions == []
    assert content == (flat(CLAUSES) if door in SOLVING | ADDING else wcnf(CLAUSES, SOFT))


def test_a_sentence_says_what_of_a_formula_cannot_be_held(client: Client) -> None:
    bounded, bounded_and_weighted = with_bounds(plus()), with_bounds(weighted(WCNFPlus))
    for ask in (
        lambda: client.solve(bounded),
        lambda: client.minimize(bounded_and_weighted),
        lambda: RC2(bounded_and_weighted, client),
    ):
        with pytest.raises(BoundsError, match="numbers of literals"):
            ask()
    with pytest.raises(TypeError, match=r"Client\.minimize takes"):
        client.solve(weighted())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", CONTENT)
def test_a_file_or_its_content_is_handed_in_as_it_is(
    client: Client, tmp_path: Path, form: str, door: str
) -> None:
    path = tmp_path / "formula"
    path.write_bytes(b"p cnf 1 1\n1 0\n")
    if door in ADDING | MINIMIZING or door == "RC2":
        with pytest.raises(TypeError, match=r"[a-z]+ [a-z]+ [a-z]+"):
            DOORS[door](client, CONTENT[form](path))
    else:
        with pytest.raises(Handed) as handed:
            DOORS[door](client, CONTENT[form](path))
        assert handed.value.args[0] == path.read_bytes()


def ipasir(client: Client, literals: Any) -> None:
    solver = Ipasir(client)
    for literal in literals:
        solver.assume(literal)
    solver.solve()


def ipamir(client: Client, literals: Any) -> None:
    solver = Ipamir(client)
    for literal in literals:
        solver.assume(literal)
    solver.solve()


def add_to_rc2(client: Client, literals: Any) -> None:
    solver = RC2(WCNF(), client)
    solver.add_clause(literals)
    solver.compute()


def add_soft_to_rc2(client: Client, literals: Any) -> None:
    solver = RC2(WCNF(), client)
    solver.add_clause(literals, weight=np.int8(7))
    solver.compute()


def add_clause(client: Client, literals: Any) -> None:
    solver = IncrementalSolver(client)
    solver.add_clause(literals)
    solver.solve()


def add_to_ipasir(client: Client, literals: Any) -> None:
    solver = Ipasir(client)
    for literal in literals:
        solver.add(literal)
    solver.add(0)
    solver.solve()


def add_to_ipamir(client: Client, literals: Any) -> None:
    solver = Ipamir(client)
    for literal in literals:
        solver.add_hard(literal)
    solver.add_hard(0)
    solver.solve()


def solve_content(client: Client, literals: Any) -> None:
    client.solve(b"p cnf 2 1\n1 2 0\n", literals)


def solve_file(client: Client, literals: Any) -> None:
    path = client.api_dir / "two.cnf"
    path.write_bytes(b"p cnf 2 1\n1 2 0\n")
    client.solve(path, literals)


#: method that takes literals -> how to call it, and the formula and the assumptions handed in
OF_LITERALS: dict[str, tuple[Callable[[Client, Any], Any], Any, list[int]]] = {
    "solve": (lambda client, literals: client.solve([[1]], literals), [1, 0], [1, -2]),
    "solve of content": (solve_content, b"p cnf 2 1\n1 2 0\n", [1, -2]),
    "solve of a file": (solve_file, b"p cnf 2 1\n1 2 0\n", [1, -2]),
    "solve of a solver": (lambda client, given: IncrementalSolver(client).solve(given), [], [1, -2]),
    "solve_limited": (lambda client, given: IncrementalSolver(client).solve_limited(given), [], [1, -2]),
    "enum_models": (lambda client, given: next(IncrementalSolver(client).enum_models(given)), [], [1, -2]),
    "add_clause": (add_clause, [1, -2, 0], []),
    "assume": (ipasir, [], [1, -2]),
    "add": (add_to_ipasir, [1, -2, 0], []),
    "assume of Ipamir": (ipamir, b"h 1 0\nh -2 0\n", []),
    "add_hard": (add_to_ipamir, b"h 1 -2 0\n", []),
    "add_clause of RC2": (add_to_rc2, b"h 1 -2 0\n", []),
    "add_clause of RC2, soft": (add_soft_to_rc2, b"7 1 -2 0\n", []),
}
LITERALS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, -2],
    "an iterator": lambda: iter([1, -2]),
    "a map object": lambda: map(int, ("1", "-2")),
    "a generator": lambda: (literal for literal in (1, -2)),
    "an array": lambda: np.array([1, -2], dtype=np.int8),
    "keys": lambda: {1: "a", -2: "b"}.keys(),
}
NO_LITERALS: dict[str, Callable[[], Any]] = {
    "a fraction": lambda: [1.5],
    "a text": lambda: "12",
    "a list of texts": lambda: ["1"],
    "a truth value": lambda: [True],
    "a list": lambda: [[1, 2], 1],
    "None": lambda: [None],
    "too large": lambda: [LITERAL_MAX + 1],
    "far too large": lambda: [-(2**80)],
}


@pytest.mark.parametrize("door", OF_LITERALS)
@pytest.mark.parametrize("form", LITERALS)
def test_literals_are_read_once_in_any_form(client: Client, form: str, door: str) -> None:
    give, content, assumptions = OF_LITERALS[door]
    with pytest.raises(Handed) as handed:
        give(client, LITERALS[form]())
    assert handed.value.args == (content, assumptions)


@pytest.mark.parametrize("door", OF_LITERALS)
@pytest.mark.parametrize("form", NO_LITERALS)
def test_what_is_no_list_of_literals_is_refused(client: Client, form: str, door: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"literal|integer"):
        OF_LITERALS[door][0](client, NO_LITERALS[form]())


@pytest.mark.parametrize("weight", [-1, 1.5, "2", True, None, 2**63])
def test_a_weight_that_is_none_is_refused(client: Client, weight: Any) -> None:
    formula = weighted()
    formula.wght[0] = weight
    for ask in (
        lambda: RC2(formula, client),
        lambda: client.minimize(formula),
        lambda: client.minimize(CLAUSES, {1: 2**63 if weight == -1 else weight}),
        lambda: Ipamir(client).add_soft(1, weight),
    ):
        with pytest.raises((TypeError, ValueError), match=r"weights? (is|are|must be) "):
            ask()


def test_an_objective_that_is_no_mapping_is_refused(client: Client) -> None:
    for ask in (client.minimize, client.maximize):
        with pytest.raises(TypeError, match="an objective must be a mapping"):
            ask(CLAUSES, [(1, 2)])
    with pytest.raises(TypeError, match="an objective must be a mapping"):
        client.maximize(weighted(), None)  # type: ignore[arg-type]


def test_clauses_of_all_parts_of_a_logical_formula_are_read(client: Client) -> None:
    formula = (Atom("x") @ Atom("y")) | Atom("z")
    expected = flat(list(formula))
    assert len(expected) > len(flat(formula.clauses))
    with pytest.raises(Handed) as handed:
        client.solve(formula)
    assert handed.value.args[0] == expected


@pytest.mark.parametrize("other", [{"literals": [1, 0]}, {"files": ["f.cnf"]}])
def test_a_formula_beside_another_one_is_refused(client: Client, other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        client.solve(CLAUSES, **other)


def test_a_cpmpy_model_is_handed_in_whole(client: Client) -> None:
    cp = pytest.importorskip("cpmpy")
    from mallob_py.api.cpmpy_solver import CpmpySolver

    x = cp.boolvar(3)
    model = cp.Model([x[0] | x[1] | x[2], ~x[0] | x[2], ~x[1] | ~x[2]])
    with pytest.raises(Handed) as handed:
        CpmpySolver(model, client=client).solve()
    assert handed.value.args == (flat(CLAUSES), [])
    with pytest.raises(Handed) as handed:
        CpmpySolver(model, client=client).solve(assumptions=iter([x[0]]))
    assert handed.value.args == (flat(CLAUSES), [1])
    model.minimize(4 * x[0] + 5 * x[1])
    with pytest.raises(Handed) as handed:
        CpmpySolver(model, client=client).solve()
    assert handed.value.args[0].decode().splitlines()[:3] == wcnf(CLAUSES, []).decode().splitlines()
    for form in (model, list(x), x):
        with pytest.raises((TypeError, ValueError), match=r"clause|literals"):
            client.solve(form)


def test_no_clause_at_all_and_an_empty_one_are_told_apart() -> None:
    assert clauses_of([]).tolist() == clauses_of(np.zeros((0, 3), int)).tolist() == []
    assert clauses_of([[]]).tolist() == clauses_of(np.zeros((1, 0), int)).tolist() == [0]
