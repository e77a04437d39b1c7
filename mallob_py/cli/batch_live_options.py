"""Options of `mallob-py batch serve | submit | queue | cancel | nodes`: whole jobs that really run."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from mallob_py.cli import values
from mallob_py.cli.option_sources import option, positional_list, switch_option
from mallob_py.cli.shared_options import INPUT, OUTPUT, SCHEDULING, SERVICE, Config


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Live(Config):
    """What every command that meets a scheduler of whole jobs has in common."""

    batch_dir: str = option(
        "--dir --batch-dir",
        values.path,
        ".batch",
        metavar="DIR",
        group=SERVICE,
        help="folder of the scheduler, with its jobs and what they print (default .batch)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Shown(Live):
    """What every command that shows something of it has in common."""

    json: bool = switch_option("--json", group=OUTPUT, help="print JSON for programs")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchServeOptions(Live):
    """Options of `mallob-py batch serve`."""

    slots: int | None = option(
        "--slots",
        values.positive_count,
        None,
        metavar="N",
        group=SCHEDULING,
        help="nodes for jobs, all of them this host (default: one per core)",
    )
    policy: str = option(
        "-p --policy",
        str,
        "elastic",
        metavar="P",
        group=SCHEDULING,
        help="as of batch simulate, such as easy:depth=10 (default: elastic)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSubmitOptions(Live):
    """Options of `mallob-py batch submit`."""

    scripts: tuple[str, ...] = positional_list(
        "SCRIPT", values.path, group=INPUT, help="job script, see docs/batch-live.md", default=MISSING
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchQueueOptions(Shown):
    """Options of `mallob-py batch queue`."""

    ended: int = option(
        "--ended",
        values.count,
        0,
        metavar="N",
        group=OUTPUT,
        help="also the last N of those that have ended, with how and the file of what they printed",
    )
    all: bool = switch_option("--all", group=OUTPUT, help="all that wait, not the first 50 only")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCancelOptions(Live):
    """Options of `mallob-py batch cancel`."""

    jobs: tuple[int, ...] = positional_list(
        "JOB", values.positive_count, group=INPUT, help="number of a job", default=MISSING
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchNodesOptions(Shown):
    """Options of `mallob-py batch nodes`."""
