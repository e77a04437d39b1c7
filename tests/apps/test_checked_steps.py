"""The checker of derivations: it signs clauses that follow, and refuses some two hundred false steps of eight
kinds.

The derivations are real ones (of PySAT's CaDiCaL), with a variable G added to each clause of the formula and
of the derivation. The formula then has models (G is true), and no clause without G follows.
"""

import hashlib
import random
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from clause_lists import formula_of
from native_library import needs_library
from proving import cadical_proof
from seeds import seeds

from mallob_sat.checked import Seal, checker_path, signature
from mallob_sat.clauses import SIGNATURE_BYTES, Clauses
from mallob_sat.formula import Formula

pytestmark = needs_library

N_VARS = 20
G = N_VARS + 1
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Step:
    """A step of a derivation: a clause and its hints, or the IDs of clauses to delete."""

    id: int
    clause: tuple[int, ...] = ()
    hints: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()

    def encoded(self) -> bytes:
        if self.deleted:
            return b"".join(b"X" + struct.pack("<Q", id_) for id_ in self.deleted)
        head = struct.pack("<QII", self.id, len(self.clause), len(self.hints))
        return b"D" + head + ints(self.clause) + struct.pack(f"<{len(self.hints)}Q", *self.hints)


@dataclass(frozen=True)
class Derivation:
    clauses: list[tuple[int, ...]]
    steps: list[Step]

    @property
    def formula(self) -> Formula:
        return formula_of(self.clauses)

    def additions(self) -> list[int]:
        """Return the positions of the steps that add a clause by hints."""
        return [at for at, step in enumerate(self.steps) if step.hints]


@dataclass(frozen=True)
class Told:
    """The checker's output: its verdict, and the clauses that it has passed on."""

    verdict: bytes
    shared: Clauses

    @property
    def reason(self) -> str:
        """Return the reason of the checker's refusal, which must exist."""
        assert self.verdict[:1] == b"E", self.verdict
        return self.verdict[1:].decode()


def ints(values: Iterable[int]) -> bytes:
    return np.array(list(values), dtype="<i4").tobytes()


def share(ids: Sequence[int]) -> bytes:
    return b"S" + struct.pack("<I", len(ids)) + b"".join(struct.pack("<QQ", id_, 2) for id_ in ids)


def import_(id_: int, clause: Sequence[int], signed: bytes) -> bytes:
    return b"I" + struct.pack("<QI", id_, len(clause)) + signed + ints(clause)


def unsat(id_: int = 0) -> bytes:
    return b"U" + struct.pack("<Q", id_)


def model(literals: Sequence[int]) -> bytes:
    return b"M" + struct.pack("<I", len(literals)) + ints(literals)


def told(seal: Seal, formula: Formula, *steps: bytes) -> Told:
    """Let a checker follow these steps."""
    begin = seal.key + seal.formula + b"L" + struct.pack("<Q", formula.literals.size) + ints(formula.literals)
    end = b"E" + struct.pack("<Q", formula.assumptions.size) + ints(formula.assumptions)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [checker_path(), "follow", str(theirs.fileno())],
            input=begin + end + b"".join(steps),
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            timeout=DEADLINE_S,
            check=False,
        )
        theirs.close()
        frame = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    return Told(done.stdout, Clauses.decode(frame[4:]) if frame else Clauses.none())


@cache
def refutation(seed: int) -> Derivation:
    """Return a derivation of the unit clause G from clauses that contain G."""
    rng = random.Random(seed)
    while True:
        variables = range(1, N_VARS + 1)
        clauses = [
            tuple(rng.choice((1, -1)) * one for one in rng.sample(variables, 3)) for _ in range(7 * N_VARS)
        ]
        steps = []
        for line in cadical_proof(clauses).decode().splitlines():
            words = line.split()
            if words[1] == "d":
                steps.append(Step(int(words[0]), deleted=tuple(map(int, words[2:-1]))))
                continue
            zero = words.index("0", 1)
            literals, hints = (tuple(map(int, part)) for part in (words[1:zero], words[zero + 1 : -1]))
            steps.append(Step(int(words[0]), (*literals, G), hints))
        steps = [step for step in steps if step.hints or step.deleted]
        if sum(bool(step.hints) for step in steps) > 5:
            return Derivation([(*clause, G) for clause in clauses], steps)


