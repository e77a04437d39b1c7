"""Options of `mallob-py batch ...`: schedulers of whole jobs, on traces and over jobs that really run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    OptionError,
    list_option,
    option,
    positional,
    positional_list,
    switch_option,
)
from mallob_py.cli.shared_options import (
    INPUT,
    JOB,
    OUTPUT,
    SCHEDULING,
    SERVICE,
    Config,
    Parallel,
    Runs,
    choice,
)

if TYPE_CHECKING:
    from mallob_py.batch.costs import ResizeCost
    from mallob_py.batch.workload.changes import NodeRange, SpeedModel

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

    trace: str = positional("TRACE", values.path, INPUT, "workload in SWF; plain, .gz, .bz2 or .xz")
    nodes: int = option(
        "-m --nodes M", values.count, 0, INPUT, "size of the machine in nodes (default: the trace's)"
    )
    cores_per_node: int = option(
        "--cores-per-node K",
        values.positive_count,
        0,
        INPUT,
        "the trace counts cores, a node has K of them (default: as its header says, if all jobs had "
        "whole nodes; else 1)",
    )
    partition: int | None = option(
        "--partition N", values.count, None, INPUT, "only the jobs of this partition"
    )
    first: int = option("--first N", values.count, 0, INPUT, "only the first N jobs (default: all)")
    minimal_run: int | None = option(
        "--minimal-run SECONDS",
        values.positive_count,
        None,
        INPUT,
        "shorter run times become this (default: jobs without run time are left out)",
    )
    strict: bool = switch_option("--strict", INPUT, "refuse a trace with damaged lines")
    order: str = choice(
        "--order",
        ("batch", "pyss", "elastisim"),
        "batch",
        INPUT,
        "what happens first at the same second, as in that simulator (default: batch, all ends and "
        "submissions before one decision)",
    )
    malleable: float = option(
        "--malleable SHARE",
        share,
        0.0,
        MALLEABLE,
        "make this share of the rigid jobs malleable, such as 50%% (default: none)",
    )
    malleable_range: NodeRange | None = option(
        "--malleable-range A:B",
        node_range,
        None,
        MALLEABLE,
        "they run on A to B times the nodes they ask for (default: 0.5:2)",
    )
    speedup: SpeedModel | None = option(
        "--speedup MODEL",
        speed_model,
        None,
        MALLEABLE,
        "of these: linear, amdahl:S (serial share), power:RHO, log:RHO, downey:SIGMA; power:0:0.3 draws each "
        "job's number between two (default: linear)",
    )
    seed: int = option("--seed N", values.count, 0, MALLEABLE, "which jobs these are (default: 0)")
    resize_cost: ResizeCost | None = option(
        "--resize-cost G:S",
        resize_cost,
        None,
        MALLEABLE,
        "seconds that a job stands still to grow and to shrink, such as 14.55:7.41; with /node, for "
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
        "-p --policy P",
        policies,
        DEFAULT_POLICIES,
        INPUT,
        "one or several, such as -p fcfs easy:depth=10 (default: fcfs easy)",
        goes_on=names_policy,
    )
    output: str | None = option(
        "--output DIR",
        values.path,
        None,
        OUTPUT,
        "write schedules and pictures into a folder per policy, and DIR/index.html",
    )
    idle_watts: float = option(
        "--idle-watts W", watts, 100.0, OUTPUT, "power of a node that runs no job (default: 100)"
    )
    busy_watts: float = option(
        "--busy-watts W", watts, 200.0, OUTPUT, "power of a node that runs a job (default: 200)"
    )
    json: bool = switch_option("--json", OUTPUT, "print the metrics as JSON")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Live(Config):
    """The options of every command that meets a scheduler of whole jobs."""

    batch_dir: str = option(
        "--dir --batch-dir DIR",
        values.path,
        ".batch",
        SERVICE,
        "folder of the scheduler, with its jobs and what they print (default .batch)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExplainOptions(TraceOptions, Live):
    """Options of `mallob-py batch explain`."""

    job: int | None = positional(
        "JOB",
        values.count,
        INPUT,
        "the job's number in the trace; without TRACE, the number of one that waits or runs now (--dir)",
        default=None,
    )
    policy: str = option("-p --policy P", str, "easy", INPUT, "such as easy:depth=10 (default: easy)")

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
        INPUT,
        "elastic (seconds; --live: twelve minutes), agreement (a minute), mebf, cp (two; --full: half "
        "an hour), fair (five), sd (ten, on one core), sharing (two) or bags (nine; --full: half an hour, "
        "over real processes); see docs/batch.md",
    )
    traces: str | None = option(
        "--traces DIR",
        values.path,
        None,
        INPUT,
        "folder with public traces; without it, what needs them is left out",
    )
    full: bool = switch_option(
        "--full",
        INPUT,
        "longer or more parts of the traces, or more shares of malleable jobs, where an experiment takes few",
    )
    live: bool = switch_option("--live", INPUT, "over real processes, where an experiment can (elastic)")
    resume: bool = switch_option(
        "--resume", INPUT, "go on with what was kept in the output folder (bags, elastic --live)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchGenerateOptions(Config):
    """Options of `mallob-py batch generate`."""

    kind: str = positional("KIND", str, INPUT, "lublin, lublin-any, cirne, pecs23, glb or kit")
    jobs: int | None = option(
        "-n --jobs N", values.positive_count, None, INPUT, "how many (default: what is usual for the kind)"
    )
    nodes: int | None = option(
        "-m --nodes M",
        values.positive_count,
        None,
        INPUT,
        "size of the machine (default: what is usual for the kind)",
    )
    seed: int = option("--seed S", values.count, 1, INPUT, "another gives other jobs (default: 1)")
    output: str | None = option(
        "-o --output FILE",
        values.path,
        None,
        OUTPUT,
        "trace in SWF, or ElastiSim's jobs if it ends with .json (default: KIND.swf or KIND.json)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Shown(Live):
    """The options of every command that shows something of such a scheduler."""

    json: bool = switch_option("--json", OUTPUT, "print JSON for programs")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchServeOptions(Live):
    """Options of `mallob-py batch serve`."""

    slots: int | None = option(
        "--slots N",
        values.positive_count,
        None,
        SCHEDULING,
        "slots for jobs, all of them on this host (default: one per core)",
    )
    nodes: str | None = option(
        "--nodes FILE",
        values.path,
        None,
        SCHEDULING,
        "run jobs on these hosts: a line such as `n1 slots=8` for each",
    )
    slurm: bool = switch_option(
        "--slurm", SCHEDULING, "run jobs on the nodes of the Slurm allocation that this is in"
    )
    remote_shell: tuple[str, ...] | None = option(
        "--remote-shell CMD",
        values.remote_command,
        None,
        SCHEDULING,
        "how hosts of --nodes are reached: CMD HOST WHAT-TO-RUN... (default: ssh, without a password)",
    )
    affinity: bool = switch_option(
        "--affinity", SCHEDULING, "give jobs cores of their own on the node where their script runs"
    )
    policy: str = option(
        "-p --policy P",
        str,
        "elastic",
        SCHEDULING,
        "as of batch simulate, such as easy:depth=10 (default: elastic)",
    )
    default_s: float = option(
        "--default-time T",
        values.duration_s,
        86400.0,
        SCHEDULING,
        "jobs that say no required time are ended after this time (default: 1d)",
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
        "SCRIPT", values.path, INPUT, "job script, see docs/batch-live.md"
    )
    nodes: int | None = option(
        "-N --nodes N", values.positive_count, None, JOB, "slots of a rigid job (1), those that others prefer"
    )
    min_nodes: int | None = option(
        "--min-nodes N",
        values.positive_count,
        None,
        JOB,
        "fewest slots; the job is malleable unless its script says otherwise",
    )
    max_nodes: int | None = option("--max-nodes N", values.positive_count, None, JOB, "most slots")
    time_s: float | None = option(
        "-t --time T",
        values.duration_s,
        None,
        JOB,
        "the job is ended after this time, such as 90s, 5m or 2h (default: what batch serve says)",
    )
    name: str | None = option(
        "-J --name NAME", values.word, None, JOB, "name of the job (default: the file's)"
    )
    output: str | None = option(
        "-o --output FILE",
        values.path,
        None,
        JOB,
        "what the job prints goes there, see docs/batch-live.md (default: a file of the scheduler's)",
    )
    errors: str | None = option("-e --error FILE", values.path, None, JOB, "its standard error, if elsewhere")
    after: tuple[int, ...] = list_option(
        "--after JOB",
        lambda text: (values.positive_count(text),),
        (),
        JOB,
        "start when the job of this number has ended, however it has. May be repeated",
    )
    after_ok: tuple[int, ...] = list_option(
        "--after-ok JOB",
        lambda text: (values.positive_count(text),),
        (),
        JOB,
        "start when this job has ended with exit code 0; if it ends otherwise, do not start at all",
    )
    wait: bool = switch_option(
        "--wait", OUTPUT, "wait until the jobs have ended, and say how; exit code 1 if one failed"
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
            "JOB_OUTPUT": self.output,
            "JOB_ERRORS": self.errors,
        }
        return {header: str(value) for header, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchQueueOptions(Shown):
    """Options of `mallob-py batch queue`."""

    ended: int = option(
        "--ended N",
        values.count,
        0,
        OUTPUT,
        "also the last N of those that have ended, with how and the file of what they printed",
    )
    all: bool = switch_option("--all", OUTPUT, "all that wait, not the first 50 only")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCancelOptions(Live):
    """Options of `mallob-py batch cancel`."""

    jobs: tuple[int, ...] = positional_list("JOB", values.positive_count, INPUT, "number of a job")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchNodesOptions(Shown):
    """Options of `mallob-py batch nodes`."""

    drain: str | None = option("--drain NODE", values.word, None, INPUT, "start nothing new on this node")
    reason: str | None = option("--reason TEXT", str, None, INPUT, "why, for all who look (with --drain)")
    resume: str | None = option(
        "--resume NODE", values.word, None, INPUT, "start jobs on this node again, which was drained or down"
    )
    take_in: int | None = option(
        "--take-in N",
        values.positive_count,
        None,
        INPUT,
        "have Slurm add N nodes to the allocation of serve --slurm",
    )
    give_back: str | None = option(
        "--give-back NODE", values.word, None, INPUT, "give this node back to Slurm when its jobs have ended"
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
