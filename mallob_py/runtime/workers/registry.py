"""The application objects of a process, made when their names are first asked for.

Used in the fork server and in worker processes only: a rank never imports an application.
"""

from __future__ import annotations

from mallob_py.applications import UnknownApplication, imported, installed, places_without_search, unknown
from mallob_py.kit.app import Application


class AppRegistry:
    """Names to places ("module:Class"), and the application objects made so far.

    One application object serves all tasks of a process.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._loaded: dict[str, Application] = {}
        self._prepared: set[str] = set()

    @classmethod
    def discover(cls) -> AppRegistry:
        """What is installed is looked for when a name is asked for that is not ours."""
        return cls(places_without_search())

    def names(self) -> tuple[str, ...]:
        self._look_for_installed()
        return tuple(sorted(self._places))

    def _look_for_installed(self) -> None:
        self._places = installed() | self._places

    def is_prepared(self, name: str) -> bool:
        return name in self._prepared

    def prepared(self, name: str) -> Application:
        """The application, fit to run: what it loads at its first use is loaded, too.

        Raises whatever the application raises.
        """
        application = self.load(name)
        if name not in self._prepared:
            application.prepare()
            self._prepared.add(name)
        return application

    def load(self, name: str) -> Application:
        """Import and instantiate; raises whatever the application's module raises."""
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._places:
            self._look_for_installed()
        if name not in self._places:
            raise UnknownApplication(unknown(name, self._places))
        made = imported(self._places[name])()
        if not isinstance(made, Application):
            raise TypeError(f"{self._places[name]} is not a mallob_py.kit.Application")
        self._loaded[name] = made
        return made