@pytest.fixture(params=seeds(25))
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(-seed)


@pytest.fixture
def derivation(seed: int) -> Derivation:
    return refutation(seed)


@pytest.fixture
def seal(derivation: Derivation) -> Seal:
    return Seal.new(derivation.formula)


def encoded(steps: Iterable[Step]) -> list[bytes]:
    return [step.encoded() for step in steps]


def shared_clause(rng: random.Random, derivation: Derivation, seal: Seal) -> tuple[list[int], bytes]:
    """Return a derived clause as another worker gets it, and the clause's signature."""
    at = rng.choice(derivation.additions())
    steps = encoded(derivation.steps[: at + 1])
    found = told(seal, derivation.formula, *steps, share([derivation.steps[at].id])).shared
    return found.lists()[0], found.signatures[0].tobytes()


def test_true_steps_are_signed(derivation: Derivation, seal: Seal) -> None:
    formula = derivation.formula.assuming([-G])
    assumed = Seal(seal.key, signature(seal.key, b"F", inner(seal, formula), ints([-G])))
    last = [step for step in derivation.steps if step.hints][-1]
    found = told(assumed, formula, *encoded(derivation.steps), unsat(last.id))
    wanted = signature(seal.key, b"R", assumed.formula, struct.pack("<i", 20), ints([-G]))
    assert found.verdict == b"U" + wanted + ints([-G])


def inner(seal: Seal, formula: Formula) -> bytes:
    return signature(seal.key, ints(formula.literals))


