"""How long it takes to have a running service go on with two ranks fewer, and with two more.

From the moment when the order is in the folder until its answer is there: ranks that leave are gone with all
their processes by then, ranks that come are members. A job has all PEs meanwhile.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from common import Service, print_table, running_service, summary, write_results

from mallob_py.service.store.orders import Resize, answer_to, give

_TIMEOUT_S = 60.0
_LOOK_S = 0.001
_JOB = {"user": "bench", "application": "SLEEP"}


def seconds_until_done(service: Service, order: Resize) -> float:
    began_s = time.monotonic()
    given = give(Path(service.api_dir), order)
    while (answer := answer_to(given)) is None:
        assert time.monotonic() < began_s + _TIMEOUT_S, f"no answer to {order}"
        time.sleep(_LOOK_S)
    assert not answer.refusal, answer.refusal
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"shrink by 2": [], "grow by 2": []}
    with running_service(options.ranks, ["--rank-loss", "survive"]) as service:
        service.drop(_JOB | {"name": "long"})
        for _ in range(options.rounds):
            times["shrink by 2"].append(seconds_until_done(service, Resize(by=-2)))
            times["grow by 2"].append(seconds_until_done(service, Resize(by=2)))
        service.interrupt("bench.long")
    rows = []
    for name, seconds in times.items():
        found = summary(seconds)
        rows.append((name, len(seconds), found.median, min(seconds), max(seconds)))
    print_table(
        f"changes of the number of ranks, from {options.ranks}",
        ("order", "times", "median s", "least s", "most s"),
        rows,
    )
    write_results("worlds", {"ranks": options.ranks, "seconds": times})


if __name__ == "__main__":
    main()
