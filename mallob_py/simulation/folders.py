"""Folders of jobs: one for each rank, also for lost ranks.

A folder has one holder at a time, at first its own rank. When the holder is gone, its heir takes over the
folder and submits the jobs that have had no reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import AnyEffect, JobEnded, JobGivenUp
from mallob_py.protocol.messages import Description
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import heir_of
from mallob_py.protocol.stimuli import AnyStimulus, JobInterrupted, JobParameters, JobSubmitted
from mallob_py.simulation.delays import Delays


class Ranks(Protocol):
    """The ranks that hold folders, as described in `Cluster`."""

    pes: list[PE]
    now: float
    size: int
    delays: Delays
    config: Config

    def at(self, when_s: float, action: Callable[[], None]) -> None: ...

    def later(self, delay_s: float, action: Callable[[], None]) -> None: ...

    def is_there(self, address: int) -> bool: ...

    def tell(self, place: int, stimulus: AnyStimulus) -> None: ...

    def host_of(self, place: int) -> int: ...

    def places_of(self, address: int) -> range: ...

    def is_present(self, address: int) -> bool: ...

    def serving(self) -> Iterator[tuple[int, tuple[int, ...]]]: ...


def submission(job: int, parameters: Mapping[str, Any]) -> JobSubmitted:
    """Return a job's submission; each second job's description is small enough for messages."""
    description = Description(10, b"x" * 10 if job % 2 else None)
    return JobSubmitted(job, JobParameters(**parameters), description)


class Folders:
    """All folders, each named by its first rank, with the states of their jobs."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        #: folder -> holder, unless the holder is the folder's own rank
        self._holders: dict[int, int] = {}
        #: job -> (folder, submission)
        self._journal: dict[int, tuple[int, JobSubmitted]] = {}
        self._interrupted: set[int] = set()
        #: job -> number of the PE of its client
        self.submitted: dict[int, int] = {}
        self.ended: dict[int, JobEnded] = {}
        #: last checkpoints kept by clients
        self.saved: dict[int, bytes] = {}
        #: number of times that jobs were given up for a while
        self.given_up = 0
        #: jobs whose ends were lost with their clients before any reply was written
        self.lost_ends: set[int] = set()

    def submit(self, job: int, place: int, parameters: Mapping[str, Any]) -> None:
        self._journal[job] = self.ranks.host_of(place), submission(job, parameters)
        self.submitted[job] = place
        self._hand_in(job)

    def interrupt(self, job: int) -> None:
        self._interrupted.add(job)
        self.tell(job, JobInterrupted(job))

    def tell(self, job: int, stimulus: AnyStimulus) -> None:
        """Pass a stimulus to the job's client; drop it if the client is gone."""
        if self.ranks.is_present(self._holder_of_job(job)):
            self.ranks.tell(self.submitted[job], stimulus)

    def knows(self, job: int) -> bool:
        """Tell whether the job was handed in here."""
        return job in self._journal

    @property
    def open(self) -> set[int]:
        """The jobs that were handed in and have no reply."""
        return self._journal.keys() - self.ended.keys()

    def at_desks(self) -> set[int]:
        """Return the jobs without a reply that are not at a PE: none, since jobs are submitted at once."""
        return set()

    def resize(self) -> None:
        """Record that the number of PEs may have changed."""

    def hear(self, place: int, effect: AnyEffect) -> None:
        """Take in a PE's news of a job."""
        if isinstance(effect, JobGivenUp):
            self.given_up += 1
            self.ranks.later(0.0, lambda: self._submit_again(effect))
        elif isinstance(effect, JobEnded):
            self._note_end(place, effect)

    def _note_end(self, place: int, ended: JobEnded) -> None:
        job = ended.job
        assert self._holder_of_job(job) == self.ranks.host_of(place), (
            "a rank has ended a job of a folder that another rank holds"
        )
        assert job not in self.ended, f"job {job} ended twice"
        self.ended[job] = ended

    def _submit_again(self, it: JobGivenUp) -> None:
        """Submit once more a job that was given up, with its former use and checkpoint."""
        folder, former = self._journal[it.job]
        if not self.ranks.is_present(self._holder_of(folder)):  # the folder's next holder will submit the job
            return
        if it.job in self.ended or it.job in self.ranks.pes[self.submitted[it.job]].client.jobs:
            return
        parameters = msgspec.structs.replace(former.parameters, spent=it.spent)
        again = JobSubmitted(it.job, parameters, former.description, self.saved.get(it.job))
        self._journal[it.job] = folder, again
        self.ranks.tell(self.submitted[it.job], again)
        if it.job in self._interrupted:  # the job was interrupted while no PE had it
            self.ranks.tell(self.submitted[it.job], JobInterrupted(it.job))

    def inherit(self, ranks: Iterable[int]) -> None:
        """Have heirs take over the folders whose holders are gone, once the heirs know of the loss."""
        for folder in ranks:
            holder = self._holder_of(folder)
            if self.ranks.is_present(holder):
                continue
            for address, members in self.ranks.serving():
                if holder not in members and heir_of(holder, members) == address:
                    self._holders[folder] = address
                    for job in [job for job, (of, _) in self._journal.items() if of == folder]:
                        if job not in self.ended:
                            self._hand_in(job)
                    break

    def check(self, ranks: Iterable[int], members: tuple[int, ...]) -> None:
        """Check that each folder is held by one of the members."""
        for folder in ranks:
            assert self._holder_of(folder) in members, f"no member holds the folder of rank {folder}"

    def _hand_in(self, job: int) -> None:
        """Have the holder of the job's folder submit the job; if it is gone, the next holder will."""
        folder, submitted = self._journal[job]
        holder = self._holder_of(folder)
        if not self.ranks.is_present(holder):
            return
        places = self.ranks.places_of(holder)
        if holder != folder or self.submitted[job] not in places:
            self.submitted[job] = places[0]
        saved = self.saved.get(job)
        self.ranks.tell(self.submitted[job], msgspec.structs.replace(submitted, checkpoint=saved))
        if job in self._interrupted:
            self.ranks.tell(self.submitted[job], JobInterrupted(job))

    def _holder_of(self, folder: int) -> int:
        return self._holders.get(folder, folder)

    def _holder_of_job(self, job: int) -> int:
        return self._holder_of(self._journal[job][0])
