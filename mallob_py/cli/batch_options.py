"""Options of `mallob-py batch ...`: schedulers of whole jobs, simulated."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from mallob_py.cli import values
from mallob_py.cli.option_sources import option, positional, switch_option
from mallob_py.cli.shared_options import INPUT, OUTPUT, Config, Runs

DEFAULT_POLICIES = ("fcfs", "easy")


def watts(text: str) -> float:
    """Power of a node."""
    try:
        power_w = float(text)
    except ValueError:
        power_w = -1.0
    if not 0.0 <= power_w < 1e6:
        raise ValueError(f"{text!r} is not a number of watts")
    return power_w


def policies(text: str) -> tuple[str, ...]:
    """Policies, several separated by blanks or semicolons (their settings have commas)."""
    found = tuple(text.replace(";", " ").split())
    if not found:
        raise ValueError("a policy is needed, such as easy:depth=10")
    return found


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class TraceOptions(Config):
    """Which trace, and how it is understood."""

    trace: str = positional(
        "TRACE", values.path, group=INPUT, help="workload in SWF; plain, .gz, .bz2 or .xz", default=MISSING
    )
    nodes: int = option(
        "-m --nodes",
        values.count,
        0,
        metavar="M",
        group=INPUT,
        help="size of the machine (default: the trace's)",
    )
    cores_per_node: int = option(
        "--cores-per-node",
        values.positive_count,
        1,
        metavar="K",
        group=INPUT,
        help="the trace counts cores, a node has K of them (default: 1)",
    )
    partition: int | None = option(
        "--partition", values.count, None, metavar="N", group=INPUT, help="only the jobs of this partition"
    )
    jobs: int = option(
        "--jobs", values.count, 0, metavar="N", group=INPUT, help="only the first N jobs (default: all)"
    )
    minimal_run: int | None = option(
        "--minimal-run",
        values.positive_count,
        None,
        metavar="SECONDS",
        group=INPUT,
        help="shorter run times become this (default: jobs without run time are left out)",
    )
    strict: bool = switch_option("--strict", group=INPUT, help="refuse a trace with damaged lines")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSimulateOptions(TraceOptions):
    """Options of `mallob-py batch simulate`."""

    policy: tuple[str, ...] = option(
        "-p --policy",
        policies,
        DEFAULT_POLICIES,
        metavar="P",
        group=INPUT,
        help="one or several, such as 'fcfs easy:depth=10' (default: fcfs easy)",
    )
    output: str | None = option(
        "--output",
        values.path,
        None,
        metavar="DIR",
        group=OUTPUT,
        help="write schedules and pictures into a folder per policy, and DIR/index.html",
    )
    idle_watts: float = option(
        "--idle-watts",
        watts,
        100.0,
        metavar="W",
        group=OUTPUT,
        help="power of a node that runs no job (default: 100)",
    )
    busy_watts: float = option(
        "--busy-watts",
        watts,
        200.0,
        metavar="W",
        group=OUTPUT,
        help="power of a node that runs a job (default: 200)",
    )
    json: bool = switch_option("--json", group=OUTPUT, help="print the metrics as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExplainOptions(TraceOptions):
    """Options of `mallob-py batch explain`."""

    job: int = positional(
        "JOB", values.count, group=INPUT, help="the job's number in the trace", default=MISSING
    )
    policy: str = option(
        "-p --policy", str, "easy", metavar="P", group=INPUT, help="such as easy:depth=10 (default: easy)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExperimentOptions(Runs):
    """Options of `mallob-py batch experiment`."""

    name: str = positional("NAME", str, group=INPUT, help="which one; see docs/batch.md", default=MISSING)
    traces: str | None = option(
        "--traces",
        values.path,
        None,
        metavar="DIR",
        group=INPUT,
        help="folder with public traces; without it, what needs them is left out",
    )
