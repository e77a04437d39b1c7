"""Matching at scale (P 3.2, 4.1): messages, hops, latency and the hottest PE of each matcher.

All PEs are busy; at one moment some turn idle and the same number of requests is made, as after a new
balancing result. What to look for:
- prefix sums: O(log m) hops for any number of requests; no PE with more than its share of messages
- routing tree: fewer messages where partners are near, but all traffic between distant parts
  of the system goes through the root of the tree, one message after the other
- random walk: quick while many PEs are idle, but m hops on average if one PE among m is idle; and the
  last of many requests is always late
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from mallob_py.experiments.intervals import interval
from mallob_py.experiments.network import CALIBRATED, HOPS, Costs, MatcherNetwork, Usage
from mallob_py.experiments.output import Output, Table
from mallob_py.protocol.config import Config, Matching
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.text_table import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: numbers of PEs; the last size takes most of the time
SIZES = (2**6, 2**8, 2**10, 2**12, 2**16)
#: greatest number of trials; fewer are made with many requests, where chance matters less, or with many PEs
_TRIALS_MAX = 10
_OF_FEW, _OF_MANY = 2**17, 2**15
_FEW_ASKERS = 16


class Case(Enum):
    """A case: which PEs request partners, and which PEs turn idle."""

    ONE = "1 request, 1 idle PE"
    SIXTEEN = "16 requests, 16 idle PEs"
    HALF_SCATTERED = "m/2 requests, anywhere"
    HALF_APART = "m/2 requests, idle PEs in the other half"
    ALL_FROM_HALF = "m requests, from the PEs of one half"
    ALL_FROM_FEW = "m requests, from 16 PEs"


class Contender(msgspec.Struct, frozen=True):
    """A matcher with its settings."""

    name: str
    matcher: Matching
    random_hops: int = 0

    def config(self, delay_s: float) -> Config:
        return Config(matcher=self.matcher, random_hops=self.random_hops, matching_delay_s=delay_s)


CONTENDERS = (
    Contender("prefix sum", Matching.PREFIX_SUM),
    Contender("routing tree", Matching.ROUTING_TREE),
    Contender("random walk, h=100", Matching.ROUTING_TREE, 100),
    Contender("random walk, h=inf", Matching.ROUTING_TREE, NO_LIMIT),
)


class MatchingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one matcher in one case. Means and maxima are over all requests of all trials; each list
    has one mean per trial.
    """

    case: Case
    contender: str
    size: int
    requests: int
    #: number of all messages of the matcher, per request
    messages_per_request: float
    hops_mean: float
    hops_max: float
    latency_mean_us: float
    latency_max_us: float
    #: messages and bytes that the busiest PE has sent and received, on average over trials
    hottest_messages: float
    hottest_bytes: float
    trial_messages: list[float]
    trial_hops: list[float]
    trial_us: list[float]


