"""The checker of proofs accepts right proofs, and refuses all others with the line of the error."""

import gzip
import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import proof_reference
import pytest
from dimacs_text import parse_dimacs
from proof_reference import RawStep
from proving import cadical_proof, dimacs, unsatisfiable_formula

from mallob_sat.generate import pigeonhole
from mallob_sat.proof_checker import Checker, MalformedStep, Refuted, Unreadable, read_clauses, read_steps

SQUARE = [[1, 2], [1, -2], [-1, 2], [-1, -2]]


def check(formula: Sequence[Sequence[int]], proof: str | bytes) -> None:
    data = proof.encode() if isinstance(proof, str) else proof
    Checker(formula).check(read_steps(io.BytesIO(data)))


def is_verified(formula: Sequence[Sequence[int]], proof: str | bytes) -> bool:
    try:
        check(formula, proof)
    except (Refuted, MalformedStep):
        return False
    return True


# --- single steps of proofs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "proof"),
    [
        (SQUARE, "5 1 0 1 2 0\n6 0 5 3 4 0\n"),
        (SQUARE, "c a comment\n\n5 1 0 1 2 0\n5 d 1 2 0\r\n6 0 5 3 4 0\n5 nothing after the end is read"),
        (SQUARE, "50 1 0 1 2 0\n60 0 50 3 4 0"),
        ([[1], [-1]], "3 0 1 2 0\n"),
        ([[1, 2], []], "3 0 2 0\n"),
        ([[1, 1], [-1, -1, -1]], "3 0 1 2 0\n"),
        ([*SQUARE, [3, -3]], "6 3 -3 0 0\n7 1 1 0 1 2 0\n8 0 7 3 4 0\n"),
        # A new variable that stands for 1 and 2: x -> 1, x -> 2, and 1, 2 -> x by RAT upon x.
        (SQUARE, "5 -9 1 0 0\n6 -9 2 0 0\n7 9 -1 -2 0 -5 -6 0\n8 1 0 1 2 0\n9 0 8 3 4 0\n"),
        # Pivot -1 against (1 2), which needs propagation, and against (1 4), which needs nothing.
        (
            [[1, 2], [1, 4], [-2, 3], [-3, -2], [2, 5], [2, -5]],
            "7 -1 -4 0 -1 5 6 0\n8 2 0 5 6 0\n9 0 8 3 4 0\n",
        ),
    ],
    ids=["square", "comments", "gaps", "units", "empty clause", "twice", "tautology", "definition", "RAT"],
)
def test_a_right_proof_is_verified(formula: list[list[int]], proof: str) -> None:
    check(formula, proof)


@pytest.mark.parametrize(
    ("proof", "complaint"),
    [
        ("", "without the empty clause"),
        ("5 1 0 1 2 0\n", "after 1 steps without the empty clause"),
        ("5 1 0 1 0\n6 0 5 3 4 0\n", "line 1: the hints lead to no contradiction"),
        ("5 1 0 3 1 0\n", "line 1: hint 3 has more than one literal left"),
        ("5 1 0 1 9 0\n", "line 1: hint 9 names no clause"),
        ("5 1 0 1 5 0\n", "line 1: hint 5 names no clause"),
        ("4 1 0 1 2 0\n", "line 1: id 4 does not exceed 4"),
        ("6 1 0 1 2 0\n5 1 0 1 2 0\n", "line 2: id 5 does not exceed 6"),
        ("5 1 0 1 2 0\n5 d 3 0\n6 0 5 3 4 0\n", "line 3: hint 3 names no clause"),
        ("4 d 7 0\n", "line 1: deletes clause 7"),
        ("4 d 3 3 0\n", "line 1: deletes clause 3"),
        ("5 0 0\n", "line 1: the hints do not lead to the empty clause"),
        ("5 1 0 0\n", "line 1: the hints lead to no contradiction"),
        ("5 -9 1 0 0\n6 9 0 0\n", "line 2: the hints lead to no contradiction"),
        ("5 -9 1 0 0\n6 -9 2 0 0\n7 9 -1 0 -5 0\n", "no hints are for clause 6 with -9"),
        ("5 -9 1 0 0\n6 9 0 -5 4 0\n", "hint 4 has more than one literal left"),
        ("5 -9 1 0 0\n6 9 0 -5 5 0\n", "the hints for clause 5 lead to no contradiction"),
        ("5 -9 1 0 0\n6 9 0 -5 0\n", "the hints for clause 5 lead to no contradiction"),
        ("5 1 0 1 2", "line 1: does not end with 0"),
        ("5 1 0", "line 1: no list of hints"),
        ("5 1 0 1 2 0 0", "line 1: more than two lists"),
        ("1 0\n", "line 1"),
        ("d 1 2 0\n", "line 1: a DRAT step"),
        ("5 x 0 1 2 0\n", "line 1: not a step of LRAT"),
        ("0\n", "line 1"),
    ],
)
def test_a_wrong_step_is_named_with_its_reason(proof: str, complaint: str) -> None:
    with pytest.raises((Refuted, MalformedStep)) as caught:
        check(SQUARE, proof)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hints", ["", "-1", "-1 1", "-1 2", "-9"])
