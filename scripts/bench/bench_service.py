"""The service as its users see it: latencies, throughput, what it costs when idle.

Latencies are taken from the rename of a job file into `in/` to the sight of its reply, on a
warm service, one job after the other. Where the time goes is read from the event logs. The
column "C++" holds the original's numbers, taken elsewhere in the same way on a similar machine
(2 cores, 4 or 16 ranks): compare magnitudes, not digits.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import msgspec
from common import BenchmarkError, print_absent, print_table
from latencies import measure_noop, measure_revisions, measure_sat, measure_tree
from measured import Measured
from one_shot import measure_solve
from rates import (
    measure_burst,
    measure_closed_loop,
    measure_flood,
    measure_idle,
    measure_memory,
    measure_urgent,
    measure_waiting,
)

Measure = Callable[[bool], list[Measured]]

MEASURES: dict[str, Measure] = {
    "noop": measure_noop,
    "sat": measure_sat,
    "revisions": measure_revisions,
    "tree": measure_tree,
    "burst": measure_burst,
    "flood": measure_flood,
    "urgent": measure_urgent,
    "waiting": measure_waiting,
    "loop": measure_closed_loop,
    "idle": measure_idle,
    "memory": measure_memory,
    "solve": measure_solve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), metavar="M", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")
    options = parser.parse_args()

    if shutil.which("mallob") is None:
        print_absent("mallob (C++)", "its column shows numbers recorded elsewhere")
    measured: list[Measured] = []
    failed: list[str] = []
    for name in options.only or MEASURES:
        try:
            measured += MEASURES[name](options.quick)
        except BenchmarkError as error:
            # The others are still worth having.
            print(f"\n{name}: {error}", file=sys.stderr)
            failed.append(name)
    rows = [one.row() for one in measured]
    print_table("Service", Measured.HEADER, rows)
    missed = [one for one in measured if one.is_missed()]
    print(f"\n{len(missed)} targets missed" + "".join(f"\n  {one.what}" for one in missed))
    if options.json:
        content = msgspec.json.encode([asdict(one) for one in measured])
        options.json.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
