"""Portfolios as text: members used once, then a cycle of members repeated for ever.

As in Mallob's `-satsolver`, `k(cg)*` means kissat once, then CaDiCaL and Glucose in turn. Each letter names a
solver; signs after the letter change its search:

    letter      a solver of `LETTERS`
    +  -        tuned for satisfiable formulas, or for unsatisfiable formulas (CaDiCaL, kissat)
    0           variables are false at first (CaDiCaL, kissat; without the sign they are true)
    _  ~        initial phases: always the solver's own; always random (else random in every second repeat)
    !           gives and takes no clauses
    =           keeps only some of the assignments that are symmetric to each other (kissat)
    (...)*      the cycle, at the end; without it, the whole text is the cycle
    (...){n}    the group n times

Spaces are ignored. Mallob uses `+ - _ !` in much the same sense; its capital letters (incremental solving)
are not known here.

Guarantee: `parse_portfolio` raises an InputError that names the character, or returns a cycle that is not
empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from mallob_py.kit import InputError

LETTERS: Mapping[str, str] = {
    "c": "cadical195",
    "o": "cadical153",
    "n": "cadical300",
    "k": "kissat404",
    "l": "lingeling",
    "g": "glucose42",
    "h": "glucose4",
    "i": "glucose3",
    "m": "maplecm",
    "r": "maplechrono",
    "s": "maplesat",
    "x": "mergesat3",
    "e": "ergo",
    "t": "minisat22",
    "u": "minisat-gh",
    "y": "cryptominisat",
}
#: solvers that choose initial phases themselves
PHASELESS = ("kissat404", "cryptominisat")
_OPTIONS = {"+": ("stabilizeonly", 1), "-": ("stabilize", 0), "0": ("phase", 0)}
_KISSATS_OPTIONS = {"+": ("stable", 2), "-": ("stable", 0), "0": ("phase", 0)}
_SIGNS = "+-0_~!="
_CLASHING = (("+", "-"), ("_", "~"))
_REPEATS_MAX = 1000
_MEMBERS_MAX = 10_000


class Phases(Enum):
    """The initial values of variables when a solver is repeated."""

    MIXED = ""
    OWN = "_"
    RANDOM = "~"


@dataclass(frozen=True, slots=True)
class Member:
    """One solver of a portfolio, and its settings."""

    solver: str
    options: tuple[tuple[str, int], ...] = ()
    phases: Phases = Phases.MIXED
    shares: bool = True
    breaks_symmetries: bool = False

    @property
    def search(self) -> tuple[object, ...]:
        """Return the settings that decide a search, before repetitions are varied."""
        return self.solver, self.options, self.phases is Phases.RANDOM, self.breaks_symmetries


@dataclass(frozen=True, slots=True)
class Members:
    """An endless sequence of members."""

    once: tuple[Member, ...]
    cycle: tuple[Member, ...]

    def at(self, index: int) -> tuple[Member, int]:
        """Return the member with this index, and the number of earlier members that search alike."""
        if index < len(self.once):
            member = self.once[index]
            return member, _alike(self.once[:index], member)
        round_, place = divmod(index - len(self.once), len(self.cycle))
        member = self.cycle[place]
        in_rounds = round_ * _alike(self.cycle, member) + _alike(self.cycle[:place], member)
        return member, _alike(self.once, member) + in_rounds

    @property
    def solvers(self) -> tuple[str, ...]:
        """Return the solvers in the sequence, each once."""
        return tuple(dict.fromkeys(member.solver for member in self.once + self.cycle))

    def only(self, solvers: Sequence[str]) -> Members:
        """Return the sequence restricted to these solvers."""
        once, cycle = (
            tuple(member for member in members if member.solver in solvers)
            for members in (self.once, self.cycle)
        )
        return Members(once, cycle)


def cycle_of(solvers: Sequence[str]) -> Members:
    """Return these solvers as a cycle."""
    return Members((), tuple(Member(solver) for solver in solvers))


def parse_portfolio(text: object) -> Members:
    """Parse the `portfolio` of a configuration. Raises InputError."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"portfolio is {text!r:.40}; it must be a text such as 'k(cg)*'", "configuration")
    return _Parser(text).members()


def _alike(members: Sequence[Member], member: Member) -> int:
    return sum(other.search == member.search for other in members)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def members(self) -> Members:
        members: list[Member] = []
        while sign := self._peek():
            if sign != "(":
                members.append(self._member())
            else:
                opening = self._at
                group = self._group()
                if self._peek() == "*":
                    return Members(tuple(members), self._last(group))
                members += group * self._repeats(opening)
            if len(members) > _MEMBERS_MAX:
                self._fail(f"more than {_MEMBERS_MAX} members")
        return Members((), tuple(members))

    def _group(self) -> list[Member]:
        opening = self._at
        self._at += 1
        members: list[Member] = []
        while (sign := self._peek()) != ")":
            if not sign:
                self._at = opening
                self._fail("this parenthesis is never closed")
            members.append(self._member())
        if not members:
            self._fail("a solver is missing between the parentheses")
        self._at += 1
        return members

    def _last(self, group: list[Member]) -> tuple[Member, ...]:
        self._at += 1
        if self._peek():
            self._fail("nothing may follow the cycle, which never ends")
        return tuple(group)

    def _repeats(self, opening: int) -> int:
        if self._peek() != "{":
            self._at = opening
            self._fail("'*' or '{number}' must follow this group")
        begin = self._at
        end = self._text.find("}", begin)
        number = self._text[begin + 1 : end] if end > 0 else ""
        repeats = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0
        if not 1 <= repeats <= _REPEATS_MAX:
            self._fail(f"'{{number}}' with a number from 1 to {_REPEATS_MAX} expected")
        self._at = end + 1
        return repeats

    def _member(self) -> Member:
        letter = self._text[self._at]
        if letter not in LETTERS:
            known = ", ".join(f"{key} {solver}" for key, solver in LETTERS.items())
            hint = "a sign needs a letter before it" if letter in _SIGNS else f"known are {known}"
            self._fail(f"{letter!r} is no solver; {hint}")
        solver = LETTERS[letter]
        self._at += 1
        signs = ""
        while (sign := self._peek()) and sign in _SIGNS:
            if problem := _problem_of(solver, sign, signs):
                self._fail(problem)
            signs += sign
            self._at += 1
        meant = _KISSATS_OPTIONS if letter == "k" else _OPTIONS
        options = tuple(option for sign, option in meant.items() if sign in signs)
        phases = next((one for one in (Phases.OWN, Phases.RANDOM) if one.value in signs), Phases.MIXED)
        return Member(solver, options, phases, "!" not in signs, "=" in signs)

    def _peek(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _fail(self, problem: str) -> NoReturn:
        at = self._at + 1
        raise InputError(f"portfolio {self._text!r:.80}, character {at}: {problem}", "configuration")


def _problem_of(solver: str, sign: str, before: str) -> str:
    """Return why a sign cannot follow a solver with the signs `before`; "": it can."""
    if sign in before:
        return f"{sign!r} is given twice"
    for one, other in _CLASHING:
        if (sign == other and one in before) or (sign == one and other in before):
            return f"{one!r} and {other!r} contradict each other"
    if sign in _OPTIONS and not solver.startswith(("cadical", "kissat")):
        return f"{solver} has no {sign!r}; the CaDiCaLs (c, o, n) and kissat (k) have it"
    if sign == "=" and solver != LETTERS["k"]:
        return f"{solver} has no '='; kissat (k) has it"
    if sign == "~" and solver in PHASELESS:
        return f"{solver} takes no phases"
    return ""