def test_a_clause_that_only_some_models_satisfy_is_no_rat(hints: str) -> None:
    """The resolvent of the new clause (1) and clause 1 is (2), which no hint can show."""
    with pytest.raises(Refuted, match=r"line 1: .*(no contradiction|one literal left|names no clause)"):
        check([[-1, 2], [1, 3, 4]], f"3 1 0 {hints} 0\n")


# --- binary proofs --------------------------------------------------------------------------


def binary(steps: Sequence[RawStep]) -> bytes:
    def number(x: int) -> bytes:
        u, groups = 2 * abs(x) + (x < 0), bytearray()
        while u > 127:
            groups.append(u & 127 | 128)
            u >>= 7
        return bytes([*groups, u])

    parts = []
    for id_, literals, hints in steps:
        if hints is None:
            parts.append(b"d" + b"".join(map(number, literals)) + b"\0")
        else:
            lists = [b"".join(map(number, x)) + b"\0" for x in ([id_, *literals], hints)]
            parts.append(b"a" + b"".join(lists))
    return b"".join(parts)


def text(steps: Sequence[RawStep]) -> str:
    def line(step: RawStep) -> str:
        id_, literals, hints = step
        words = [id_, "d", *literals, 0] if hints is None else [id_, *literals, 0, *hints, 0]
        return " ".join(map(str, words))

    return "".join(line(step) + "\n" for step in steps)


def parsed(proof: bytes) -> list[RawStep]:
    return [(step.id, step.integers, step.hints) for step in read_steps(io.BytesIO(proof))]


def test_text_and_binary_say_the_same() -> None:
    formula = [list(clause) for clause in pigeonhole(5).clauses]
    steps = parsed(cadical_proof(formula))
    assert parsed(binary(steps)) == [(0 if hints is None else id_, x, hints) for id_, x, hints in steps]
    check(formula, binary(steps))


def test_a_binary_proof_cut_anywhere_is_refused() -> None:
    data = binary([(5, [1], [1, 2]), (0, [1], None), (600, [], [5, 3, 4])])
    assert is_verified(SQUARE, data)
    assert not any(is_verified(SQUARE, data[:size]) for size in range(len(data)))


def test_binary_numbers_must_be_whole_and_tags_known() -> None:
    for data in (b"x\x0a\0\0", b"a\x0a\x82\0\0", b"a\0\0", b"a\x0a\x01\0\0", b"\0"):
        with pytest.raises(MalformedStep, match="step 1"):
            check(SQUARE, data)


def test_steps_across_the_borders_of_what_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    formula = [list(clause) for clause in pigeonhole(4).clauses]
    proof = cadical_proof(formula)
    steps = parsed(proof)
    for size in (40, 41, 50, 64, 99):
        monkeypatch.setattr("mallob_sat.proof_checker._CHUNK_BYTES", size)
        assert parsed(proof) == steps
        assert [step[1:] for step in parsed(binary(steps))] == [step[1:] for step in steps]


# --- damaged proofs -------------------------------------------------------------------------

Damage = Callable[[random.Random, list[RawStep]], list[RawStep]]


def _in_one_step(change: Callable[[random.Random, RawStep], RawStep]) -> Damage:
    def damage(rng: random.Random, steps: list[RawStep]) -> list[RawStep]:
        at = rng.randrange(len(steps))
        return [*steps[:at], change(rng, steps[at]), *steps[at + 1 :]]

    return damage


