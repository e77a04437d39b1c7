"""The elastic experiment with real processes: one of its batches, faster, beside the simulator's prediction.

Jobs are programs that work by waiting for a computed time, on slots of this host, under `mallob-py batch
serve`. How long each job takes to start, to be resized and to end depends on what else the host does; these
delays are measured, and the simulator is told them. Makespans and other times are shown in seconds of the
published batch, so that they can be compared with the published ones.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from mallob_py.batch.costs import Delays
from mallob_py.batch.job import Workload
from mallob_py.batch.live.replay import Life, delays_of, replay, scaled
from mallob_py.batch.metrics import metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import JOBS, NODES, glb_batch
from mallob_py.experiments.output import Output, Table
from mallob_py.text_table import Cell

SEED = 0
SHARES = (0.0, 0.5, 1.0)
SHARES_IN_FULL = (0.0, 0.25, 0.5, 0.75, 1.0)
#: the real duration [s] of a second of the published batch
SECOND_S = 0.04
#: the factor of required times: the published times are too short for a job on its smallest number of nodes
_REQUIRED = 1.5
POLICIES = ("elastic-fcfs", "backfilling", "elastic-easy", "elastic", "fair")
#: (policy, share) -> makespan, turnaround and wait [s], means of ten batches on a real cluster
_PUBLISHED: dict[tuple[str, float], tuple[float | None, float | None, float | None]] = {
    ("elastic-fcfs", 0.0): (1157, 366, None),
    ("elastic-fcfs", 1.0): (1022, 306, None),
    ("backfilling", 0.0): (1035, 284, None),
    ("backfilling", 1.0): (1005, 282, None),
    ("elastic-easy", 0.0): (1172, None, None),
    ("elastic-easy", 1.0): (1014, None, None),
    ("elastic", 0.0): (1168, 369, 174),
    ("elastic", 1.0): (1006, 353, 141),
}
_UNKNOWN = (None, None, None)
_REMARKS = f"""\
Batch {SEED} of {JOBS} jobs on {NODES} slots; a second of the batch lasts {SECOND_S} s here. The first table
is in seconds of the batch; published numbers are means of ten batches on a real cluster. The second table is
in seconds of the clock. Starts, takes orders: from the decision to start a job until it computes, and until
it can take orders. Grows, shrinks: from an order until it is carried out. Ends: from the end of a job's work
until its slots are free. The simulator was told these delays of each job."""
_HEADER = (
    "policy", "malleable",
    "makespan [s]", "simulated", "ratio", "published",
    "turnaround [s]", "simulated", "ratio", "published",
    "wait [s]", "simulated", "ratio", "published",
)  # fmt: skip


class Figures(msgspec.Struct, frozen=True):
    """Makespan, mean turnaround and mean wait, in seconds of the published batch."""

    makespan_s: float
    turnaround_s: float
    wait_s: float


class Real(msgspec.Struct, frozen=True):
    """A real run: the measurements of each job, in seconds of the clock."""

    lives: list[Life]

    def figures(self) -> Figures:
        lives = self.lives
        return Figures(
            (max(one.end_s for one in lives) - min(one.submit_s for one in lives)) / SECOND_S,
            sum(one.end_s - one.submit_s for one in lives) / len(lives) / SECOND_S,
            sum(one.start_s - one.submit_s for one in lives) / len(lives) / SECOND_S,
        )


def run_live(output: Output, shares: Sequence[float]) -> None:
    """Run a batch under each policy, one after the other; write the tables. Raises ReplayError, OSError."""
    runs = [(policy, share) for policy in POLICIES for share in shares]
    found: dict[tuple[str, float], Real] = {}
    with _ended_by_sigterm():
        for policy, share in runs:
            name = f"{policy}, {share:.0%} malleable"
            began_s = time.monotonic()
            with _progress(f"{len(found) + 1} of {len(runs)}: {name}") as tell:
                play = partial(_played, policy, share, tell)
                found[policy, share] = output.done(name, Real, play)
            took_s = time.monotonic() - began_s
            print(f"{len(found)} of {len(runs)} runs done ({name}), {took_s:.0f} s", file=sys.stderr)
    delays = {run: [delays_of(life) for life in real.lives] for run, real in found.items()}
    rows = [_row(run, real.figures(), _predicted(*run, delays[run])) for run, real in found.items()]
    tables = (
        Table("A batch over real processes, and as simulated", _HEADER, tuple(rows)),
        Table(
            "Measured delays [s]: mean, longest",
            ("policy", "malleable", "starts", "takes orders", "grows", "shrinks", "ends"),
            tuple((policy, f"{share:.0%}", *_told(delays[policy, share])) for policy, share in found),
        ),
    )
    output.tables(tables, _REMARKS)


def _played(policy: str, share: float, tell: Callable[[int], None]) -> Real:
    return Real(replay(_batch(share), _text(policy), tell))


def _batch(share: float) -> Workload:
    batch = glb_batch(SEED, share)
    jobs = [msgspec.structs.replace(job, estimate_s=_REQUIRED * job.estimate_s) for job in batch.jobs]
    return scaled(msgspec.structs.replace(batch, jobs=jobs), SECOND_S)


def _text(policy: str) -> str:
    """Return a policy's text with its time settings converted to real seconds."""
    if policy == "elastic":
        return f"elastic:cooldown-s={60.0 * SECOND_S:g},period-s={5.0 * SECOND_S:g}"
    return policy


def _predicted(policy: str, share: float, delays: Sequence[Delays]) -> Figures:
    metrics = metrics_of(simulate(_batch(share), policy_of(_text(policy)), delays=delays))
    times_s = metrics.makespan_s, metrics.turnaround_s, metrics.wait_s
    return Figures(*(time_s / SECOND_S for time_s in times_s))


def _row(run: tuple[str, float], real: Figures, predicted: Figures) -> tuple[Cell, ...]:
    policy, share = run
    cells: list[Cell] = [policy, f"{share:.0%}"]
    for ours, theirs, said in zip(
        msgspec.structs.astuple(real),
        msgspec.structs.astuple(predicted),
        _PUBLISHED.get(run, _UNKNOWN),
        strict=True,
    ):
        ratio = ours / theirs if theirs else None
        cells += [round(ours), round(theirs), ratio and f"{ratio:.2f}", said]
    return tuple(cells)


def _told(delays: Sequence[Delays]) -> Iterator[Cell]:
    for times_s in zip(*map(msgspec.structs.astuple, delays), strict=True):
        measured_s = [time_s for time_s in times_s if time_s]
        mean_s = sum(measured_s) / max(1, len(measured_s))
        yield f"{mean_s:.3f}, {max(measured_s):.3f}" if measured_s else None


# --- progress and interruption ------------------------------------------------------------


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int], None]]:
    """Show a bar of the jobs that have ended, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda ended: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs")
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=JOBS)
        yield lambda ended: progress.update(task, completed=ended)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Context manager that treats SIGTERM like Ctrl-C, so that no process is left."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
