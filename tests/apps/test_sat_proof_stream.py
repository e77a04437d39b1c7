"""Clauses read from a running solver's proof are whole, and follow from the formula alone."""

import os
import random
from dataclasses import replace

import pytest
from seeds import seeds

from mallob_sat import generate
from mallob_sat.clauses import ProofStream, decode_binary, decode_text
from mallob_sat.formula import Formula, formula_from_list
from mallob_sat.portfolio import KISSAT, TRADES
from mallob_sat.solvers import Solver, Verdict

#: number of formulas per solver
FORMULAS = int(os.environ.get("MALLOB_PY_FORMULAS", "60"))


def binary(kind: str, literals: list[int]) -> bytes:
    octets = bytearray(kind.encode())
    for literal in literals:
        code = 2 * abs(literal) + (literal < 0)
        while code >= 0x80:
            octets.append(code & 0x7F | 0x80)
            code >>= 7
        octets.append(code)
    return bytes(octets) + b"\0"


def text(kind: str, literals: list[int]) -> bytes:
    prefix = "d " if kind == "d" else ""
    return (prefix + " ".join(map(str, [*literals, 0])) + "\n").encode()


def random_steps(choose: random.Random) -> list[tuple[str, list[int]]]:
    def literal() -> int:
        return choose.choice((-1, 1)) * choose.choice((1, 63, 64, 127, 128, 8191, 8192, 10**6, 2**31 - 2))

    return [
        (choose.choice("aaad"), [literal() for _ in range(choose.choice((0, 1, 2, 3, 5, 8, 40)))])
        for _ in range(choose.randint(0, 60))
    ]


def of_interest(steps: list[tuple[str, list[int]]], length_max: int, variable_max: int) -> list[list[int]]:
    chosen = [
        clause
        for kind, clause in steps
        if kind == "a" and 0 < len(clause) <= length_max and max(map(abs, clause)) <= variable_max
    ]
    return sorted(chosen, key=len)


@pytest.mark.parametrize("seed", seeds(100))
def test_short_clauses_are_decoded_and_an_unfinished_step_is_left(seed: int) -> None:
    choose = random.Random(seed)
    steps = random_steps(choose)
    length_max, variable_max = choose.choice((1, 3, 8)), choose.choice((100, 10**7, 2**31 - 2))
    expected = of_interest(steps, length_max, variable_max)
    for encode, decode in ((binary, decode_binary), (text, decode_text)):
        whole = b"".join(encode(*step) for step in steps)
        tail = encode("a", [5, 70000])[: choose.randint(0, 3)]
        clauses, used = decode(whole + tail, length_max, variable_max)
        assert used == len(whole)
        assert clauses.lists() == expected


@pytest.mark.parametrize("seed", seeds(100))
def test_of_many_clauses_only_the_shortest_are_decoded(seed: int) -> None:
    choose = random.Random(seed)
    steps = random_steps(choose)
    whole = b"".join(binary(*step) for step in steps)
    variable_max, literals_max = choose.choice((100, 10**7)), choose.randint(0, 80)
    all_ = of_interest(steps, 8, variable_max)
    clauses, used = decode_binary(whole, 8, variable_max, literals_max)
    found = clauses.lists()
    assert used == len(whole)
    assert all(clause in all_ for clause in found)
    assert found == all_ or sum(map(len, found)) >= literals_max
    largest = max((len(binary("a", clause)) for clause in found), default=0)
    assert all(clause in found for clause in all_ if len(binary("a", clause)) <= largest)


def test_what_is_not_wanted_is_not_decoded() -> None:
    whole = b"".join(binary("a", list(range(first, first + 8))) for first in range(1, 50))
    clauses, _ = decode_binary(whole + binary("a", [3, 4]), 8, 60, 2)
    assert clauses.lists() == [[3, 4]]


@pytest.mark.parametrize("seed", seeds(20))
def test_a_stream_gives_each_clause_once_however_the_writing_is_cut(seed: int) -> None:
    choose = random.Random(seed)
    steps = random_steps(choose)
    data = b"".join(binary(*step) for step in steps)
    stream = ProofStream(length_max=8, variable_max=10**7, is_binary=True)
    found: list[list[int]] = []
    while data:
        size = choose.randint(1, 40)
        os.write(stream.fd, data[:size])
        data = data[size:]
        found += stream.take().lists()
    stream.close()
    assert sorted(found, key=len) == of_interest(steps, 8, 10**7)


