"""Options of `mallob-py batch ...`: schedulers of whole jobs, simulated."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from mallob_py.cli import values
from mallob_py.cli.option_groups import INPUT, OUTPUT, Config
from mallob_py.cli.option_sources import option, positional, switch_option

DEFAULT_POLICIES = ("fcfs", "easy")


def policies(text: str) -> tuple[str, ...]:
    """Policies, several separated by blanks or semicolons (their settings have commas)."""
    found = tuple(text.replace(";", " ").split())
    if not found:
        raise ValueError("a policy is needed, such as easy:depth=10")
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSimulateOptions(Config):
    """Options of `mallob-py batch simulate`."""

    trace: str = positional(
        "TRACE", values.path, group=INPUT, help="workload in SWF; plain, .gz, .bz2 or .xz", default=MISSING
    )
    policy: tuple[str, ...] = option(
        "-p --policy",
        policies,
        DEFAULT_POLICIES,
        metavar="P",
        group=INPUT,
        help="one or several, such as 'fcfs easy:depth=10' (default: fcfs easy)",
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
    strict: bool = switch_option("--strict", group=INPUT, help="refuse a trace with damaged lines")
    json: bool = switch_option("--json", group=OUTPUT, help="print the metrics as JSON")
