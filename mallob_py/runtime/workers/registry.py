"""Which applications there are, and how to load one.

Applications are found by name through the entry-point group `mallob_py.apps`, without importing any; those
of this package need no search. The environment variable MALLOB_PY_APPS ("NAME=module:Class,...") adds some
that are not installed, or stands in for installed ones. Used in the fork server and in worker processes
only: a rank never imports an application.
"""

from __future__ import annotations

import importlib
import os

from mallob_py.kit.app import Application

ENTRY_POINT_GROUP = "mallob_py.apps"
ENVIRONMENT_VARIABLE = "MALLOB_PY_APPS"
#: those that come with this package, as in pyproject.toml
OURS = {
    "SAT": "mallob_sat:SatApplication",
    "NOOP": "mallob_dummy:NoopApplication",
    "SLEEP": "mallob_dummy:SleepApplication",
}


class UnknownApplication(Exception):
    """No application of that name is installed."""


class AppRegistry:
    """Names to places ("module:Class"), and the application objects made so far.

    One application object serves all tasks of a process.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._loaded: dict[str, Application] = {}

    @classmethod
    def discover(cls) -> AppRegistry:
        """What is installed is looked for when a name is asked for that is not ours."""
        places = dict(OURS)
        for item in os.environ.get(ENVIRONMENT_VARIABLE, "").split(","):
            name, _, place = item.strip().partition("=")
            if name and place:
                places[name] = place
        return cls(places)

    def names(self) -> tuple[str, ...]:
        self._look_for_installed()
        return tuple(sorted(self._places))

    def _look_for_installed(self) -> None:
        from importlib.metadata import entry_points  # takes as long as an application

        self._places = {
            point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)
        } | self._places

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def load(self, name: str) -> Application:
        """Import and instantiate; raises whatever the application's module raises."""
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._places:
            self._look_for_installed()
        if name not in self._places:
            known = ", ".join(self.names()) or "none"
            raise UnknownApplication(f"no application {name!r} is installed (installed: {known})")
        module, _, attribute = self._places[name].partition(":")
        made = getattr(importlib.import_module(module), attribute)()
        if not isinstance(made, Application):
            raise TypeError(f"{self._places[name]} is not a mallob_py.kit.app.Application")
        self._loaded[name] = made
        return made
