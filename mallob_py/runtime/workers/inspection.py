"""What a rank knows of the applications that are installed on its host (see `Inspection`)."""

from __future__ import annotations

from mallob_py.applications import places_without_search
from mallob_py.runtime.worker_wire import ApplicationTraits


class Inspection:
    """The names of installed applications, what each declares, and what is still to be found out.

    The fork server tells the names; a process imports the applications and tells the rest.
    """

    def __init__(self) -> None:
        #: what is known so far, by name of the application
        self.known: dict[str, ApplicationTraits] = {}
        #: whether the names are waited for, to inspect the applications then
        self.is_waiting_for_names = False
        #: what another rank has told; nothing is inspected if there is anything
        self.told: dict[str, ApplicationTraits] = {}
        #: the names of all applications, once the fork server has told them
        self._names: tuple[str, ...] | None = None
        #: the only application to inspect; None: all
        self._only: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `known` holds all applications that are installed and were to be inspected."""
        return self._names is not None and self.known.keys() >= set(self._wanted(self._names))

    def _wanted(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if self._only in (None, name)]

    def want(self, only: str | None) -> list[str] | None:
        """Begin to inspect all applications or one; their names, or None until `name_all` brings them."""
        self._only = only
        self.is_waiting_for_names = self._names is None
        return None if self._names is None else self._wanted(self._names)

    def name_all(self, names: tuple[str, ...]) -> list[str]:
        """Take in the names of all applications; the ones that are to be inspected now."""
        self._names = names
        wanted = self._wanted(names) if self.is_waiting_for_names else []
        self.is_waiting_for_names = False
        return wanted

    def note(self, traits: ApplicationTraits) -> None:
        """Take in what an application declares."""
        self.known[traits.name] = traits

    def known_or_late(self, timeout_s: float) -> dict[str, ApplicationTraits]:
        """Return what is known; an application not imported within the time has a problem that says so."""
        late = f"it was not imported within {timeout_s:g} s"
        names = (self._names or tuple(places_without_search())) if self._only is None else (self._only,)
        return {name: ApplicationTraits(name, problem=late) for name in names} | self.known
