"""Task bags as malleable jobs under the live scheduler.

Source: the ElasticJobScheduler paper, figures 6 to 11, scaled to this machine. A slot is a core. Jobs are
runs of UTS, QUEENS, BC and PI by `mallob-py run`, some seconds of one core each; every result is compared
with the known result. First, each program runs alone on 1, 2, 4 ... slots (strong scaling, figure 6). Then a
running program is ordered to grow and shrink (figure 7). Then batches with growing shares of malleable jobs
are scheduled (figures 8 to 11); the simulator, told the measured times, predicts them.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import msgspec

from mallob_py.batch.costs import Delays
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.live.replay import Life, ReplayError, replay
from mallob_py.batch.live.script import ANY_NUMBER
from mallob_py.batch.metrics import metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.speedup import Amdahl
from mallob_py.experiments.output import Output, Table
from mallob_py.runtime.processes import import_places, python
from mallob_py.text_table import Cell

JOBS = 10
SHARES = (0.0, 1.0)
SHARES_IN_FULL = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
POLICIES = ("easy", "elastic:cooldown-s=2,period-s=0.5", "fair")
SEEDS = (1,)
SEEDS_IN_FULL = (1, 2)
_ARRIVALS_S = 15.0
_AT_ONCE = 2
#: the required time of a job, in multiples of its time alone on one slot
_REQUIRED = 10.0
_LIMIT_S = 300.0
_TIMES = 2
#: the depth of the UTS tree for the run that gets orders; it must last until the last order is carried out
_LONG = 15
#: numbers of ranks by which a running program grows and shrinks
_CHANGES = (1, 2, 4)
_REMARKS = """\
Times are seconds of the clock; a slot is a core. Alone: the time from the start of a job's process to its
end, with the start of interpreters and MPI. Speedup is relative to one slot. Wait: from the submission to the
start; compute: from the start to the end. Shrinks, grows: orders per malleable job. Cores used: CPU time of
all processes, with the scheduler, divided by that of all cores. Simulated: the same batch in virtual time;
the simulator is told how long each program takes alone, by Amdahl's law through its times on one slot and on
all, but not what orders cost."""


class Program(msgspec.Struct, frozen=True):
    """A program: its arguments of `mallob-py run`, and the key and value of its known result."""

    name: str
    words: tuple[str, ...]
    key: str = "value"
    result: float = 0.0


PROGRAMS = (
    Program("UTS14", ("UTS", "--set", "depth=14"), "value", 1057675516),
    Program("QUEENS16", ("QUEENS", "--set", "n=16"), "value", 14772512),
    Program("BC13", ("BC", "--set", "n=13"), "value", 185916403),
    Program("PI5e8", ("PI", "--set", "points=500000000"), "hits", 392698877),
)


class Alone(msgspec.Struct, frozen=True):
    """The run times [s] of a program alone on `slots` slots, one per measurement."""

    slots: int
    times_s: list[float]


class Resized(msgspec.Struct, frozen=True):
    """An order to a program: the change of its number of ranks, and the time [s] until it was carried out."""

    change: int
    took_s: float


class Orders(msgspec.Struct, frozen=True):
    """The orders that a program got, one after the other."""

    resized: list[Resized]


class Batch(msgspec.Struct, frozen=True):
    """The results of a real or simulated batch: makespan, means over jobs [s], orders per malleable job."""

    makespan_s: float
    turnaround_s: float
    wait_s: float
    compute_s: float
    rigid_turnaround_s: float | None
    malleable_turnaround_s: float | None
    shrinks: float | None = None
    grows: float | None = None
    #: CPU time of all jobs, divided by the CPU time of all cores until the last end; None: unknown
    used: float | None = None


def run(output: Output, processes: int | None, traces: Path | None, full: bool = False) -> None:
    """Write the tables. `full`: more shares of malleable jobs, more batches. Raises ReplayError, OSError."""
    slots = os.cpu_count() or 1
    shares, seeds = (SHARES_IN_FULL, SEEDS_IN_FULL) if full else (SHARES, SEEDS)
    alone = times_alone(output, slots)
    tables = [_scaling(alone), _costs(output.done("orders", Orders, _resizes).resized)]
    output.tables(tables, _REMARKS)
    rows = [
        _batch_row(output, policy, share, seed, slots, alone)
        for policy in POLICIES
        for share in shares
        if share == 0.0 or not policy.startswith("easy")
        for seed in seeds
    ]
    title = f"Batches of {JOBS} jobs on {slots} slots"
    output.tables([*tables, Table(title, _HEADER, tuple(rows))], _REMARKS)


def times_alone(output: Output, slots: int) -> dict[str, list[Alone]]:
    """Run each program alone on 1, 2, 4 ... slots. Raises ReplayError."""
    return {
        one.name: [
            output.done(f"{one.name} alone on {count}", Alone, partial(_alone, one, count))
            for count in _counts(slots)
        ]
        for one in PROGRAMS
    }


def _batch_row(
    output: Output, policy: str, share: float, seed: int, slots: int, alone: dict[str, list[Alone]]
) -> tuple[Cell, ...]:
    programs, workload = batch_of(seed, share, slots, alone)
    name = f"{policy}, {share:.0%} malleable, batch {seed}"
    real = output.done(name, Batch, lambda: played(programs, workload, policy))
    print(f"{name}: done", file=sys.stderr)
    return _row(policy, share, seed, real, _simulated(workload, policy))


# --- programs -----------------------------------------------------------------------------


def _counts(slots: int) -> list[int]:
    """Return 1, 2, 4 ... up to the number of slots, and the number of slots itself."""
    powers = [1 << place for place in range(slots.bit_length()) if 1 << place <= slots]
    return sorted({*powers, slots})


def _command(program: Program, *more: str) -> list[str]:
    return [*python(), "-m", "mallob_py", "run", *program.words, "--quiet", *more]


def done_of(name: str, command: list[str], code: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises ReplayError if it takes too long or its exit code is not `code` (None: any)."""
    environment = os.environ | import_places()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ReplayError(f"{name}: it has not ended after {_LIMIT_S:g} s") from None
    if code not in (None, done.returncode):
        raise ReplayError(f"{name}: {(done.stderr.strip() or 'it failed').splitlines()[-1]}")
    return done


