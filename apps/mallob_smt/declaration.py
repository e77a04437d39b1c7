"""The declaration of SMT: names of results, answers as text. This module has no slow imports."""

from __future__ import annotations

from mallob_py.kit.declaration import AGREEMENT, DONE, SEED, UNKNOWN, Declaration, JobOption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, ClassVar

SATISFIABLE = 10
UNSATISFIABLE = 20
#: answer to the last check -> result code; the code of scripts without a check is DONE
CODES = {"sat": SATISFIABLE, "unsat": UNSATISFIABLE, "unknown": UNKNOWN}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


class SmtDeclaration(Declaration):
    """The declaration of the application SMT."""

    name: ClassVar[str] = "SMT"
    result_strings: ClassVar[Mapping[int, str]] = {SATISFIABLE: "SAT", UNSATISFIABLE: "UNSAT", DONE: "DONE"}
    exit_codes: ClassVar[Mapping[int, int]] = {SATISFIABLE: 10, UNSATISFIABLE: 20, UNKNOWN: 0, DONE: 0}
    options: ClassVar[tuple[JobOption, ...]] = (
        SEED,
        JobOption(
            "--engines",
            _names,
            metavar="NAME,...",
            help="solvers of an SMT job, in the order in which they are tried: z3, cvc5, bitwuzla (default: "
            "all that are installed, in the order that suits the script)",
        ),
        AGREEMENT,
    )
    text_format: ClassVar[str] = "smt"
    value_label: ClassVar[str] = "checks answered"

    @classmethod
    def answer_lines(cls, result: Mapping[str, Any], solution: Sequence[int] | bytes) -> Iterator[str]:
        """Yield the transcript of one engine; `unknown` if no engine has completed a check."""
        text = bytes(solution).decode(errors="replace") if isinstance(solution, bytes) else ""
        if text:
            yield text.removesuffix("\n")
        elif result["resultcode"] == UNKNOWN:
            yield "unknown"
