"""Formulas to refute, and the proofs of their unsatisfiability that CaDiCaL writes."""

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from proof_reference import is_satisfiable

from mallob_py.kit import JobInput, Payload
from mallob_sat.app import SatApplication
from mallob_sat.formula import Formula
from mallob_sat.portfolio import Strategy
from mallob_sat.proofs import ProofRequest, solve_with_proof

#: folder in memory, where flushing hundreds of proofs takes no time
_MEMORY = "/dev/shm"


def dimacs(clauses: Sequence[Sequence[int]]) -> str:
    n_vars = max((abs(literal) for clause in clauses for literal in clause), default=0)
    lines = [" ".join(map(str, (*clause, 0))) for clause in clauses]
    return f"p cnf {n_vars} {len(clauses)}\n" + "".join(line + "\n" for line in lines)


def payload_of(clauses: Sequence[Sequence[int]], configuration: Mapping[str, object]) -> Payload:
    flat = [literal for clause in clauses for literal in (*clause, 0)]
    return SatApplication().read(JobInput(literals=flat, configuration=configuration))


def prove(clauses: Sequence[Sequence[int]], proof: Path, strategy: Strategy, form: str = "lrat") -> int:
    """Solve a formula and write a proof; return the code of the answer."""
    configuration = {"proof": str(proof), "proof-format": form}
    payload = payload_of(clauses, configuration)
    request = ProofRequest.from_configuration(configuration)
    assert request is not None
    return solve_with_proof(Formula.from_payload(payload), strategy, request, payload).code


def cadical_proof(clauses: Sequence[Sequence[int]], engine: str = "cadical195", form: str = "lrat") -> bytes:
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        proof = Path(folder) / "proof"
        assert prove(clauses, proof, Strategy(engine), form) == 20
        return proof.read_bytes()


def unsatisfiable_formula(rng: random.Random, n_vars_max: int = 8) -> list[list[int]]:
    """Return a formula with unit clauses, tautologies and repeated literals: all that disturbs numbering."""
    while True:
        n_vars = rng.randint(1, n_vars_max)

        def literal(n_vars: int = n_vars) -> int:
            return rng.choice((1, -1)) * rng.randint(1, n_vars)

        lengths = rng.choice([(1, 2, 3, 3), (2, 3), (3, 3, 4), (1, 3)])
        clauses = [
            [literal() for _ in range(rng.choice(lengths))] for _ in range(rng.randint(2, 10 * n_vars + 2))
        ]
        if not is_satisfiable(clauses):
            return clauses
