"""The tree of ranks of `distributed_balancing.py` without PEs: one `Deputy` per rank, level by level.

Every answer is encoded, sent up, decoded and merged as on the wire, and all of it is counted and
timed. This is what makes a hundred thousand ranks possible in one process.
"""

from __future__ import annotations

import time

import msgspec

from mallob_py.protocol.messages import Ask, JobEvent, Settled, Tell, decode, encode
from mallob_py.protocol.rank_tree import place_of, root_of
from mallob_py.protocol.volume_search import (
    AnyAnswer,
    AnyQuestion,
    Deputy,
    Hint,
    Outcome,
    VolumeSearch,
    deputy_of,
    merged,
)


class Costs(msgspec.Struct):
    """What one epoch took. Times are CPU seconds measured here."""

    rounds: int = 0
    messages: int = 0
    sent_bytes: int = 0
    longest_bytes: int = 0
    #: of all ranks together, without merging
    deputies_s: float = 0.0
    #: on the way from a leaf to the root, a mean rank on each level: decoding, merging, encoding
    merging_s: float = 0.0
    #: at the root, to choose the questions
    search_s: float = 0.0


class TreeOfDeputies:
    """All jobs, each with its deputy, and the rank at the top that searches.

    `pes` is how many PEs the jobs share, if it is not the number of ranks.
    """

    def __init__(self, size: int, pes: int | None = None) -> None:
        self.size = size
        self._pes = size if pes is None else pes
        self.jobs: dict[int, JobEvent] = {}
        self.costs = Costs()
        self._deputies = [Deputy() for _ in range(size)]
        self._hint = Hint()
        self._children = [place_of(rank, size).children for rank in range(size)]
        self._levels = [[root_of(size)]]
        while below := [child for rank in self._levels[-1] for child in self._children[rank]]:
            self._levels.append(below)

    @property
    def depth(self) -> int:
        """Hops from the root to the farthest rank."""
        return len(self._levels) - 1

    def change(self, event: JobEvent) -> None:
        """News of one job; demand 0 ends it."""
        known = self.jobs.pop(event.job, None)
        deputy = self._deputies[deputy_of(event.job, self.size)]
        if event.demand:
            self.jobs[event.job] = event
            deputy.put(event)
        else:
            deputy.drop(event.job)
        self._hint.replace(known, event if event.demand else None)

    def balance(self) -> Outcome:
        """One epoch; `costs` tells what it took."""
        costs = self.costs = Costs()
        search = VolumeSearch(self._pes, len(self.jobs), self._hint)
        while (question := search.question) is not None:
            self._count(encode(Ask(1, (), question)), self.size - 1)
            answer = self._reduced(question)
            began = time.process_time()
            search.take(answer)
            costs.search_s += time.process_time() - began
        assert search.outcome is not None
        self._count(encode(Settled(1, (), search.outcome)), self.size - 1)
        costs.rounds = search.rounds
        return search.outcome

    def _count(self, message: bytes, times: int) -> None:
        self.costs.messages += times
        self.costs.sent_bytes += times * len(message)
        self.costs.longest_bytes = max(self.costs.longest_bytes, len(message))

    def _reduced(self, question: AnyQuestion) -> AnyAnswer:
        began = time.process_time()
        own = [deputy.answer(question) for deputy in self._deputies]
        self.costs.deputies_s += time.process_time() - began
        arrived: dict[int, bytes] = {}
        for level in reversed(self._levels):
            began = time.process_time()
            sent = {rank: encode(Tell(self._total(rank, own[rank], arrived))) for rank in level}
            self.costs.merging_s += (time.process_time() - began) / len(level)
            arrived = sent
            if level is not self._levels[0]:
                for message in sent.values():
                    self._count(message, 1)
        ((message),) = arrived.values()
        return _answer_in(message)

    def _total(self, rank: int, answer: AnyAnswer, arrived: dict[int, bytes]) -> AnyAnswer:
        for child in self._children[rank]:
            answer = merged(answer, _answer_in(arrived[child]))
        return answer


def _answer_in(message: bytes) -> AnyAnswer:
    tell = decode(message)
    assert isinstance(tell, Tell)
    return tell.answer
