"""Options of `mallob-py batch serve | submit | queue | cancel | nodes`: whole jobs that really run."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from mallob_py.cli import values
from mallob_py.cli.option_sources import OptionError, option, positional_list, switch_option
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
        help="slots for jobs, all of them on this host (default: one per core)",
    )
    nodes: str | None = option(
        "--nodes",
        values.path,
        None,
        metavar="FILE",
        group=SCHEDULING,
        help="run jobs on these hosts: a line such as `n1 slots=8` for each",
    )
    slurm: bool = switch_option(
        "--slurm", group=SCHEDULING, help="run jobs on the nodes of the Slurm allocation that this is in"
    )
    remote_shell: str | None = option(
        "--remote-shell",
        str,
        None,
        metavar="CMD",
        group=SCHEDULING,
        help="how hosts of --nodes are reached: CMD HOST WHAT-TO-RUN... (default: ssh, without a password)",
    )
    affinity: bool = switch_option(
        "--affinity",
        group=SCHEDULING,
        help="give jobs cores of their own on the node where their script runs",
    )
    policy: str = option(
        "-p --policy",
        str,
        "elastic",
        metavar="P",
        group=SCHEDULING,
        help="as of batch simulate, such as easy:depth=10 (default: elastic)",
    )

    def validate(self) -> None:
        super().validate()
        places = {"--slots": self.slots, "--nodes": self.nodes, "--slurm": self.slurm or None}
        given = [flag for flag, value in places.items() if value is not None]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} are different places for jobs; give one of them")
        if self.remote_shell is not None and self.nodes is None:
            raise OptionError("--remote-shell reaches the hosts of --nodes; give that as well")


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

    drain: str | None = option(
        "--drain", values.word, None, metavar="NODE", group=INPUT, help="start nothing new on this node"
    )
    reason: str | None = option(
        "--reason", str, None, metavar="TEXT", group=INPUT, help="why, for all who look (with --drain)"
    )
    resume: str | None = option(
        "--resume",
        values.word,
        None,
        metavar="NODE",
        group=INPUT,
        help="start jobs on this node again, which was drained or down",
    )
    take_in: int | None = option(
        "--take-in",
        values.positive_count,
        None,
        metavar="N",
        group=INPUT,
        help="have Slurm add N nodes to the allocation of serve --slurm",
    )
    give_back: str | None = option(
        "--give-back",
        values.word,
        None,
        metavar="NODE",
        group=INPUT,
        help="give this node back to Slurm when its jobs have ended",
    )

    def validate(self) -> None:
        super().validate()
        deeds = {
            "--drain": self.drain,
            "--resume": self.resume,
            "--take-in": self.take_in,
            "--give-back": self.give_back,
        }
        given = [flag for flag, value in deeds.items() if value is not None]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} are two things; do one at a time")
        if self.reason is not None and self.drain is None:
            raise OptionError("--reason says why a node is drained; give --drain as well")