def _with(rng: random.Random, items: list[int], kind: str) -> list[int]:
    items = list(items)
    at = rng.randrange(len(items)) if items else 0
    if kind == "insert" or not items:
        return [*items[:at], rng.choice((1, -1)) * rng.randint(1, 9), *items[at:]]
    if kind == "drop":
        del items[at]
    elif kind == "swap":
        other = rng.randrange(len(items))
        items[at], items[other] = items[other], items[at]
    elif kind == "negate":
        items[at] = -items[at]
    else:
        items[at] = items[at] + rng.choice((-1, 1)) or 1
    return items


def _literals(kind: str) -> Damage:
    return _in_one_step(lambda rng, step: (step[0], _with(rng, step[1], kind), step[2]))


def _hints(kind: str) -> Damage:
    return _in_one_step(
        lambda rng, step: (step[0], step[1], None if step[2] is None else _with(rng, step[2], kind))
    )


def _drop_step(rng: random.Random, steps: list[RawStep]) -> list[RawStep]:
    at = rng.randrange(len(steps))
    return steps[:at] + steps[at + 1 :]


def _swap_steps(rng: random.Random, steps: list[RawStep]) -> list[RawStep]:
    one, other = sorted(rng.choices(range(len(steps)), k=2))
    if one == other:
        return list(steps)
    return [*steps[:one], steps[other], *steps[one + 1 : other], steps[one], *steps[other + 1 :]]


def _delete_early(rng: random.Random, steps: list[RawStep]) -> list[RawStep]:
    at = rng.randrange(len(steps))
    used = [hint for _, _, hints in steps[at:] for hint in hints or ()]
    return [*steps[:at], (0, [abs(rng.choice(used or [1]))], None), *steps[at:]]


def _repeat_step(rng: random.Random, steps: list[RawStep]) -> list[RawStep]:
    at = rng.randrange(len(steps))
    return [*steps[:at], steps[at], *steps[at:]]


DAMAGES: dict[str, Damage] = {
    **{f"literals: {kind}": _literals(kind) for kind in ("drop", "swap", "negate", "insert", "next")},
    **{f"hints: {kind}": _hints(kind) for kind in ("drop", "swap", "negate", "insert", "next")},
    "id": _in_one_step(lambda rng, step: (step[0] + rng.choice((-1, 1, -20, 20)), step[1], step[2])),
    "drop a step": _drop_step,
    "swap steps": _swap_steps,
    "delete early": _delete_early,
    "repeat a step": _repeat_step,
    "no empty clause": lambda rng, steps: [step for step in steps if step[1] or step[2] is None],
}


@pytest.mark.parametrize("engine", ["cadical195", "cadical300"])
def test_damaged_proofs_are_verified_only_if_the_reference_agrees(engine: str) -> None:
    """Proofs are damaged in text and in binary; proofs of CaDiCaL 3.0 contain RAT steps."""
    rng = random.Random(7)
    formulas = [[list(clause) for clause in pigeonhole(n).clauses] for n in (3, 4)]
    formulas += [unsatisfiable_formula(rng) for _ in range(8)]
    refused: Counter[str] = Counter()
    for formula in formulas:
        steps = parsed(cadical_proof(formula, engine))
        assert proof_reference.accepts(formula, steps)
        for name, damage in DAMAGES.items():
            for _ in range(25):
                damaged = damage(rng, steps)
                expected = proof_reference.accepts(formula, damaged)
                assert is_verified(formula, text(damaged)) == expected, text(damaged)
                assert is_verified(formula, binary(damaged)) == expected, text(damaged)
                refused[name] += not expected
    assert set(refused) >= set(DAMAGES) - {"literals: swap"}
    assert refused["no empty clause"] == 25 * len(formulas)
    assert refused.total() > 12 * len(DAMAGES) * len(formulas)


def minimal(formula: list[list[int]]) -> list[list[int]]:
    """Return a formula without the clauses that its unsatisfiability does not need."""
    kept = list(formula)
    for clause in formula:
        rest = [other for other in kept if other is not clause]
        if not proof_reference.is_satisfiable(rest):
            kept = rest
    return kept


def test_a_proof_never_verifies_a_satisfiable_formula() -> None:
    """A proof is checked against formulas that differ from the refuted one in a clause, a literal or the
    order.
    """
    rng = random.Random(3)
    satisfiable = 0
    for _ in range(60):
        formula = minimal(unsatisfiable_formula(rng, n_vars_max=5))
        steps = parsed(cadical_proof(formula))
        for _ in range(10):
            other = [list(clause) for clause in formula]
            at = rng.randrange(len(other))
            kind = rng.randrange(4)
            if kind == 0:
                del other[at]
            elif kind == 1 and other[at]:
                place = rng.randrange(len(other[at]))
                other[at][place] = -other[at][place]
            elif kind == 2:
                other[at].append(rng.choice((1, -1)) * rng.randint(1, 8))
            else:
                rng.shuffle(other)
            verified = is_verified(other, text(steps))
            assert verified == proof_reference.accepts(other, steps)
            if proof_reference.is_satisfiable(other):
                satisfiable += 1
                assert not verified
    assert satisfiable > 100


