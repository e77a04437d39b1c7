"""Options of `mallob-py batch ...`: schedulers of whole jobs, on traces and over jobs that really run."""

from __future__ import annotations

import os
import re
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING

from mallob_py.cli import values
from mallob_py.cli.option_sources import OptionError, list_option, option, positional, switch_option
from mallob_py.cli.shared_options import INPUT, JOB, OUTPUT, Config, Parallel, Runs, choice

if TYPE_CHECKING:
    from mallob_py.batch.costs import ResizeCost
    from mallob_py.batch.workload.changes import NodeRange, SpeedModel


from mallob_py.cli.option_sources import positional_list
from mallob_py.cli.shared_options import SCHEDULING, SERVICE

DEFAULT_POLICIES = ("fcfs", "easy")
MALLEABLE = "malleable jobs"


# What parses is imported late: the table of options is read by those who need no trace as well.


def share(text: str) -> float:
    """Parse a share of a workload's jobs."""
    from mallob_py.batch.workload.changes import share_of

    return share_of(text)


def node_range(text: str) -> NodeRange:
    """Least and most nodes of a job, as multiples of those it asks for."""
    from mallob_py.batch.workload.changes import node_range_of

    return node_range_of(text)


def speed_model(text: str) -> SpeedModel:
    """Parse how the speed of jobs depends on their nodes."""
    from mallob_py.batch.workload.changes import speed_model_of

    return speed_model_of(text)


def resize_cost(text: str) -> ResizeCost:
    """Parse how long jobs stand still when they are resized."""
    from mallob_py.batch.costs import resize_cost_of

    return resize_cost_of(text)