def check(program: Program, output: str) -> None:
    """Check that a program's output has the known result. Raises ReplayError."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1])["result"].get(program.key) if lines else None
    if found != program.result:
        raise ReplayError(f"{program.name}: {program.key} is {found}, not {program.result:.0f}")


def _alone(program: Program, slots: int) -> Alone:
    times_s = list[float]()
    for _ in range(_TIMES):
        began_s = time.monotonic()
        done = done_of(program.name, _command(program, "-n", str(slots)), 0)
        times_s.append(time.monotonic() - began_s)
        check(program, done.stdout)
    return Alone(slots, times_s)


def _resizes() -> Orders:
    """Order a running program to grow and shrink, by one rank and by several; return the orders."""
    program = Program("UTS15", ("UTS", "--set", f"depth={_LONG}"))
    changes = [change for count in _CHANGES for change in (count, -count)]
    resized = list[Resized]()
    with tempfile.TemporaryDirectory(prefix="mallob-py-bags-") as folder:
        orders = Path(folder) / "orders"
        orders.mkdir(mode=0o700)
        job = subprocess.Popen(
            _command(program, "-n", "1", "--orders", str(orders), "--rank-loss", "survive"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | import_places(),
        )
        try:
            for change in changes:
                took_s = ordered(orders, change, job)
                if job.poll() is not None:
                    break
                resized.append(Resized(change, took_s))
        finally:
            job.terminate()
            job.wait()
    return Orders(resized)


def ordered(orders: Path, change: int, job: subprocess.Popen[bytes]) -> float:
    """Repeat an order until the program listens and carries it out; return the duration [s] of the last try.

    Raises ReplayError if the program runs on without taking the order.
    """
    command = [*python(), "-m", "mallob_py", "resize", f"{change:+d}", "--orders", str(orders)]
    until_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        code = done_of("resize", command).returncode
        if code == 0 or job.poll() is not None:
            return time.monotonic() - began_s
    raise ReplayError(f"a running program has taken no order for {_LIMIT_S:g} s")


# --- batches ------------------------------------------------------------------------------


def batch_of(
    seed: int,
    share: float,
    slots: int,
    alone: dict[str, list[Alone]],
    flexible_kind: Kind = Kind.MALLEABLE,
) -> tuple[list[Program], Workload]:
    """Return the programs and jobs of a batch. Jobs malleable at one share are malleable at every larger
    share.
    """
    generator = random.Random(f"bags {seed}")
    programs = [PROGRAMS[number % len(PROGRAMS)] for number in generator.sample(range(JOBS), JOBS)]
    sizes = [generator.choice(_counts(slots)) for _ in programs]
    arrivals = sorted(generator.uniform(0.0, _ARRIVALS_S) for _ in range(JOBS - _AT_ONCE))
    order = generator.sample(range(JOBS), JOBS)
    flexible = set(order[: round(share * JOBS)])
    jobs, truths = list[Job](), list[Truth]()
    for number, (program, size, submit_s) in enumerate(
        zip(programs, sizes, [0.0] * _AT_ONCE + arrivals, strict=True)
    ):
        kind = flexible_kind if number in flexible else Kind.RIGID
        required_s = _REQUIRED * mean(alone[program.name][0].times_s)
        jobs.append(Job(number, submit_s, size, required_s, kind, 1, slots, ANY_NUMBER, number=number + 1))
        truths.append(_truth(alone[program.name], size))
    return programs, Workload(jobs, truths, slots, f"batch {seed}, {share:.0%} malleable")


def _truth(runs: Sequence[Alone], size: int) -> Truth:
    """Return the run time on `size` slots, and a speedup by Amdahl's law, fitted to the times on 1 and all
    slots.
    """
    at = {one.slots: mean(one.times_s) for one in runs}
    most = max(at)
    serial = 0.0
    if most > 1:
        serial = min(1.0, max(0.0, (at[most] / at[1] - 1.0 / most) / (1.0 - 1.0 / most)))
    return Truth(at[size], Amdahl(serial))


def played(programs: list[Program], workload: Workload, policy: str) -> Batch:
    """Run a batch as real processes under a policy. Raises ReplayError."""

    def body(job: Job, truth: Truth) -> str:
        more = ("--rank-loss", "survive") if job.kind is not Kind.RIGID else ("-n", str(job.nodes))
        return f"exec {shlex.join(_command(programs[job.id], *more))}"

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lives = replay(workload, policy, lambda ended: None, body)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for program, life in zip(programs, lives, strict=True):
        check(program, life.output)
    real = _of_lives(workload, lives)
    used_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return msgspec.structs.replace(real, used=used_s / (real.makespan_s * (os.cpu_count() or 1)))


def _of_lives(workload: Workload, lives: Sequence[Life]) -> Batch:
    turnarounds = [one.end_s - one.submit_s for one in lives]
    malleable = [job.kind is not Kind.RIGID for job in workload.jobs]
    begin_s, end_s = min(one.submit_s for one in lives), max(one.end_s for one in lives)
    count = sum(malleable)
    return Batch(
        end_s - begin_s,
        mean(turnarounds),
        mean(one.start_s - one.submit_s for one in lives),
        mean(one.end_s - one.start_s for one in lives),
        *_apart(turnarounds, malleable),
        sum(one.shrinks for one in lives) / count if count else None,
        sum(one.grows for one in lives) / count if count else None,
    )


def _apart(turnarounds_s: Sequence[float], malleable: Sequence[bool]) -> tuple[float | None, float | None]:
    """Return the mean turnarounds [s] of rigid and of malleable jobs; None: there are no such jobs."""
    rigid = [time_s for time_s, is_one in zip(turnarounds_s, malleable, strict=True) if not is_one]
    others = [time_s for time_s, is_one in zip(turnarounds_s, malleable, strict=True) if is_one]
    return (mean(rigid) if rigid else None), (mean(others) if others else None)


def _simulated(workload: Workload, policy: str) -> Batch:
    schedule: Schedule = simulate(workload, policy_of(policy), delays=Delays())
    metrics = metrics_of(schedule)
    turnarounds = [end_s - job.submit_s for job, end_s in zip(workload.jobs, schedule.ends_s, strict=True)]
    return Batch(
        metrics.makespan_s,
        metrics.turnaround_s,
        metrics.wait_s,
        metrics.run_s,
        *_apart(turnarounds, [job.is_malleable for job in workload.jobs]),
    )


# --- tables -------------------------------------------------------------------------------

_HEADER = (
    "policy", "malleable", "batch",
    "makespan [s]", "simulated", "turnaround [s]", "simulated", "wait [s]", "simulated",
    "compute [s]", "rigid jobs [s]", "malleable jobs [s]", "shrinks", "grows", "cores used",
)  # fmt: skip


def _row(policy: str, share: float, seed: int, real: Batch, simulated: Batch) -> tuple[Cell, ...]:
    cells: list[Cell] = [policy.partition(":")[0], f"{share:.0%}", seed]
    for name in ("makespan_s", "turnaround_s", "wait_s"):
        cells += [f"{getattr(real, name):.1f}", f"{getattr(simulated, name):.1f}"]
    others = (real.compute_s, real.rigid_turnaround_s, real.malleable_turnaround_s)
    cells += [None if one is None else f"{one:.1f}" for one in others]
    return (*cells, *(None if one is None else f"{one:.2f}" for one in (real.shrinks, real.grows, real.used)))


def _scaling(alone: dict[str, list[Alone]]) -> Table:
    rows = list[tuple[Cell, ...]]()
    for name, runs in alone.items():
        first_s = mean(runs[0].times_s)
        for one in runs:
            least, most = min(one.times_s), max(one.times_s)
            speedup = f"{first_s / mean(one.times_s):.2f}"
            rows.append((name, one.slots, f"{mean(one.times_s):.2f}", f"{least:.2f} to {most:.2f}", speedup))
    return Table("Each program alone", ("program", "slots", "time [s]", "from, to", "speedup"), tuple(rows))


def _costs(resized: Sequence[Resized]) -> Table:
    rows = tuple((f"{one.change:+d}", f"{one.took_s:.2f}") for one in resized)
    return Table("Time until a running program has carried out an order", ("ranks", "time [s]"), rows)