def test_a_text_proof_cut_anywhere_is_refused() -> None:
    formula = [list(clause) for clause in pigeonhole(3).clauses]
    proof = cadical_proof(formula)
    complete = proof.rstrip().splitlines()[-1]
    assert complete.split()[1] == b"0", "the last step is the empty clause"
    assert is_verified(formula, proof)
    for size in range(len(proof) - 2):
        assert not is_verified(formula, proof[:size]), size


# --- the formula of a proof -----------------------------------------------------------------


def test_the_formula_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "f.cnf.gz"
    path.write_bytes(gzip.compress(b"c hello\np cnf 3 4\n1 -2\n 0 3 0\nc\n0\t-3 3 3 0\r\n%\n0\n"))
    assert read_clauses(str(path)) == [(1, -2), (3,), (), (-3, 3, 3)]
    path.write_bytes(b"\xef\xbb\xbfp cnf 1 1\n1 0\n")
    assert read_clauses(str(path)) == [(1,)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "1 2 0\n",
        "p cnf 2 1\n1 2\n",
        "p cnf 2 2\n1 2 0\n",
        "p cnf 2 1\n1 0\n2 0\n",
        "p cnf 2 1\n1 3 0\n",
        "p cnf 2 1\n1 x 0\n",
        "p cnf 20 1\n1_0 0\n",
        "p cnf 2 1\n+1 0\n",
        "p cnf 2 1\n1 - 2 0\n",
        "p wcnf 2 1\n1 0\n",
        "p cnf 2 1\n1\nx2 0\n",
        "p cnf 2 1\nx1 2\n",
        "p cnf 2 1\nx1 0 2 0\n",
        "p cnf 2 1\nx\n",
        "p cnf 2 1\nx1 y 0\n",
        "p cnf 2 1\nx1 3 0\n",
        "p cnf 2 2\nx1 2 0\n",
        "p cnf 20 1\nx1 2 3 4 5 6 7 8 9 10 11 0\n",
    ],
)
def test_a_formula_in_doubt_is_not_read(content: str, tmp_path: Path) -> None:
    path = tmp_path / "f.cnf"
    path.write_text(content)
    with pytest.raises(Unreadable, match=r"f\.cnf"):
        read_clauses(str(path))


def test_a_cut_compressed_formula_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f.cnf.gz"
    path.write_bytes(gzip.compress(dimacs(SQUARE).encode())[:-9])
    with pytest.raises(Unreadable):
        read_clauses(str(path))
    with pytest.raises(Unreadable, match="No such file"):
        read_clauses(str(tmp_path / "none"))


def test_two_readers_take_an_xor_for_the_same_clauses_in_the_same_order(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "f.cnf"
    for _ in range(200):
        xors = [[rng.choice((-1, 1)) * rng.randint(1, 5) for _ in range(rng.randint(0, 7))] for _ in range(3)]
        lines = [f"x{' '.join(map(str, (*xor, 0)))}" for xor in xors]
        text = "\n".join(["p cnf 5 4", *lines[:2], "1 -2 0", lines[2], ""])
        path.write_text(text)
        flat = [literal for clause in read_clauses(str(path)) for literal in (*clause, 0)]
        assert flat == parse_dimacs(text.encode(), "f.cnf").literals.tolist()


def test_a_proof_of_a_formula_with_xors_names_the_clauses_that_they_become(tmp_path: Path) -> None:
    path = tmp_path / "f.cnf"
    path.write_text("p cnf 3 3\nx1 2 3 0\nx-1 2 3 0\n1 0\n")
    clauses = read_clauses(str(path))
    assert len(clauses) == 9
    check(clauses, cadical_proof([list(clause) for clause in clauses]).decode())


@pytest.mark.parametrize("formula", [[[]], [[1], [], [2]]])
def test_a_formula_with_the_empty_clause_needs_no_proof(formula: list[list[int]]) -> None:
    check(formula, "")
