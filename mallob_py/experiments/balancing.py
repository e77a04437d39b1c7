"""The number of jobs from which distributed balancing (P 3.1) is faster than local balancing (P 4.1).

For each number of PEs and jobs, one job changes per epoch. Rounds, messages and bytes of the distributed
computation are counted on a complete tree of ranks; its work and the work of the local rule are measured.
The latency of an epoch is a model: hops on the longest chain times the given time of a hop, plus the measured
work on that chain. Messages are so short that the model neglects their length.

    local        changes go up, the epoch comes down     2 * depth hops; then each PE computes all volumes by
                                                         `fair_volumes`, with arguments from its image
    distributed  changes go up, rounds of question and   (2 + 2 * rounds) * depth hops; all PEs work at once
                 answer follow, the outcome comes down
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mallob_py.experiments.network import CALIBRATED
from mallob_py.experiments.output import Output, Table
from mallob_py.protocol.balancing import volumes_of
from mallob_py.protocol.messages import JobEvent, VolumeAnswer, VolumeQuestion, VolumesSettled, decode, encode
from mallob_py.protocol.rank_tree import place_of, root_of
from mallob_py.protocol.volume_search import (
    AnyAnswer,
    AnyQuestion,
    Deputy,
    EpochVolumes,
    Hint,
    Volumes,
    VolumeSearch,
    deputy_of,
    merged,
)
from mallob_py.protocol.volumes import fair_volumes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: pairs of (PEs, jobs)
SIZES = (
    *((100, jobs) for jobs in (10, 90, 1_000, 10_000, 100_000)),
    *((1_000, jobs) for jobs in (10, 100, 900, 10_000, 100_000)),
    *((10_000, jobs) for jobs in (100, 1_000, 9_000, 100_000)),
    *((100_000, jobs) for jobs in (1_000, 10_000, 90_000, 1_000_000)),
)
#: duration of a hop in the network model that all simulations share
HOP_S = CALIBRATED.network_s + CALIBRATED.handling_s
_EPOCHS = 3
#: largest sum of the numbers of PEs and jobs for which several epochs are played, not one
_EPOCHS_UP_TO = 150_000


class Row(msgspec.Struct, frozen=True):
    """The measures for one pair (PEs, jobs), from the median epoch. In each epoch one job changes."""

    pes: int
    jobs: int
    #: number of rounds of the first epoch, in which the search has no hint
    first_rounds: int
    rounds: int
    span_hops: int
    messages: int
    longest_bytes: int
    total_bytes: int
    deputy_s: float
    merging_s: float
    search_s: float
    local_s: float
    #: time of `fair_volumes` alone, without making its arguments from the image
    vectors_s: float
    distributed_latency_s: float
    local_latency_s: float


def measure(
    sizes: Iterable[tuple[int, int]] = SIZES,
    hop_s: float = HOP_S,
    seed: int = 0,
) -> list[Row]:
    """Return one row per pair (PEs, jobs)."""
    return [_row(pes, jobs, hop_s, random.Random(f"{seed} {pes} {jobs}")) for pes, jobs in sizes]


def _row(pes: int, jobs: int, hop_s: float, choose: random.Random) -> Row:
    tree = TreeOfDeputies(pes)
    for job in range(jobs):
        tree.change(_news(job, pes, jobs, choose))
    tree.balance()
    first_rounds = tree.costs.rounds
    epochs = []
    for _ in range(_EPOCHS if pes + jobs <= _EPOCHS_UP_TO else 1):
        tree.change(_news(choose.randrange(jobs), pes, jobs, choose))
        epoch_volumes = tree.balance()
        epochs.append(tree.costs)
    local_s, volumes = _local(tree, pes)
    together = Volumes(epoch_volumes)
    assert all(together.of(event) == volumes.get(job, 0) for job, event in tree.jobs.items())
    costs = _median(epochs)
    deputy_s = costs.deputies_s / pes
    span_hops = tree.depth * (2 + 2 * costs.rounds)
    return Row(
        pes,
        jobs,
        first_rounds,
        costs.rounds,
        span_hops,
        costs.messages,
        costs.longest_bytes,
        costs.sent_bytes,
        deputy_s,
        costs.merging_s,
        costs.search_s,
        local_s,
        _vectors_s(tree, pes),
        span_hops * hop_s + deputy_s + costs.merging_s + costs.search_s,
        2 * tree.depth * hop_s + local_s,
    )


def _news(job: int, pes: int, jobs: int, choose: random.Random) -> JobEvent:
    """Return a change of a job: a priority as users choose it, and a demand that most often cannot be met."""
    demand = choose.choice((pes, choose.randint(1, 1 + 4 * pes // jobs)))
    return JobEvent(job, 1, demand, choose.uniform(0.01, 10.0), -choose.random())


def _local(tree: TreeOfDeputies, pes: int) -> tuple[float, Mapping[int, int]]:
    """Return the CPU seconds that the local rule takes, and the volumes that it computes."""
    times = []
    for _ in range(3):
        began = time.process_time()
        volumes = volumes_of(tree.jobs, pes)
        times.append(time.process_time() - began)
    return statistics.median(times), volumes


def _vectors_s(tree: TreeOfDeputies, pes: int) -> float:
    """Return the CPU seconds of `fair_volumes` alone."""
    events = list(tree.jobs.values())
    priorities = np.array([event.priority for event in events])
    demands = np.array([event.demand for event in events])
    ids = np.array([event.job for event in events])
    standings = np.array([event.standing for event in events])
    times = []
    for _ in range(3):
        began = time.process_time()
        fair_volumes(priorities, demands, pes, job_ids=ids, standing=standings)
        times.append(time.process_time() - began)
    return statistics.median(times)


def _median(epochs: Sequence[Costs]) -> Costs:
    """Return the costs of the median epoch, ordered by number of rounds, then by time of merging."""
    return sorted(epochs, key=lambda costs: (costs.rounds, costs.merging_s))[len(epochs) // 2]


def crossover(rows: Iterable[Row], pes: int) -> int | None:
    """Return the number of jobs from which distributed balancing is faster; None if it never is."""
    ratios = ((row.jobs, row.local_latency_s / row.distributed_latency_s) for row in rows if row.pes == pes)
    return _where_it_passes_1(sorted(ratios))


def crossover_of_vectors(rows: Iterable[Row], pes: int) -> int | None:
    """Return the `crossover` that would result if making the arguments of `fair_volumes` cost no time."""
    ratios = (
        (row.jobs, (row.local_latency_s - row.local_s + row.vectors_s) / row.distributed_latency_s)
        for row in rows
        if row.pes == pes
    )
    return _where_it_passes_1(sorted(ratios))


def _where_it_passes_1(points: list[tuple[int, float]]) -> int | None:
    """Return the last number of jobs at which the ratio rises to 1, interpolated on logarithmic axes."""
    found = None
    for (jobs, ratio), (more_jobs, more_ratio) in pairwise(points):
        if ratio < 1 <= more_ratio:
            share = math.log(1 / ratio) / math.log(more_ratio / ratio)
            found = round(jobs * math.pow(more_jobs / jobs, share))
    return found


_HEADER = (
    *("PEs", "jobs", "first rounds", "rounds", "hops", "messages", "longest B", "total MB"),
    *("deputy us", "merging us", "search us", "local us", "vectors us", "distributed ms", "local ms"),
)


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    lines = tuple(
        (
            row.pes,
            row.jobs,
            row.first_rounds,
            row.rounds,
            row.span_hops,
            row.messages,
            row.longest_bytes,
            row.total_bytes / 1e6,
            row.deputy_s * 1e6,
            row.merging_s * 1e6,
            row.search_s * 1e6,
            row.local_s * 1e6,
            row.vectors_s * 1e6,
            row.distributed_latency_s * 1e3,
            row.local_latency_s * 1e3,
        )
        for row in rows
    )
    return Table(f"One epoch; a hop takes {1e6 * HOP_S:.0f} us", _HEADER, lines)


def crossovers(rows: Sequence[Row]) -> str:
    """Return a line per number of PEs: from how many jobs on distributed balancing is faster."""
    text = []
    for pes in sorted({row.pes for row in rows}):
        where, where_of_vectors = (
            "at no measured number of jobs" if jobs is None else f"from about {jobs} jobs on"
            for jobs in (crossover(rows, pes), crossover_of_vectors(rows, pes))
        )
        text.append(f"{pes} PEs: distributed is faster {where}; than local with vectors {where_of_vectors}")
    return "\n".join(text)


def run(folder: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Measure these pairs of PEs and jobs; print a table and draw a figure."""
    output = Output(folder, "balancing")
    rows = measure(sizes)
    output.tables([table(rows)], crossovers(rows))
    output.figure("balancing-crossover", lambda figure: _draw(figure, rows))


