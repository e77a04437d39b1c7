"""The declaration of SAT for commands and the service: options, names of results, answers as text.

This module has no slow imports, because every command that takes SAT's options imports it.
"""

from __future__ import annotations

from mallob_py.kit.declaration import AGREEMENT, SEED, UNKNOWN, Declaration, JobOption, truth, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, ClassVar

SATISFIABLE = 10
UNSATISFIABLE = 20
PROOF_FORMATS = ("lrat", "drat")
#: configuration keys that ask for more than an answer, or name solvers. With such a key, a job may be
#: impossible with some portfolios, so the service's default portfolio is not applied
_ABOUT_SOLVERS = frozenset(("portfolio", "solvers", "proof", "solutions", "core", "agreement", "checked"))
_ANSWERS = {SATISFIABLE: "SATISFIABLE", UNSATISFIABLE: "UNSATISFIABLE"}
_LINE_LENGTH = 78


def _portfolio(text: str) -> str:
    from mallob_py.kit import InputError
    from mallob_sat.portfolio_syntax import parse_portfolio

    try:
        parse_portfolio(text)
    except InputError as error:
        raise ValueError(error.message) from None
    return text


def _solution_count(text: str) -> int | str:
    return "all" if text.strip().lower() == "all" else whole_number(1)(text)


def _variables(text: str) -> list[int]:
    return [whole_number(1)(one.strip()) for one in text.split(",")]


def _proof_format(text: str) -> str:
    if text not in PROOF_FORMATS:
        raise ValueError(f"{text!r} is none of {', '.join(PROOF_FORMATS)}")
    return text


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("a path is needed")
    return text


PORTFOLIO = JobOption(
    "--portfolio",
    _portfolio,
    metavar="LETTERS",
    help="solvers of a SAT job, one letter per worker: 'k(cg)*' is kissat once, then CaDiCaL and Glucose in "
    "turn (letters: docs/sat-jobs.md)",
    excludes=("solvers",),
)


class SatDeclaration(Declaration):
    """The declaration of the application SAT."""

    name: ClassVar[str] = "SAT"
    revises: ClassVar[bool] = True
    value_label: ClassVar[str] = ""  # no label: the value, a number of solutions, is shown as progress
    result_files: ClassVar[tuple[str, ...]] = ("proof", "core", "solutions-file")
    result_strings: ClassVar[Mapping[int, str]] = {SATISFIABLE: "SAT", UNSATISFIABLE: "UNSAT"}
    exit_codes: ClassVar[Mapping[int, int]] = {SATISFIABLE: 10, UNSATISFIABLE: 20, UNKNOWN: 0}
    options: ClassVar[tuple[JobOption, ...]] = (
        PORTFOLIO,
        SEED,
        AGREEMENT,
        JobOption(
            "--solutions",
            _solution_count,
            metavar="K|all",
            help="find K models, or all; each is printed as v lines",
        ),
        JobOption(
            "--projection",
            _variables,
            metavar="V,V,...",
            help="with --solutions: print only these variables; solutions must differ in them (default: all)",
            needs="solutions",
        ),
        JobOption(
            "--solutions-file",
            _path,
            metavar="FILE",
            help="with --solutions: write the models to FILE instead of printing them; for one formula",
            needs="solutions",
        ),
        JobOption(
            "--proof",
            _path,
            metavar="FILE",
            help="write a proof of the answer UNSATISFIABLE to FILE, for one formula (see `mallob-py "
            "check-proof`). Only CaDiCaL is used then",
        ),
        JobOption(
            "--proof-format",
            _proof_format,
            metavar="|".join(PROOF_FORMATS),
            help="format of the proof, as text: lrat has hints, drat has none (default lrat)",
        ),
        JobOption(
            "--checked",
            truth,
            metavar="",
            help="have each derivation checked while it is made, by processes that trust no solver; needs "
            "the native solver, and uses no other",
        ),
        JobOption(
            "--core",
            _path,
            metavar="FILE",
            help="if UNSATISFIABLE, write clauses that cannot hold together to FILE, in DIMACS; one formula",
        ),
    )
    service_option: ClassVar[JobOption | None] = PORTFOLIO
    settles_default: ClassVar[frozenset[str]] = _ABOUT_SOLVERS
    comment: ClassVar[str] = "c "
    text_format: ClassVar[str] = "sat"

    @classmethod
    def answer_lines(cls, result: Mapping[str, Any], solution: Sequence[int] | bytes) -> Iterator[str]:
        """Yield the `s` and `v` lines of the SAT competitions. A 0 ends each of several models."""
        if isinstance(solution, bytes):
            raise ValueError("this answer is bytes, which the text format cannot show; ask for JSON")
        return _answer_lines(result["resultcode"], solution, "solutions" in result)


def _answer_lines(code: int, literals: Sequence[int], are_several: bool) -> Iterator[str]:
    yield f"s {_ANSWERS.get(code, 'UNKNOWN')}"
    if code == SATISFIABLE:
        for model in _each(literals) if are_several else (literals,):
            yield from _value_lines(model)


def _each(literals: Sequence[int]) -> Iterator[Sequence[int]]:
    begin = 0
    while begin < len(literals):
        end = literals.index(0, begin)
        yield literals[begin:end]
        begin = end + 1


def _value_lines(model: Sequence[int]) -> Iterator[str]:
    line = "v"
    for literal in (*model, 0):
        word = f" {literal}"
        if len(line) + len(word) > _LINE_LENGTH:
            yield line
            line = "v"
        line += word
    yield line