def test_a_clause_that_has_left_one_checker_is_taken_by_another(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    clause, signed = shared_clause(rng, derivation, seal)
    rng.shuffle(clause)
    assert told(seal, derivation.formula, import_(10**6, clause, signed)).verdict == b""


def test_a_wrong_clause_is_refuted(rng: random.Random, derivation: Derivation, seal: Seal) -> None:
    at = rng.choice(derivation.additions())
    step = derivation.steps[at]
    extra = tuple(rng.sample(range(1, len(derivation.clauses)), rng.randint(0, 3)))
    lie = Step(step.id, step.clause[:-1], step.hints + extra)
    steps = encoded([*derivation.steps[:at], lie])
    assert f"clause {step.id} (" in told(seal, derivation.formula, *steps, unsat()).reason


def test_a_wrong_hint_is_refuted(rng: random.Random, derivation: Derivation, seal: Seal) -> None:
    at = rng.choice(derivation.additions())
    step = derivation.steps[at]
    hints = list(step.hints)
    hints[rng.randrange(len(hints))] = step.id + rng.randint(0, 5)
    lie = Step(step.id, step.clause, rng.choice([tuple(hints), ()]))
    found = told(seal, derivation.formula, *encoded([*derivation.steps[:at], lie]), unsat())
    assert f"clause {step.id} (" in found.reason


def test_a_deleted_clause_is_no_hint(rng: random.Random, derivation: Derivation, seal: Seal) -> None:
    at = rng.choice(derivation.additions())
    step = derivation.steps[at]
    deleted = rng.choice(step.hints)
    steps = encoded([*derivation.steps[:at], Step(0, deleted=(deleted,)), step])
    assert f"hint {deleted} is no clause" in told(seal, derivation.formula, *steps).reason


def test_a_literal_that_has_flipped_on_the_way_is_noticed(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    clause, signed = shared_clause(rng, derivation, seal)
    at = rng.randrange(len(clause))
    clause[at] = rng.choice([-clause[at], clause[at] % G + 1, clause[at] + 1 if clause[at] < G else 1])
    assert "wrong signature" in told(seal, derivation.formula, import_(10**6, clause, signed)).reason


def test_a_bit_that_has_flipped_in_a_signature_is_noticed(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    clause, signed = shared_clause(rng, derivation, seal)
    damaged = bytearray(signed)
    damaged[rng.randrange(SIGNATURE_BYTES)] ^= 1 << rng.randrange(8)
    assert "wrong signature" in told(seal, derivation.formula, import_(10**6, clause, bytes(damaged))).reason


def test_a_clause_of_another_formula_or_key_is_noticed(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    clause, signed = shared_clause(rng, derivation, seal)
    grown = formula_of([*derivation.clauses, (rng.randint(1, N_VARS), -G)])
    same_key = Seal(seal.key, signature(seal.key, b"F", inner(seal, grown)))
    for formula, other in ((grown, same_key), (derivation.formula, Seal.new(derivation.formula))):
        assert "wrong signature" in told(other, formula, import_(10**6, clause, signed)).reason


def test_a_wrong_model_is_noticed(rng: random.Random, derivation: Derivation, seal: Seal) -> None:
    right = [rng.choice((1, -1)) * one for one in range(1, G)] + [G]
    wanted = signature(seal.key, b"R", seal.formula, struct.pack("<i", 10), ints(right))
    assert told(seal, derivation.formula, model(right)).verdict == b"M" + wanted
    number = rng.randrange(len(derivation.clauses))
    wrong = list(right)
    for literal in derivation.clauses[number]:
        wrong[abs(literal) - 1] = -literal
    assert "false" in told(seal, derivation.formula, model(wrong)).reason
    cut = right[: rng.randrange(G)]
    assert "false" in told(seal, derivation.formula, model(cut)).reason
    assert "wrong place" in told(seal, derivation.formula, model([*right[1:], 1])).reason


def test_unsat_without_the_empty_clause_is_not_signed(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    steps = derivation.steps[: rng.randint(0, len(derivation.steps))]
    found = told(seal, derivation.formula, *encoded(steps), unsat())
    assert "without an empty clause" in found.reason
    number = rng.randint(1, len(derivation.clauses))
    assert "not assumed" in told(seal, derivation.formula, unsat(number)).reason


def test_another_formula_than_the_signed_one_is_noticed(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    literals = derivation.formula.literals.copy()
    at = rng.choice(np.flatnonzero(literals).tolist())
    literals[at] = -literals[at]
    lie = Formula(literals, G, len(derivation.clauses), literals[:0])
    assert "not the one" in told(seal, lie).reason
    assert "not the one" in told(seal, derivation.formula.assuming([1])).reason


def test_damaged_steps_end_in_a_line_and_never_in_an_answer(
    rng: random.Random, derivation: Derivation, seal: Seal
) -> None:
    steps = b"".join(encoded(derivation.steps))
    cut = told(seal, derivation.formula, steps[: rng.randrange(len(steps))]).verdict
    assert cut in (b"", b"Ethe steps end in the midst of one")
    for step in (b"Z", b"E" + bytes(8), b"D" + b"\xff" * 16, import_(7, [G + 1], bytes(16)), share([7, 8])):
        assert told(seal, derivation.formula, step).verdict[:1] in (b"", b"E")
    assert "before the end" in told_unloaded(seal, unsat())


def told_unloaded(seal: Seal, step: bytes) -> str:
    done = subprocess.run(
        [checker_path(), "follow", "2"],
        input=seal.key + seal.formula + step,
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("size", [*range(5), 111, 112, 113, 127, 128, 129, 255, 256, 257, 1000])
def test_signatures_are_those_of_another_blake2b(size: int) -> None:
    """Signatures are made by `mallob-check read`, which signs a formula's literals and zeros, 4 bytes
    each.
    """
    key = random.Random(size).randbytes(16)
    literals = [number % 50 + 1 for number in range(size)] + ([0] if size else [])
    text = f"p cnf 50 {int(size > 0)}\n{' '.join(map(str, literals))}\n"
    done = subprocess.run(
        [checker_path(), "read"], input=key + text.encode(), stdout=subprocess.PIPE, check=False
    )
    wanted = hashlib.blake2b(ints(literals), key=key, digest_size=16).digest()
    assert done.stdout == b"F" + wanted