def placement(case: Case, size: int, choose: random.Random) -> tuple[list[int], list[int]]:
    """Return the requesting ranks (one entry per request) and the ranks that turn idle."""
    half = size // 2
    match case:
        case Case.ONE | Case.SIXTEEN:
            count = min(1 if case is Case.ONE else 16, half)
            ranks = choose.sample(range(size), 2 * count)
            return ranks[:count], ranks[count:]
        case Case.HALF_SCATTERED:
            ranks = choose.sample(range(size), 2 * half)
            return ranks[:half], ranks[half:]
        case Case.HALF_APART:
            return list(range(half)), list(range(half, 2 * half))
        case Case.ALL_FROM_HALF:
            return [number // 2 for number in range(size)], list(range(size))
        case Case.ALL_FROM_FEW:
            clients = choose.sample(range(size), min(_FEW_ASKERS, size))
            return [clients[number % len(clients)] for number in range(size)], list(range(size))


def _trials(case: Case, size: int) -> int:
    few = {Case.ONE: 1, Case.SIXTEEN: 16}.get(case)
    return max(1, min(_TRIALS_MAX, _OF_MANY // size if few is None else _OF_FEW // (few * size)))


def usages(contender: Contender, case: Case, size: int, costs: Costs, delay_s: float) -> list[Usage]:
    """Return the usage of each trial."""
    choose = random.Random(f"{case.value} {size}")
    network = MatcherNetwork(size, contender.config(delay_s), costs)
    return [network.match(*placement(case, size, choose)) for _ in range(_trials(case, size))]


def measure(contender: Contender, case: Case, size: int, delay_s: float) -> MatchingRow:
    """Measure one matcher: in hops without delays, and in time with `CALIBRATED` costs and `delay_s`."""
    in_hops = [usage.latencies_s for usage in usages(contender, case, size, HOPS, 0.0)]
    in_time = usages(contender, case, size, CALIBRATED, delay_s)
    requests = len(in_time[0].latencies_s)
    hops = [fmean(latencies) for latencies in in_hops]
    messages = [usage.messages / requests for usage in in_time]
    means_us = [1e6 * fmean(usage.latencies_s) for usage in in_time]
    return MatchingRow(
        case=case,
        contender=contender.name,
        size=size,
        requests=requests,
        messages_per_request=fmean(messages),
        hops_mean=fmean(hops),
        hops_max=max(map(max, in_hops)),
        latency_mean_us=fmean(means_us),
        latency_max_us=1e6 * max(max(usage.latencies_s) for usage in in_time),
        hottest_messages=fmean(usage.hottest_messages for usage in in_time),
        hottest_bytes=fmean(usage.hottest_bytes for usage in in_time),
        trial_messages=messages,
        trial_hops=hops,
        trial_us=means_us,
    )


def measure_all(
    sizes: Sequence[int] = SIZES,
    cases: Sequence[Case] = tuple(Case),
    contenders: Sequence[Contender] = CONTENDERS,
    delay_s: float = Config().matching_delay_s,
) -> Iterator[MatchingRow]:
    for case in cases:
        for size in sizes:
            for contender in contenders:
                yield measure(contender, case, size, delay_s)


_HEADER = (
    "m",
    "matcher",
    "messages/request",
    "hops mean",
    "hops max",
    "mean [us]",
    "max [us]",
    "hottest PE: messages",
    "bytes",
)


def _cell(of_trials: Sequence[float], digits: int = 2) -> Cell:
    return interval(of_trials).text(digits) if len(of_trials) > 1 else of_trials[0]


def table(title: str, rows: Sequence[MatchingRow]) -> Table:
    """Return the table of one case."""
    lines = tuple(
        (
            row.size,
            row.contender,
            _cell(row.trial_messages),
            _cell(row.trial_hops),
            round(row.hops_max),
            _cell(row.trial_us, 1),
            row.latency_max_us,
            round(row.hottest_messages),
            round(row.hottest_bytes),
        )
        for row in rows
    )
    return Table(title, _HEADER, lines)


def run(folder: Path, sizes: Sequence[int] = SIZES, delay_s: float = Config().matching_delay_s) -> None:
    """Measure all matchers in all cases, print a table for each case, and draw the most demanding case."""
    output = Output(folder, "matching")
    rows = []
    for row in measure_all(sizes, delay_s=delay_s):
        output.keep(f"{row.case.value}, m = {row.size}, {row.contender}", row)
        rows.append(row)
    by_case = [(case, [row for row in rows if row.case is case]) for case in Case]
    output.tables(
        [table(case.value, of_case) for case, of_case in by_case],
        f"The matching delay is {1e6 * delay_s:.0f} us; {CALIBRATED}.\n"
        "a ± b is a mean with its 95 % interval over trials, where there is more than one.",
    )
    output.figure("matching-at-scale", lambda figure: _draw(figure, dict(by_case)[Case.HALF_APART]))


def _draw(figure: Figure, rows: Sequence[MatchingRow]) -> None:
    left, right = figure.subplots(1, 2)
    for contender in dict.fromkeys(row.contender for row in rows):
        of_contender = [row for row in rows if row.contender == contender]
        sizes = [row.size for row in of_contender]
        left.loglog(sizes, [row.latency_max_us / 1e3 for row in of_contender], marker="o", label=contender)
        right.loglog(sizes, [row.hottest_messages for row in of_contender], marker="o", label=contender)
    for axes in (left, right):
        axes.set_xlabel(f"PEs m; {Case.HALF_APART.value}", fontsize="small")
    left.set_ylabel("until the last request is matched [ms]")
    right.set_ylabel("messages at the busiest PE")
    left.legend()
