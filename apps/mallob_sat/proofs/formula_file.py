"""A reader of DIMACS formulas for the checker alone, slow and plain on purpose.

The solvers' reader (`mallob_sat.dimacs`) is fast and clever. If the checker used it too, a formula
that it misreads would be refuted, the refutation checked, and nobody would notice. So this one
shares no code with it and does the obvious: words, one after the other.

Guarantees: clause k of the file is at position k - 1; a file that does not hold exactly the
clauses that its header declares raises Unreadable.
"""

from __future__ import annotations

from mallob_sat.proofs.input_file import Unreadable, open_input

Clause = tuple[int, ...]


def read_clauses(path: str) -> list[Clause]:
    """All clauses in file order. Raises Unreadable."""
    with open_input(path) as file:
        text = file.read()
    try:
        return _clauses(text)
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from None


def _clauses(text: bytes) -> list[Clause]:
    header: list[bytes] | None = None
    clauses: list[Clause] = []
    literals: list[int] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        words = line.split()
        if not words or words[0].startswith(b"c"):
            continue
        if words[0] == b"%":  # the trailer of SATLIB: a line of %, a line of 0
            break
        if header is None:
            if len(words) != 4 or words[:2] != [b"p", b"cnf"]:
                raise ValueError(f"line {number}: 'p cnf VARIABLES CLAUSES' expected")
            header = words
            n_vars, n_clauses = int(header[2]), int(header[3])
            continue
        if line.translate(None, b"-0123456789 \t\r"):  # int() reads 1_0 and +1 too
            raise ValueError(f"line {number}: not all are integers: {line[:60]!r}")
        for literal in map(int, words):
            if literal == 0:
                clauses.append(tuple(literals))
                literals = []
            elif -n_vars <= literal <= n_vars:
                literals.append(literal)
            else:
                raise ValueError(f"line {number}: literal {literal}, but there are {n_vars} variables")
    if header is None:
        raise ValueError("no line 'p cnf VARIABLES CLAUSES'")
    if literals:
        raise ValueError("the last clause is not closed by 0 (truncated?)")
    if len(clauses) != n_clauses:
        raise ValueError(f"{len(clauses)} clauses found, but {n_clauses} declared")
    return clauses
