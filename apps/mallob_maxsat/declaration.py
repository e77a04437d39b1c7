"""The declaration of MAXSAT: names of results, exit codes, answers as text.

This module has no slow imports, because commands import it.
"""

from __future__ import annotations

from mallob_py.kit.declaration import UNKNOWN, Declaration, JobOption, truth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, ClassVar

#: code of a solution that need not be optimal
SATISFIABLE = 10
#: code of a formula whose hard clauses have no solution
UNSATISFIABLE = 20
OPTIMUM = 30
_ANSWERS = {SATISFIABLE: "SATISFIABLE", UNSATISFIABLE: "UNSATISFIABLE", OPTIMUM: "OPTIMUM FOUND"}


class MaxSatDeclaration(Declaration):
    """The declaration of the application MAXSAT."""

    name: ClassVar[str] = "MAXSAT"
    minimizes: ClassVar[bool] = True
    value_label: ClassVar[str] = "cost"
    result_strings: ClassVar[Mapping[int, str]] = _ANSWERS
    exit_codes: ClassVar[Mapping[int, int]] = {SATISFIABLE: 10, UNSATISFIABLE: 20, OPTIMUM: 30, UNKNOWN: 0}
    options: ClassVar[tuple[JobOption, ...]] = (
        JobOption(
            "--sharing",
            truth,
            metavar="true|false",
            help="whether workers of a MAXSAT job send each other clauses that they learn (default false)",
        ),
    )
    text_format: ClassVar[str] = "maxsat"
    comment: ClassVar[str] = "c "

    @classmethod
    def answer_lines(cls, result: Mapping[str, Any], solution: Sequence[int] | bytes) -> Iterator[str]:
        """Yield the `o`, `s` and `v` lines of the MaxSAT Evaluations."""
        if isinstance(solution, bytes):
            raise ValueError("this answer is bytes, which the text format cannot show; ask for JSON")
        code = result["resultcode"]
        has_solution = code in (SATISFIABLE, OPTIMUM)
        if has_solution:
            yield f"o {result['cost']}"
        yield f"s {_ANSWERS.get(code, 'UNKNOWN')}"
        if has_solution:
            yield f"v {''.join('1' if literal > 0 else '0' for literal in solution)}".rstrip()
