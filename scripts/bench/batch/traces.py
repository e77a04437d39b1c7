"""CPU seconds of what has to be quick on public traces: Curie, and 2,317 malleable jobs of PECS 2023.

    python scripts/bench/batch/traces.py FOLDER

The folder has `traces/` and `oracle/` in it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from mallob_py.batch.experiments.sd import CASES, load
from mallob_py.batch.job import Workload
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.workload.elastisim import read_elastisim
from mallob_py.text_table import format_table


def main(folder: Path) -> None:
    def curie() -> Workload:
        return load(CASES[0], folder / "traces")

    def pecs() -> Workload:
        return read_elastisim(folder / "oracle" / "pecs23_S0_malleable100_jobs.json.gz")

    cases: list[tuple[str, Callable[[], Workload], str, EventOrder]] = [
        ("Curie", curie, "easy", EventOrder.BATCH),
        ("Curie", curie, "conservative", EventOrder.BATCH),
        ("Curie, all malleable", curie, "sd:check=no", EventOrder.BATCH),
        ("Curie, all malleable", curie, "sd:check=no,counts_shared=no,again=no,replan=no", EventOrder.BATCH),
        ("Curie, all malleable", curie, "sd:waits=map", EventOrder.BATCH),
        ("PECS 2023, all malleable", pecs, "agreement:quirks=pecs23", EventOrder.ELASTISIM),
    ]
    began_s = time.process_time()
    rows = [("Curie", len(curie().jobs), "(read)", time.process_time() - began_s)]
    for name, read, policy, order in cases:
        workload = read()
        first = msgspec.structs.replace(workload, jobs=workload.jobs[:100], truths=workload.truths[:100])
        simulate(first, policy_of(policy), order=order)  # what is compiled at first use is compiled now
        began_s = time.process_time()
        simulate(workload, policy_of(policy), order=order)
        rows.append((name, len(workload.jobs), policy, time.process_time() - began_s))
    print(format_table(("trace", "jobs", "policy", "CPU [s]"), rows))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not all(Path(sys.argv[1], part).is_dir() for part in ("traces", "oracle")):
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
