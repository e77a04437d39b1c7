"""Growth of one job from 1 to m workers (P 3.2, Fig. 3 right), on whole PEs in virtual time.

With bulk requests, the root asks for all workers below it at once, and the PEs where requests meet idle PEs
tell the workers their places in the tree. So growth takes two collectives and the depth of the tree. Without
bulk requests, the job tree grows layer by layer: each new worker asks for its two children as soon as it has
its place. So growth takes as many rounds of matching as the job tree has layers.

Time is measured from the moment when the job's client learns of the volume m, to the moment when the
last worker has been accepted by its parent. All PEs but the root's are idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mallob_py.experiments.network import CALIBRATED, HOPS, Costs
from mallob_py.experiments.output import Output, Table
from mallob_py.log_events import LogEvent
from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.rank_messages import AnyWireMessage
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import InfinitelyFast

SIZES = (2**4, 2**6, 2**8, 2**10, 2**12)
_JOB = 1
#: longest time that a growth may take, in hops or seconds
_LIMIT_S = 1e6


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of one job to `size` workers."""

    way: str
    size: int
    hops: float
    latency_us: float
    #: all messages from the submission until the cluster is quiescent, also for balancing and job tree
    messages_per_worker: float
    #: number of messages that the busiest PE has sent and received from the submission until the cluster is
    #: quiescent
    hottest_messages: int


class Way(msgspec.Struct, frozen=True):
    """A way of finding workers."""

    name: str
    matcher: Matching
    bulk_requests: bool
    random_hops: int = 0

    def config(self, delay_s: float) -> Config:
        return Config(
            matcher=self.matcher,
            bulk_requests=self.bulk_requests,
            random_hops=self.random_hops,
            matching_delay_s=delay_s,
            balancing_delay_s=0.0,
            growth_delay_s=0.0,
        )


WAYS = (
    Way("prefix sum, bulk", Matching.PREFIX_SUM, bulk_requests=True),
    Way("prefix sum, by layers", Matching.PREFIX_SUM, bulk_requests=False),
    Way("routing tree, by layers", Matching.ROUTING_TREE, bulk_requests=False),
    Way("random walk, h=100, by layers", Matching.ROUTING_TREE, bulk_requests=False, random_hops=100),
)


class _Delays(InfinitelyFast):
    """A network in which messages cost as in `NetworkModel`, and nothing else takes time."""

    def __init__(self, costs: Costs) -> None:
        self._network_s = costs.network_s
        self.handling_s = self.sending_s = costs.handling_s

    def message_s(self, source: int, dest: int) -> float:
        return self._network_s

    def process_start_s(self, rank: int) -> float:
        return 0.0

    def fetch_s(self, rank: int) -> float:
        return 0.0


def grow(way: Way, size: int, costs: Costs, delay_s: float) -> tuple[float, list[int], Cluster]:
    """Return the time of one growth, the number of messages that each PE sent or got, and the cluster."""
    handled = [0] * size

    def count(source: int, dest: int, _message: AnyWireMessage) -> bool:
        handled[source] += 1
        handled[dest] += 1
        return False

    cluster = Cluster(size, 0, way.config(delay_s), _Delays(costs))
    cluster.settle(_LIMIT_S)
    cluster.logs.clear()
    cluster.hold(count)
    cluster.submit(_JOB, size - 1)
    cluster.settle(_LIMIT_S)
    check_invariants(cluster)
    start_s = min(
        when_s
        for when_s, _, event, fields in cluster.logs
        if event == LogEvent.VOLUME and fields["volume"] == size
    )
    end_s = max(when_s for when_s, _, event, _ in cluster.logs if event == LogEvent.ADOPTED)
    return end_s - start_s, handled, cluster


def measure(way: Way, size: int, delay_s: float) -> GrowthRow:
    """Measure one growth in hops, without any delays, and one in time."""
    hops, _, _ = grow(way, size, HOPS, 0.0)
    latency_s, handled, _ = grow(way, size, CALIBRATED, delay_s)
    return GrowthRow(
        way=way.name,
        size=size,
        hops=hops,
        latency_us=1e6 * latency_s,
        messages_per_worker=sum(handled) / 2 / size,
        hottest_messages=max(handled),
    )


def measure_all(
    sizes: Sequence[int] = SIZES,
    ways: Sequence[Way] = WAYS,
    delay_s: float = Config().matching_delay_s,
) -> Iterator[GrowthRow]:
    for size in sizes:
        for way in ways:
            yield measure(way, size, delay_s)


_HEADER = ("m", "requests", "hops", "latency [us]", "messages/worker", "hottest PE: messages")


def run(folder: Path, sizes: Sequence[int] = SIZES, delay_s: float = Config().matching_delay_s) -> None:
    """Measure all ways of finding workers at all sizes, and print a table."""
    output = Output(folder, "growth")
    lines = tuple(
        (row.size, row.way, round(row.hops), row.latency_us, row.messages_per_worker, row.hottest_messages)
        for row in measure_all(sizes, delay_s=delay_s)
    )
    output.tables(
        [Table("One job grows from 1 to m workers", _HEADER, lines)],
        f"The matching delay is {1e6 * delay_s:.0f} us; {CALIBRATED}.",
    )