def names_policy(word: str) -> bool:
    """Whether a word behind a policy is one more, and not the trace."""
    return re.fullmatch(r"[A-Za-z][\w-]*(:.*)?", word) is not None and not os.path.exists(word)


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
        help="size of the machine in nodes (default: the trace's)",
    )
    cores_per_node: int = option(
        "--cores-per-node",
        values.positive_count,
        0,
        metavar="K",
        group=INPUT,
        help="the trace counts cores, a node has K of them (default: as its header says, if all jobs had "
        "whole nodes; else 1)",
    )
    partition: int | None = option(
        "--partition", values.count, None, metavar="N", group=INPUT, help="only the jobs of this partition"
    )
    first: int = option(
        "--first", values.count, 0, metavar="N", group=INPUT, help="only the first N jobs (default: all)"
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
    order: str = choice(
        "--order",
        ("batch", "pyss", "elastisim"),
        "batch",
        group=INPUT,
        help="what happens first at the same second, as in that simulator (default: batch, all ends and "
        "submissions before one decision)",
    )
    malleable: float = option(
        "--malleable",
        share,
        0.0,
        metavar="SHARE",
        group=MALLEABLE,
        help="make this share of the rigid jobs malleable, such as 50%% (default: none)",
    )
    malleable_range: NodeRange | None = option(
        "--malleable-range",
        node_range,
        None,
        metavar="A:B",
        group=MALLEABLE,
        help="they run on A to B times the nodes they ask for (default: 0.5:2)",
    )
    speedup: SpeedModel | None = option(
        "--speedup",
        speed_model,
        None,
        metavar="MODEL",
        group=MALLEABLE,
        help="of these: linear, amdahl:S (serial share), power:RHO, log:RHO; power:0:0.3 draws each job's "
        "number between two (default: linear)",
    )
    seed: int = option(
        "--seed", values.count, 0, metavar="N", group=MALLEABLE, help="which jobs these are (default: 0)"
    )
    resize_cost: ResizeCost | None = option(
        "--resize-cost",
        resize_cost,
        None,
        metavar="G:S",
        group=MALLEABLE,
        help="seconds that a job stands still to grow and to shrink, such as 14.55:7.41; with /node, for "
        "each node that comes or goes (default: 0)",
    )

    def validate(self) -> None:
        if self.malleable:
            return
        for flag, value in (("--malleable-range", self.malleable_range), ("--speedup", self.speedup)):
            if value is not None:
                raise OptionError(f"{flag} is of the jobs that --malleable makes malleable, such as 50%")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSimulateOptions(TraceOptions, Parallel):
    """Options of `mallob-py batch simulate`."""

    policy: tuple[str, ...] = list_option(
        "-p --policy",
        policies,
        DEFAULT_POLICIES,
        metavar="P",
        group=INPUT,
        help="one or several, such as -p fcfs easy:depth=10 (default: fcfs easy)",
        goes_on=names_policy,
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


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Live(Config):
    """The options of every command that meets a scheduler of whole jobs."""

    batch_dir: str = option(
        "--dir --batch-dir",
        values.path,
        ".batch",
        metavar="DIR",
        group=SERVICE,
        help="folder of the scheduler, with its jobs and what they print (default .batch)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExplainOptions(TraceOptions, Live):
    """Options of `mallob-py batch explain`."""

    job: int | None = positional(
        "JOB",
        values.count,
        group=INPUT,
        help="the job's number in the trace; without TRACE, the number of one that waits or runs now (--dir)",
        default=None,
    )
    policy: str = option(
        "-p --policy", str, "easy", metavar="P", group=INPUT, help="such as easy:depth=10 (default: easy)"
    )

    def validate(self) -> None:
        super().validate()
        if self.job is None and not (self.trace.isascii() and self.trace.isdecimal()):
            raise OptionError("JOB is missing: its number in the trace")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExperimentOptions(Runs):
    """Options of `mallob-py batch experiment`."""

    name: str = positional(
        "NAME",
        str,
        group=INPUT,
        help="elastic (seconds; --live: fourteen minutes), agreement (a minute), mebf, cp (two; --full: "
        "half an hour), fair (five), sd (ten, on one core) or bags (five, over real "
        "processes); see docs/batch-published.md",
        default=MISSING,
    )
    traces: str | None = option(
        "--traces",
        values.path,
        None,
        metavar="DIR",
        group=INPUT,
        help="folder with public traces; without it, what needs them is left out",
    )
    full: bool = switch_option(
        "--full",
        group=INPUT,
        help="longer parts of the traces, or more shares of malleable jobs, where an experiment takes few",
    )
    live: bool = switch_option(
        "--live", group=INPUT, help="over real processes, where an experiment can (elastic)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchGenerateOptions(Config):
    """Options of `mallob-py batch generate`."""

    kind: str = positional(
        "KIND", str, group=INPUT, help="lublin, lublin-any, cirne, pecs23, glb or kit", default=MISSING
    )
    jobs: int | None = option(
        "-n --jobs",
        values.positive_count,
        None,
        metavar="N",
        group=INPUT,
        help="how many (default: what is usual for the kind)",
    )
    nodes: int | None = option(
        "-m --nodes",
        values.positive_count,
        None,
        metavar="M",
        group=INPUT,
        help="size of the machine (default: what is usual for the kind)",
    )
    seed: int = option(
        "--seed", values.count, 1, metavar="S", group=INPUT, help="another gives other jobs (default: 1)"
    )
    output: str | None = option(
        "-o --output",
        values.path,
        None,
        metavar="FILE",
        group=OUTPUT,
        help="trace in SWF, or ElastiSim's jobs if it ends with .json (default: KIND.swf or KIND.json)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Shown(Live):
    """The options of every command that shows something of such a scheduler."""

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
    remote_shell: tuple[str, ...] | None = option(
        "--remote-shell",
        values.remote_command,
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
    nodes: int | None = option(
        "--nodes",
        values.positive_count,
        None,
        metavar="N",
        group=JOB,
        help="slots of a rigid job, those that others prefer",
    )
    min_nodes: int | None = option(
        "--min-nodes",
        values.positive_count,
        None,
        metavar="N",
        group=JOB,
        help="fewest slots; the job is malleable unless its script says otherwise",
    )
    max_nodes: int | None = option(
        "--max-nodes", values.positive_count, None, metavar="N", group=JOB, help="most slots"
    )
    time_s: float | None = option(
        "--time",
        values.duration_s,
        None,
        metavar="T",
        group=JOB,
        help="the job is ended after this time, such as 90s, 5m or 2h",
    )
    name: str | None = option(
        "--name", values.word, None, metavar="NAME", group=JOB, help="name of the job (default: the file's)"
    )
    after: tuple[int, ...] = list_option(
        "--after",
        lambda text: (values.positive_count(text),),
        (),
        metavar="JOB",
        group=JOB,
        help="start when the job of this number has ended, however it has. May be repeated",
    )
    after_ok: tuple[int, ...] = list_option(
        "--after-ok",
        lambda text: (values.positive_count(text),),
        (),
        metavar="JOB",
        group=JOB,
        help="start when this job has ended with exit code 0; if it ends otherwise, do not start at all",
    )
    wait: bool = switch_option(
        "--wait", group=OUTPUT, help="wait until the jobs have ended, and say how; exit code 1 if one failed"
    )

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a script would have to say the same."""
        given = {
            "NODES": self.nodes,
            "MIN_NODES": self.min_nodes,
            "MAX_NODES": self.max_nodes,
            "REQUIRED_TIME": None if self.time_s is None else max(1, round(1000 * self.time_s)),
            "JOB_NAME": self.name,
        }
        return {header: str(value) for header, value in given.items() if value is not None}


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