def _draw(figure: Figure, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    for number, pes in enumerate(sorted({row.pes for row in rows})):
        of_size = [row for row in rows if row.pes == pes]
        jobs, color = [row.jobs for row in of_size], f"C{number}"
        together = [row.distributed_latency_s * 1e3 for row in of_size]
        alone = [row.local_latency_s * 1e3 for row in of_size]
        axes.loglog(jobs, together, color=color, marker="o", label=f"distributed, m = {pes}")
        axes.loglog(jobs, alone, color=color, marker=".", linestyle="--", label=f"local, m = {pes}")
    axes.set_xlabel("jobs")
    axes.set_ylabel("latency of an epoch [ms]")
    axes.legend()


# --- the tree of ranks ------------------------------------------------------------------


class Costs(msgspec.Struct):
    """The costs of one epoch. Times are CPU seconds measured here."""

    rounds: int = 0
    messages: int = 0
    sent_bytes: int = 0
    longest_bytes: int = 0
    #: time of all ranks together, without merging
    deputies_s: float = 0.0
    #: time of decoding, merging and encoding on a path from a leaf to the root, each by an average rank
    merging_s: float = 0.0
    #: time in which the root chooses the questions
    search_s: float = 0.0


class TreeOfDeputies:
    """The tree of ranks of `distributed_balancing.py`, but with only a `Deputy` per rank; played by levels.

    Every answer is encoded, sent up, decoded and merged as on the wire, and each step is counted and timed.
    Without PEs, one process can play a hundred thousand ranks. `pes`: number of PEs that the jobs share;
    None: the number of ranks.
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
        """Return the number of hops from the root to the farthest rank."""
        return len(self._levels) - 1

    def change(self, event: JobEvent) -> None:
        """Change one job; demand 0 ends it."""
        known = self.jobs.pop(event.job, None)
        deputy = self._deputies[deputy_of(event.job, self.size)]
        if event.demand:
            self.jobs[event.job] = event
            deputy.put(event)
        else:
            deputy.drop(event.job)
        self._hint.replace(known, event if event.demand else None)

    def balance(self) -> EpochVolumes:
        """Simulate one epoch; record its costs in `costs`."""
        costs = self.costs = Costs()
        search = VolumeSearch(self._pes, len(self.jobs), self._hint)
        while (question := search.question) is not None:
            self._count(encode(VolumeQuestion(1, (), question)), self.size - 1)
            answer = self._reduced(question)
            began = time.process_time()
            search.take(answer)
            costs.search_s += time.process_time() - began
        assert search.epoch_volumes is not None
        self._count(encode(VolumesSettled(1, (), search.epoch_volumes)), self.size - 1)
        costs.rounds = search.rounds
        return search.epoch_volumes

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
            sent = {rank: encode(VolumeAnswer(self._total(rank, own[rank], arrived))) for rank in level}
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
    assert isinstance(tell, VolumeAnswer)
    return tell.answer
