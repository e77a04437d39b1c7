"""The inspection of installed applications (see `Inspection`)."""

from __future__ import annotations

from mallob_py.applications import places_without_search
from mallob_py.runtime.worker_wire import ApplicationTraits


class Inspection:
    """A rank's knowledge of applications: their names, and what each declares.

    The fork server reports the names; a process imports the applications and reports the rest.
    """

    def __init__(self) -> None:
        #: known traits by application
        self.known: dict[str, ApplicationTraits] = {}
        #: whether an inspection waits for the names
        self.is_waiting_for_names = False
        #: traits reported by another rank; if there are any, nothing is inspected
        self.told: dict[str, ApplicationTraits] = {}
        #: names of all applications, once the fork server has reported them
        self._names: tuple[str, ...] | None = None
        #: the only application to inspect; None: all
        self._only: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `known` has all installed applications that must be inspected."""
        return self._names is not None and self.known.keys() >= set(self._wanted(self._names))

    def _wanted(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if self._only in (None, name)]

    def want(self, only: str | None) -> list[str] | None:
        """Begin to inspect all applications or one; return names; None: `name_all` will bring the names."""
        self._only = only
        self.is_waiting_for_names = self._names is None
        return None if self._names is None else self._wanted(self._names)

    def name_all(self, names: tuple[str, ...]) -> list[str]:
        """Take in the names of all applications; return those to inspect now."""
        self._names = names
        wanted = self._wanted(names) if self.is_waiting_for_names else []
        self.is_waiting_for_names = False
        return wanted

    def note(self, traits: ApplicationTraits) -> None:
        """Take in an application's traits."""
        self.known[traits.name] = traits

    def known_or_late(self, timeout_s: float) -> dict[str, ApplicationTraits]:
        """Return the known traits; an application that took too long has a problem that says so."""
        late = f"it was not imported within {timeout_s:g} s"
        names = (self._names or tuple(places_without_search())) if self._only is None else (self._only,)
        return {name: ApplicationTraits(name, problem=late) for name in names} | self.known
