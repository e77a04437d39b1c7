"""The inspection of installed applications (see `Inspection`)."""

from __future__ import annotations

from mallob_py.applications import places_without_search
from mallob_py.runtime.worker_wire import ApplicationTraits


class Inspection:
    """A rank's knowledge of the installed applications: their names and traits.

    The fork server reports the names; a worker process imports the applications and reports the traits.
    """

    def __init__(self) -> None:
        #: application -> its known traits
        self.known: dict[str, ApplicationTraits] = {}
        #: whether an inspection waits for the names
        self.is_waiting_for_names = False
        #: application -> traits that another rank has reported; if not empty, nothing is inspected
        self.told: dict[str, ApplicationTraits] = {}
        #: names of all applications; None: the fork server has not reported them yet
        self._names: tuple[str, ...] | None = None
        #: the only application to inspect; None: all applications
        self._only: str | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the traits of all applications to inspect are known."""
        return self._names is not None and self.known.keys() >= set(self._wanted(self._names))

    def _wanted(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if self._only in (None, name)]

    def want(self, only: str | None) -> list[str] | None:
        """Begin to inspect all applications, or `only` one; return their names; None: await `name_all`."""
        self._only = only
        self.is_waiting_for_names = self._names is None
        return None if self._names is None else self._wanted(self._names)

    def name_all(self, names: tuple[str, ...]) -> list[str]:
        """Take in the names of all applications; return the names of the applications to inspect now."""
        self._names = names
        wanted = self._wanted(names) if self.is_waiting_for_names else []
        self.is_waiting_for_names = False
        return wanted

    def note(self, traits: ApplicationTraits) -> None:
        """Take in an application's traits."""
        self.known[traits.name] = traits

    def known_or_late(self, timeout_s: float) -> dict[str, ApplicationTraits]:
        """Return all traits; for an application that is not known yet, traits with a problem that says so."""
        late = f"it was not imported within {timeout_s:g} s"
        names = (self._names or tuple(places_without_search())) if self._only is None else (self._only,)
        return {name: ApplicationTraits(name, problem=late) for name in names} | self.known