def test_what_has_been_read_takes_no_memory() -> None:
    stream = ProofStream(length_max=2, variable_max=9, is_binary=True)
    for _ in range(20):
        os.write(stream.fd, binary("a", [1, 2, 3, 4, 5, 6]) * 100_000)
        stream.take()
    assert os.fstat(stream.fd).st_size > 10_000_000
    assert os.fstat(stream.fd).st_blocks * 512 < 100_000
    stream.close()


@pytest.mark.parametrize(("step", "is_binary"), [(b"a\x02\x05\x06\0", True), (b"1 -2 3 0\n", False)])
def test_a_stream_goes_on_with_a_whole_step_after_some_were_skipped(step: bytes, is_binary: bool) -> None:
    stream = ProofStream(length_max=8, variable_max=9, is_binary=is_binary)
    os.write(stream.fd, step * 800_000 + step[:3])
    stream.skip()
    assert os.fstat(stream.fd).st_blocks * 512 < 1 << 20
    os.write(stream.fd, step[3:])
    assert stream.take().lists() == [[1, -2, 3]]
    stream.close()


def implied(clause: list[int], formula: Formula) -> bool:
    """Tell whether another solver finds the formula and the negated clause contradictory."""
    judge = Solver("minisat22")
    judge.add_formula(formula)
    return judge.solve([-literal for literal in clause]) is Verdict.UNSATISFIABLE


@pytest.mark.parametrize("engine", sorted(set(TRADES) - {KISSAT}))  # kissat: test_kissat_door
def test_all_that_a_solver_gives_away_follows_from_the_formula_alone(engine: str) -> None:
    """The searches have assumptions, several time slices, and foreign clauses in between."""
    choose = random.Random(engine)
    given = 0
    for _ in range(FORMULAS):
        n_vars = choose.randint(20, 120)
        clauses = generate.uniform(n_vars, round(choose.uniform(3.9, 4.6) * n_vars), choose.randrange(10**6))
        flat = [x for clause in clauses.clauses for x in (*clause, 0)]
        formula = formula_from_list(flat)
        names = choose.sample(range(1, n_vars + 1), choose.choice((0, 0, 3)))
        assumptions = [choose.choice((-1, 1)) * name for name in names]
        stream = ProofStream(
            length_max=12, variable_max=formula.n_vars, is_binary=Solver.has_binary_proof(engine)
        )
        solver = Solver(engine)
        solver.trace_proof(os.fdopen(os.dup(stream.fd), "w+b", buffering=0))
        solver.add_formula(formula)
        for _ in range(4):
            answer = solver.solve_for(choose.choice((10, 100, 1000)), assumptions)
            solver.flush_proof()
            found = stream.take().lists()
            given += len(found)
            for clause in choose.sample(found, min(len(found), 40)):
                assert implied(clause, formula), f"{engine}: {clause} does not follow"
            for clause in ([name, choose.randint(1, n_vars)] for name in range(1, 9)):
                if implied(clause, formula):
                    solver.add_clause(clause)
            if answer is not Verdict.UNDECIDED:
                break
        stream.close()
    assert given > 5 * FORMULAS


@pytest.mark.parametrize("engine", sorted(set(TRADES) - {KISSAT}))
def test_no_solver_gives_clauses_over_variables_that_it_has_defined(engine: str) -> None:
    rng = random.Random(1)
    clauses, used, declared = [], 350, 400
    for _ in range(16):  # all clauses between two sets of literals: worth a definition each
        ours, theirs = rng.sample(range(1, used + 1), 6), rng.sample(range(1, used + 1), 8)
        clauses += [[one, other] for one in ours for other in theirs if one != other]
    clauses += [[rng.choice((-1, 1)) * v for v in rng.sample(range(1, used + 1), 3)] for _ in range(1200)]
    literals = [literal for clause in clauses for literal in (*clause, 0)]
    formula = replace(formula_from_list(literals), n_vars=declared)
    stream = ProofStream(30, declared, Solver.has_binary_proof(engine))
    try:
        solver = Solver(engine)
        solver.trace_proof(os.fdopen(os.dup(stream.fd), "w+b", buffering=0))
        solver.add_formula(formula)
        answer = solver.solve_for(20_000)
        solver.flush_proof()
        given = [abs(literal) for clause in stream.take().lists() for literal in clause]
    finally:
        stream.close()
    assert max(given, default=0) <= used
    if answer is Verdict.SATISFIABLE:
        assert len(solver.model()) == declared
