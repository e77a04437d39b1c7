"""Time of computing fair volumes: ours beside two plain ways, at m = 2^23 PEs.

Peers, both vectorised numpy: `sort` sorts all 2n events of P 3.1; `bisection` halves an interval
of alpha until no volume changes, as the C++ system does in principle. Medians over repetitions,
inputs drawn from a fixed seed. The ratio is peer / ours: above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.protocol.volumes import fair_volumes

Vector = NDArray[Any]
Method = Callable[[Vector, Vector, int], Vector]


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    n: int
    kind: str
    ours_ms: float
    sort_ms: float
    bisection_ms: float
    sort_ratio: float
    bisection_ratio: float


class Report(msgspec.Struct, frozen=True):
    """The JSON file."""

    m: int
    repetitions: int
    cores: int
    numpy: str
    rows: list[Row]


def by_sorting(p: Vector, d: Vector, m: int) -> Vector:
    """All events sorted, R and P prefix-summed, xi evaluated at each."""
    n = p.size
    events = np.concatenate((1.0 / p, d / p))
    order = np.argsort(events)
    events = events[order]
    used = n + np.cumsum(np.concatenate((np.full(n, -1.0), d))[order])
    slope = np.cumsum(np.concatenate((p, -p))[order])
    piece = int(np.argmax(used + events * slope >= m))
    alpha = (m - used[piece - 1]) / slope[piece - 1]
    return _rounded(p, d, m, alpha)


def by_bisection(p: Vector, d: Vector, m: int) -> Vector:
    """Halve [0, max d/p] until the floors agree on both ends or differ by one at most."""
    low, high = 0.0, float((d / p).max())
    for _ in range(200):
        alpha = (low + high) / 2
        if np.clip(alpha * p, 1.0, d).sum() <= m:
            low = alpha
        else:
            high = alpha
        spread = np.clip(high * p, 1.0, d) - np.clip(low * p, 1.0, d)
        if spread.max() < 1e-6:
            break
    return _rounded(p, d, m, low)


def _rounded(p: Vector, d: Vector, m: int, alpha: float) -> Vector:
    volumes = np.floor(np.clip(alpha * p, 1.0, d)).astype(np.int64)
    left_over = int(m - volumes.sum())
    if left_over:
        # Ties as they come: the peers are spared the work of agreeing on them.
        eligible = np.flatnonzero(volumes < d)
        volumes[eligible[np.argpartition(-p[eligible], left_over - 1)[:left_over]]] += 1
    return volumes


def draw(kind: str, n: int, m: int) -> tuple[Vector, Vector]:
    """Priorities and demands, demands about twice what there is."""
    rng = np.random.default_rng(n)
    demands = rng.integers(1, max(2, 4 * m // n), n)
    if kind == "equal":
        return np.ones(n), demands
    if kind == "decades":
        return 10.0 ** rng.uniform(-9, 9, n), demands
    return 1.0 - rng.random(n), demands


def median_ms(method: Method, p: Vector, d: Vector, m: int, repetitions: int) -> float:
    method(p, d, m)
    times_s = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        method(p, d, m)
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s) * 1e3


def measure(kind: str, n: int, m: int, repetitions: int) -> Row:
    p, d = draw(kind, n, m)
    # Small inputs take microseconds: repeat them more often.
    repetitions = max(repetitions, min(200, 2**18 // n))
    ours_ms, sort_ms, bisection_ms = (
        median_ms(method, p, d, m, repetitions) for method in (fair_volumes, by_sorting, by_bisection)
    )
    return Row(n, kind, ours_ms, sort_ms, bisection_ms, sort_ms / ours_ms, bisection_ms / ours_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument(
        "--jobs", type=int, nargs="+", default=[64, 1024, 16384, 131072, 1048576], metavar="N"
    )
    parser.add_argument("--pes", type=int, default=2**23, metavar="M", help="default: 2^23")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=["uniform", "equal", "decades"],
        default=["uniform"],
        help="of priorities",
    )
    parser.add_argument("--repetitions", type=int, default=5, help="at least, of each method (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")
    options = parser.parse_args()

    print(f"m = {options.pes}, medians in ms, ratio = peer / ours")
    print(f"{'n':>8} {'kind':>8} {'ours':>9} {'sort':>9} {'ratio':>6} {'bisection':>9} {'ratio':>6}")
    rows = []
    for kind in options.kinds:
        for n in options.jobs:
            row = measure(kind, n, options.pes, options.repetitions)
            rows.append(row)
            print(
                f"{row.n:>8} {row.kind:>8} {row.ours_ms:>9.3f} {row.sort_ms:>9.3f} {row.sort_ratio:>6.1f}"
                f" {row.bisection_ms:>9.3f} {row.bisection_ratio:>6.1f}",
                flush=True,
            )
    if options.json:
        report = Report(options.pes, options.repetitions, os.cpu_count() or 1, np.__version__, rows)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


if __name__ == "__main__":
    main()
