"""Play random scenarios until told to stop; print every failing seed and how to replay it.

python -m mallob_py.simulation.fuzz --seconds 60        as many seeds as fit
python -m mallob_py.simulation.fuzz --seed 4711         this one, with its traceback
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

from mallob_py.simulation.scenario import Scenario


def play(seed: int) -> str | None:
    """Run one seed; the failure's text, or None."""
    try:
        Scenario(seed).run()
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--seed", type=int, help="replay this one seed")
    options = parser.parse_args()
    if options.seed is not None:
        Scenario(options.seed).run()
        print(f"seed {options.seed}: all invariants hold")
        return 0
    deadline = time.monotonic() + options.seconds
    seed, played, failures = options.first, 0, 0
    batch = 8 * (os.cpu_count() or 1)
    with ProcessPoolExecutor() as pool:
        while time.monotonic() < deadline and failures < 10:
            seeds = range(seed, seed + batch)
            for tried, failure in zip(seeds, pool.map(play, seeds), strict=True):
                played += 1
                if failure is not None:
                    failures += 1
                    print(f"{failure}\nreplay: python -m mallob_py.simulation.fuzz --seed {tried}\n")
            seed += batch
    print(f"{played} seeds from {options.first} on, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
