"""Incremental jobs: chains of revisions, what each revision adds to, and when a chain ends.

A chain is a first revision and its successors, each of which names the one before as its precursor. Pure: no
files, no clock.

A revision belongs to its chain from its admission, unless it fails before it is run (its input cannot be
read, or it has crashed the service too often): in that case it leaves the chain, with the revisions that wait
for it, and the chain goes on from the former revision. A chain's *former* description holds the inputs of its
first revisions; inputs of later revisions (interrupted before they were read, or restored after a restart)
are read with the next revision.

A chain ends when a job file declares it done, or `timeout_s` after its last news. The reason is kept as the
answer to later revisions, for a bounded number of names.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mallob_py.runtime import worker_wire as wire
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import JobFile

ENDED_MAX = 10_000


@dataclass(slots=True)
class Revision:
    """A revision; `input` is None once the chain's former description holds it."""

    job: int
    identity: str
    number: int
    configuration: Mapping[str, Any]
    input: wire.EarlierInput | None


@dataclass(slots=True, eq=False)
class Chain:
    """A chain, with the id of its `first` revision; `root` is the PE where the last revision's root was."""

    first: int
    application: str
    revisions: list[Revision] = field(default_factory=list)
    former: wire.LocalDescription | None = None
    in_former: int = 0
    root: int | None = None
    #: the job that ends the chain once its precursor has its reply
    done_by: int | None = None
    live: set[int] = field(default_factory=set)
    last_news_s: float = 0.0
    #: whether the `ChainBook` has an entry for the chain in its heap of expiries
    is_expected: bool = False

    def before(self, revision: Revision) -> wire.Before:
        """Return the descriptions on top of which a revision's input is read."""
        earlier = self.revisions[self.in_former : revision.number]
        inputs = tuple(one.input for one in earlier if one.input is not None)
        assert len(inputs) == len(earlier)
        return wire.Before(revision.number, self.former, inputs)

    def was_read(self, revision: Revision, description: wire.LocalDescription) -> None:
        """Record a description that includes the inputs of all revisions up to this one."""
        for one in self.revisions[self.in_former : revision.number + 1]:
            one.input = None
        self.former, self.in_former = description, revision.number + 1


