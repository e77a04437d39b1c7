"""Which applications exist, where each is implemented, and where it is declared.

An application is found by its name, without an import: through the entry-point groups `mallob_py.apps`
and `mallob_py.declarations` (see `kit.declaration`). The applications of this package need no search, which
would take as long as importing one. The environment variable MALLOB_PY_APPS ("NAME=module:Class,...") adds
applications that are not installed, or replaces installed ones.
"""

from __future__ import annotations

import importlib
import os

from mallob_py.kit.declaration import COMPRESSED_SUFFIXES, Declaration

TYPE_CHECKING = False  # `typing` itself is not imported, which would delay the start of every command
if TYPE_CHECKING:
    from typing import Any

    from mallob_py.kit.declaration import JobOption

#: application of job files that name none
DEFAULT_APPLICATION = "SAT"
#: suffix of a file -> the application for which `solve` and `submit` take the file; other files are formulas
_OF_SUFFIX = {".smt2": "SMT", ".wcnf": "MAXSAT"}
ENTRY_POINT_GROUP = "mallob_py.apps"
DECLARATION_GROUP = "mallob_py.declarations"
ENVIRONMENT_VARIABLE = "MALLOB_PY_APPS"
#: applications of this package -> their places ("module:Class"), as in pyproject.toml
OURS = {
    "SAT": "mallob_sat:SatApplication",
    "SMT": "mallob_smt:SmtApplication",
    "MAXSAT": "mallob_maxsat:MaxSatApplication",
    "NOOP": "mallob_dummy:NoopApplication",
    "SLEEP": "mallob_dummy:SleepApplication",
    "BC": "mallob_bags.betweenness:BetweennessApplication",
    "CALLS": "mallob_calls:CallsApplication",
    "PI": "mallob_bags.pi:PiApplication",
    "QUEENS": "mallob_bags.queens:QueensApplication",
    "UTS": "mallob_bags.uts:UtsApplication",
}
#: applications of this package -> places of declarations in modules that import less than the application
DECLARED = {
    "SAT": "mallob_sat.declaration:SatDeclaration",
    "SMT": "mallob_smt.declaration:SmtDeclaration",
    "MAXSAT": "mallob_maxsat.declaration:MaxSatDeclaration",
    "BC": "mallob_bags.declaration:BetweennessDeclaration",
    "CALLS": "mallob_calls.declaration:CallsDeclaration",
    "PI": "mallob_bags.declaration:PiDeclaration",
    "QUEENS": "mallob_bags.declaration:QueensDeclaration",
    "UTS": "mallob_bags.declaration:UtsDeclaration",
}
#: applications of this package with options for commands: importing the others would delay every command
_WITH_OPTIONS = ("SAT", "SMT", "MAXSAT")


class UnknownApplication(Exception):
    """No application of this name is installed."""


def places_without_search() -> dict[str, str]:
    """Return name -> place ("module:Class") of our applications, and of those in MALLOB_PY_APPS."""
    places = dict(OURS)
    for item in os.environ.get(ENVIRONMENT_VARIABLE, "").split(","):
        name, _, place = item.strip().partition("=")
        if name and place:
            places[name] = place
    return places


def installed(group: str = ENTRY_POINT_GROUP) -> dict[str, str]:
    """Return name -> place of everything installed in an entry-point group."""
    from importlib.metadata import entry_points  # this import takes as long as importing an application

    return {point.name: point.value for point in entry_points(group=group)}


def imported(place: str) -> Any:
    """Import an object by its place ("module:Class"). Raises any error of the import."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def declaration_of(name: str) -> type[Declaration]:
    """Return an application's declaration. Raises UnknownApplication, or any error of its module's import."""
    place = place_of(name)
    return declared_apart(name, place) or _declaration(place)


def options_of(name: str) -> dict[str, JobOption]:
    """Return key -> option of an application's declared options; {} if its declaration cannot be loaded."""
    try:
        return {one.key: one for one in declaration_of(name).options}
    except Exception:  # the service tells what is wrong with the application
        return {}


def declared_apart(name: str, place: str) -> type[Declaration] | None:
    """Return an application's separate declaration, without importing the application; None if it has none.

    `place` is the application's own place. Raises any error of the declaration's import.
    """
    if place == OURS.get(name):
        apart = DECLARED.get(name)
    elif name in places_without_search():
        return None  # a class named in MALLOB_PY_APPS carries its own declaration
    else:
        apart = installed(DECLARATION_GROUP).get(name)
    return None if apart is None else _declaration(apart)


def place_of(name: str) -> str:
    """Return the place where an application is implemented. Raises UnknownApplication."""
    places = places_without_search()
    if name not in places:
        places = installed() | places
    if name not in places:
        raise UnknownApplication(unknown(name, places))
    return places[name]


def unknown(name: str, known: dict[str, str]) -> str:
    """Return the message for a user who asks for an unknown application."""
    import difflib  # imported here, since only a mistake needs it

    by_folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), list(by_folded), n=1)
    hint = f"; did you mean {by_folded[near[0]]!r}?" if near else ""
    return f"no application {name!r} is installed (installed: {', '.join(sorted(known)) or 'none'}){hint}"


def our_declarations() -> tuple[type[Declaration], ...]:
    """Return the declarations of the applications that come with this package and have options."""
    return tuple(_declaration(place) for place in map(DECLARED.__getitem__, _WITH_OPTIONS))


def application_of(file: str) -> str:
    """Return the application that a file's suffix names, else DEFAULT_APPLICATION."""
    for compressed in COMPRESSED_SUFFIXES:
        file = file.removesuffix(compressed)
    return _OF_SUFFIX.get(os.path.splitext(file)[1], DEFAULT_APPLICATION)


def _declaration(place: str) -> type[Declaration]:
    found = imported(place)
    if not (isinstance(found, type) and issubclass(found, Declaration)):
        raise TypeError(f"{place} is not a class derived from mallob_py.kit.Declaration")
    return found
