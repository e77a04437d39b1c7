"""Which applications there are: where each is implemented, and where it is declared.

They are found by name: through the entry-point groups `mallob_py.apps` and `mallob_py.declarations` (see
`kit.declaration`), without importing any. Those of this package need no search, which would take as long as
importing one. The environment variable MALLOB_PY_APPS ("NAME=module:Class,...") adds some that are not
installed, or stands in for installed ones.
"""

from __future__ import annotations

import importlib
import os

from mallob_py.kit.declaration import COMPRESSED_SUFFIXES, Declaration

TYPE_CHECKING = False  # typing.TYPE_CHECKING would have every command import typing before anything else
if TYPE_CHECKING:
    from typing import Any

    from mallob_py.kit.declaration import JobOption

#: of job files that name none
DEFAULT_APPLICATION = "SAT"
#: what `solve` and `submit` take a file for, by the end of its name; others are formulas
_OF_SUFFIX = {".smt2": "SMT", ".wcnf": "MAXSAT"}
ENTRY_POINT_GROUP = "mallob_py.apps"
DECLARATION_GROUP = "mallob_py.declarations"
ENVIRONMENT_VARIABLE = "MALLOB_PY_APPS"
#: those that come with this package, as in pyproject.toml
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
#: of these, what is declared in a module that imports less than the application
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
#: of these, which have options for commands: importing others would keep every command
_WITH_OPTIONS = ("SAT", "SMT", "MAXSAT")


class UnknownApplication(Exception):
    """No application of that name is installed."""


def places_without_search() -> dict[str, str]:
    """From names to places ("module:Class"): ours, and those of the environment."""
    places = dict(OURS)
    for item in os.environ.get(ENVIRONMENT_VARIABLE, "").split(","):
        name, _, place = item.strip().partition("=")
        if name and place:
            places[name] = place
    return places


def installed(group: str = ENTRY_POINT_GROUP) -> dict[str, str]:
    """From names to places, of all that is installed."""
    from importlib.metadata import entry_points  # takes as long as an application

    return {point.name: point.value for point in entry_points(group=group)}


def imported(place: str) -> Any:
    """Return what is at a place. Raises whatever its module raises."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def declaration_of(name: str) -> type[Declaration]:
    """Return an application's declaration. Raises UnknownApplication, or whatever importing it raises."""
    place = place_of(name)
    return declared_apart(name, place) or _declaration(place)


def options_of(name: str) -> dict[str, JobOption]:
    """Return the options that an application declares, by key; none of one that cannot be loaded here."""
    try:
        return {one.key: one for one in declaration_of(name).options}
    except Exception:  # the service says what is wrong with an application
        return {}


def declared_apart(name: str, place: str) -> type[Declaration] | None:
    """Return the declaration that the application at this place makes elsewhere, without importing that
    application.

    Raises whatever importing the declaration raises.
    """
    if place == OURS.get(name):
        apart = DECLARED.get(name)
    elif name in places_without_search():
        return None  # whoever stands in for an application declares what it is itself
    else:
        apart = installed(DECLARATION_GROUP).get(name)
    return None if apart is None else _declaration(apart)


def place_of(name: str) -> str:
    """Where an application is implemented. Raises UnknownApplication."""
    places = places_without_search()
    if name not in places:
        places = installed() | places
    if name not in places:
        raise UnknownApplication(unknown(name, places))
    return places[name]


def unknown(name: str, known: dict[str, str]) -> str:
    """Return what to tell a user who asks for an unknown application."""
    import difflib  # only a mistake pays for it

    by_folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), list(by_folded), n=1)
    hint = f"; did you mean {by_folded[near[0]]!r}?" if near else ""
    return f"no application {name!r} is installed (installed: {', '.join(sorted(known)) or 'none'}){hint}"


def our_declarations() -> tuple[type[Declaration], ...]:
    """Return the declarations of the applications that come with this package and have options."""
    return tuple(_declaration(place) for place in map(DECLARED.__getitem__, _WITH_OPTIONS))


def application_of(file: str) -> str:
    """Return the application of a file of this name: as the name ends, else DEFAULT_APPLICATION."""
    for compressed in COMPRESSED_SUFFIXES:
        file = file.removesuffix(compressed)
    return _OF_SUFFIX.get(os.path.splitext(file)[1], DEFAULT_APPLICATION)


def _declaration(place: str) -> type[Declaration]:
    found = imported(place)
    if not (isinstance(found, type) and issubclass(found, Declaration)):
        raise TypeError(f"{place} is not a class derived from mallob_py.kit.Declaration")
    return found