class ChainBook:
    """The live chains of one client."""

    def __init__(self, timeout_s: float, ended_max: int = ENDED_MAX) -> None:
        self._timeout_s = timeout_s
        self._ended_max = ended_max
        self._by_job: dict[int, tuple[Chain, Revision]] = {}
        self._by_identity: dict[str, tuple[Chain, Revision]] = {}
        self._ending: dict[int, Chain] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        #: job that left its chain before it ran -> the reason
        self._orphans: dict[int, str] = {}
        self._chains: dict[int, Chain] = {}
        #: heap of (earliest time of expiry, chain's id) for chains without a live revision; some entries are
        #: outdated
        self._expiries: list[tuple[float, int]] = []
        #: time until which `expired` returns nothing
        self.deadline_s = math.inf

    def __len__(self) -> int:
        return len(self._chains)

    # --- admission ------------------------------------------------------------------------

    def is_early(self, file: JobFile) -> bool:
        """Tell whether a file's precursor is unknown here, so that it may still come."""
        precursor = file.precursor
        return bool(precursor) and precursor not in self._by_identity and precursor not in self._ended

    def live_before(self, file: JobFile) -> str:
        """Return the identity of the last earlier revision without a reply; "": all have a reply."""
        if file.precursor not in self._by_identity:
            return ""
        chain = self._by_identity[file.precursor][0]
        if not chain.live:
            return ""
        live = (one.identity for one in reversed(chain.revisions) if one.job in chain.live)
        return next(live, "")

    def check(self, file: JobFile) -> None:
        """Raise JobFileError if no live chain can continue, begin or end with this file."""
        if file.identity in self._by_identity and not file.done:
            raise JobFileError(
                "name", f"{file.identity} is a revision of a live chain; choose another name", file.identity
            )
        if not file.precursor:
            return
        if (known := self._by_identity.get(file.precursor)) is None:
            why = self._ended.get(
                file.precursor,
                "no live chain has a revision of this name: it was not incremental, refused, or never seen",
            )
            raise JobFileError("precursor", f"{file.precursor}: {why}", file.identity)
        chain, revision = known
        if chain.done_by is not None:
            raise JobFileError("precursor", f"{file.precursor}: its chain is done already", file.identity)
        if revision is not chain.revisions[-1]:
            following = chain.revisions[revision.number + 1].identity
            text = f"{file.precursor} is the precursor of {following} already; a chain does not branch"
            raise JobFileError("precursor", text, file.identity)
        if file.application != chain.application and not file.done:
            text = f"the chain of {file.precursor} belongs to application {chain.application}"
            raise JobFileError("application", text, file.identity)

    def admit(self, job: int, file: JobFile, now: float) -> None:
        """Take in a file that has passed `check`."""
        if not file.precursor:
            chain = self._chains[job] = Chain(job, file.application)
        else:
            chain = self._by_identity[file.precursor][0]
        chain.last_news_s = now
        if file.done:
            chain.done_by = job
            self._ending[job] = chain
            return
        self._append(chain, job, file)
        chain.live.add(job)

    def restore(self, job: int, first: int, file: JobFile, now: float) -> bool:
        """Restore an answered revision.

        Returns False if the chain does not end with its precursor, or if a live chain has its name, as its
        file may have been changed since.
        """
        if file.identity in self._by_identity:
            return False
        chain = self._chains.get(first)
        if chain is None and job == first:
            chain = self._chains[job] = Chain(job, file.application)
        elif chain is None or chain.revisions[-1].identity != file.precursor:
            return False
        chain.last_news_s = now
        self._append(chain, job, file)
        self._expect(chain)
        return True

    def _append(self, chain: Chain, job: int, file: JobFile) -> None:
        former = chain.revisions[-1].configuration if chain.revisions else {}
        configuration = {key: value for key, value in former.items() if key != "content-mode"}
        configuration |= file.configuration
        literals = None if file.literals is None else file.literals.tobytes()
        source = wire.EarlierInput(
            file.identity, tuple(map(os.fsencode, file.files)), literals, configuration
        )
        revision = Revision(job, file.identity, len(chain.revisions), configuration, source)
        chain.revisions.append(revision)
        self._by_job[job] = self._by_identity[file.identity] = (chain, revision)

    # --- revisions of a chain ---------------------------------------------------------------

    def place_of(self, job: int) -> tuple[Chain, Revision] | None:
        """Return the chain and revision of a job; None: the job belongs to no live chain."""
        return self._by_job.get(job)

    def orphaned(self, job: int) -> str | None:
        """Return why a job that left its chain cannot be run; None: it did not leave a chain."""
        return self._orphans.get(job)

    def drop(self, job: int) -> None:
        """Remove a failed revision from the chain, with the revisions that wait for it."""
        chain, revision = self._by_job[job]
        for left in chain.revisions[revision.number :]:
            del self._by_job[left.job]
            del self._by_identity[left.identity]
            chain.live.discard(left.job)
            if left is not revision:
                self._orphans[left.job] = (
                    f"{revision.identity}, an earlier revision of its chain, has failed: see its reply"
                )
        del chain.revisions[revision.number :]
        chain.in_former = min(chain.in_former, len(chain.revisions))
        if not chain.revisions:
            del self._chains[chain.first]
        else:
            self._expect(chain)

    def ended(self, job: int, root: int | None, now: float) -> None:
        """Record that a job has its reply."""
        self._orphans.pop(job, None)
        if (chain := self._ending.pop(job, None)) is not None:
            chain.done_by = None
            self._expect(chain)
        if (known := self._by_job.get(job)) is not None:
            chain = known[0]
            chain.live.discard(job)
            chain.last_news_s = now
            chain.root = chain.root if root is None else root
            self._expect(chain)

    # --- ends of chains ---------------------------------------------------------------------

    def chain_to_end(self, job: int) -> Chain | None:
        """Return the chain that a job declares done; None: nothing is left of the chain."""
        chain = self._ending.get(job)
        return chain if chain is not None and chain.first in self._chains else None

    def end(self, chain: Chain, why: str) -> None:
        """Forget a chain, except the reason of its end."""
        del self._chains[chain.first]
        for revision in chain.revisions:
            del self._by_job[revision.job]
            del self._by_identity[revision.identity]
            self._ended[revision.identity] = why
            self._ended.move_to_end(revision.identity)
        while len(self._ended) > self._ended_max:
            self._ended.popitem(last=False)

    def expired(self, now: float) -> list[Chain]:
        """Return the chains that have waited too long for their next revision, each once."""
        expired = []
        while self.next_deadline() <= now:
            _, first = heapq.heappop(self._expiries)
            chain = self._chains[first]
            chain.is_expected = False
            expired.append(chain)
        self.deadline_s = self.next_deadline()
        return expired

    def next_deadline(self) -> float:
        """Return when `expired` must be called; this is cheap unless chains have changed."""
        while self._expiries:
            noted_s, first = self._expiries[0]
            chain = self._chains.get(first)
            if chain is None:
                heapq.heappop(self._expiries)
                continue
            expiry_s = self._expiry_s(chain)
            if expiry_s == noted_s:
                return expiry_s
            if expiry_s < math.inf:
                heapq.heapreplace(self._expiries, (expiry_s, first))
            else:
                heapq.heappop(self._expiries)
                chain.is_expected = False
        return math.inf

    def _expect(self, chain: Chain) -> None:
        """Record that a chain waits for its next revision from now on."""
        if not chain.is_expected and (expiry_s := self._expiry_s(chain)) < math.inf:
            chain.is_expected = True
            heapq.heappush(self._expiries, (expiry_s, chain.first))
            self.deadline_s = min(self.deadline_s, expiry_s)

    def _expiry_s(self, chain: Chain) -> float:
        is_waiting = not chain.live and chain.done_by is None
        return chain.last_news_s + self._timeout_s if is_waiting else math.inf
