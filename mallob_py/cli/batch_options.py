"""Options of `mallob-py batch ...`: batch schedulers, on traces and over real processes."""

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


# Parsers are imported late, because commands without a trace read this table, too.


def share(text: str) -> float:
    """Parse a share of a workload's jobs."""
    from mallob_py.batch.workload.changes import share_of

    return share_of(text)


def node_range(text: str) -> NodeRange:
    """Parse a job's smallest and greatest number of nodes, as multiples of the requested number."""
    from mallob_py.batch.workload.changes import node_range_of

    return node_range_of(text)


def speed_model(text: str) -> SpeedModel:
    """Parse a job's speed as a function of its nodes."""
    from mallob_py.batch.workload.changes import speed_model_of

    return speed_model_of(text)


def resize_cost(text: str) -> ResizeCost:
    """Parse the time for which a job stands still when it is resized."""
    from mallob_py.batch.costs import resize_cost_of

    return resize_cost_of(text)


def names_policy(word: str) -> bool:
    """Tell whether a word after a policy is another policy, and not the trace."""
    return re.fullmatch(r"[A-Za-z][\w-]*(:.*)?", word) is not None and not os.path.exists(word)


def watts(text: str) -> float:
    """Parse the power of a node."""
    try:
        power_w = float(text)
    except ValueError:
        power_w = -1.0
    if not 0.0 <= power_w < 1e6:
        raise ValueError(f"{text!r} is not a number of watts")
    return power_w


def policies(text: str) -> tuple[str, ...]:
    """Parse policies, separated by blanks or semicolons, because a policy's settings contain commas."""
    found = tuple(text.replace(";", " ").split())
    if not found:
        raise ValueError("a policy is needed, such as easy:depth=10")
    return found


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class TraceOptions(Config):
    """Options that name a trace and say how to read it."""

    trace: str = positional(
        "TRACE", values.path, INPUT, "workload in SWF, or a job table of ALCF (.csv); plain, .gz, .bz2 or .xz"
    )
    nodes: int = option(
        "-m --nodes M", values.count, 0, INPUT, "size of the machine in nodes (default: the trace's)"
    )
    cores_per_node: int = option(
        "--cores-per-node K",
        values.positive_count,
        0,
        INPUT,
        "the trace counts cores, and each node has K cores (default: as the trace's header says, if all "
        "jobs had whole nodes; else 1)",
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
        "raise shorter run times, also zero, to this value (default: leave out jobs without run time)",
    )
    strict: bool = switch_option("--strict", INPUT, "refuse a trace with damaged lines")
    order: str = choice(
        "--order",
        ("batch", "pyss", "elastisim"),
        "batch",
        INPUT,
        "the simulator whose order of events within a second is used (default: batch, all ends and "
        "submissions of the second, then one decision)",
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
        "malleable jobs run on A to B times the nodes asked for (default: 0.5:2)",
    )
    speedup: SpeedModel | None = option(
        "--speedup MODEL",
        speed_model,
        None,
        MALLEABLE,
        "speed of malleable jobs: linear, amdahl:S (S: serial share), power:RHO, log:RHO, downey:SIGMA; "
        "power:0:0.3 draws each job's RHO between 0 and 0.3 (default: linear)",
    )
    seed: int = option(
        "--seed N", values.count, 0, MALLEABLE, "seed for choosing malleable jobs at random (default: 0)"
    )
    resize_cost: ResizeCost | None = option(
        "--resize-cost G:S",
        resize_cost,
        None,
        MALLEABLE,
        "seconds that a job stands still when it grows and when it shrinks, such as 14.55:7.41; with "
        "/node, for each node added or removed (default: 0)",
    )

    def validate(self) -> None:
        if self.malleable:
            return
        for flag, value in (("--malleable-range", self.malleable_range), ("--speedup", self.speedup)):
            if value is not None:
                raise OptionError(f"{flag} is for malleable jobs; give --malleable as well, such as 50%")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSimulateOptions(TraceOptions, Parallel):
    """Options of `mallob-py batch simulate`."""

    policy: tuple[str, ...] = list_option(
        "-p --policy P",
        policies,
        DEFAULT_POLICIES,
        INPUT,
        "one or more policies, such as -p fcfs easy:depth=10 (default: fcfs easy)",
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
        "--idle-watts W", watts, 100.0, OUTPUT, "power in watts of a node that runs no job (default: 100)"
    )
    busy_watts: float = option(
        "--busy-watts W", watts, 200.0, OUTPUT, "power in watts of a node that runs a job (default: 200)"
    )
    json: bool = switch_option("--json", OUTPUT, "print the metrics as JSON")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Live(Config):
    """The options of all commands that use a batch scheduler."""

    batch_dir: str = option(
        "--dir --batch-dir DIR",
        values.path,
        ".batch",
        SERVICE,
        "folder of the scheduler, with its jobs and their output (default .batch)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExplainOptions(TraceOptions, Live):
    """Options of `mallob-py batch explain`."""

    job: int | None = positional(
        "JOB",
        values.count,
        INPUT,
        "number of a job in the trace; without TRACE, of a waiting or running job (--dir)",
        default=None,
    )
    policy: str = option(
        "-p --policy P", str, "easy", INPUT, "policy to explain, such as easy:depth=10 (default: easy)"
    )

    def validate(self) -> None:
        super().validate()
        if self.job is None and not (self.trace.isascii() and self.trace.isdecimal()):
            raise OptionError("JOB is missing: give the job's number in the trace")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchExperimentOptions(Runs):
    """Options of `mallob-py batch experiment`."""

    name: str = positional(
        "NAME",
        str,
        INPUT,
        "elastic (takes seconds; --live: 12 min), agreement (1 min), mebf, cp (2 min; --full: 30 min), fair "
        "(5 min), malleability (2 min), sd (10 min, on one core), evolving (seconds) or bags (9 min; --full: "
        "30 min, over real processes); see docs/batch.md",
    )
    traces: str | None = option(
        "--traces DIR",
        values.path,
        None,
        INPUT,
        "folder with public traces; without it, parts that need traces are left out",
    )
    full: bool = switch_option(
        "--full", INPUT, "full size: longer or more parts of traces, or more shares of malleable jobs"
    )
    live: bool = switch_option("--live", INPUT, "run real processes (elastic and evolving only)")
    resume: bool = switch_option(
        "--resume", INPUT, "go on with the run in the output folder (bags, or with --live)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchGenerateOptions(Config):
    """Options of `mallob-py batch generate`."""

    kind: str = positional("KIND", str, INPUT, "model: lublin, lublin-any, cirne, pecs23, glb or kit")
    jobs: int | None = option(
        "-n --jobs N", values.positive_count, None, INPUT, "number of jobs (default: depends on KIND)"
    )
    nodes: int | None = option(
        "-m --nodes M", values.positive_count, None, INPUT, "size of the machine (default: depends on KIND)"
    )
    seed: int = option("--seed S", values.count, 1, INPUT, "seed of all random choices (default: 1)")
    output: str | None = option(
        "-o --output FILE",
        values.path,
        None,
        OUTPUT,
        "write the trace to FILE: as ElastiSim's jobs if FILE ends with .json, else in SWF (default: "
        "KIND.swf or KIND.json)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Shown(Live):
    """The options of all commands that print the state of a batch scheduler."""

    json: bool = switch_option("--json", OUTPUT, "print JSON for programs")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchServeOptions(Live):
    """Options of `mallob-py batch serve`."""

    slots: int | None = option(
        "--slots N",
        values.positive_count,
        None,
        SCHEDULING,
        "number of slots, all on this host (default: one per core)",
    )
    nodes: str | None = option(
        "--nodes FILE",
        values.path,
        None,
        SCHEDULING,
        "run jobs on these hosts: a line such as `n1 slots=8` for each",
    )
    slurm: bool = switch_option(
        "--slurm", SCHEDULING, "run jobs on the nodes of the Slurm allocation of this process"
    )
    remote_shell: tuple[str, ...] | None = option(
        "--remote-shell CMD",
        values.remote_command,
        None,
        SCHEDULING,
        "how the hosts of --nodes are reached: by CMD HOST WHAT-TO-RUN... (default: ssh, without a password)",
    )
    affinity: bool = switch_option(
        "--affinity", SCHEDULING, "give jobs cores of their own on the node where their script runs"
    )
    policy: str = option(
        "-p --policy P",
        str,
        "elastic",
        SCHEDULING,
        "policy as in batch simulate, such as easy:depth=10 (default: elastic)",
    )
    default_s: float = option(
        "--default-time T",
        values.duration_s,
        86400.0,
        SCHEDULING,
        "time limit of jobs that have none of their own (default: 1d)",
    )

    def validate(self) -> None:
        super().validate()
        places = {"--slots": self.slots, "--nodes": self.nodes, "--slurm": self.slurm or None}
        given = [flag for flag, value in places.items() if value is not None]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} both say where jobs run; give one of them")
        if self.remote_shell is not None and self.nodes is None:
            raise OptionError("--remote-shell reaches the hosts of --nodes; give --nodes as well")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSubmitOptions(Live):
    """Options of `mallob-py batch submit`."""

    scripts: tuple[str, ...] = positional_list(
        "SCRIPT", values.path, INPUT, "job script, see docs/batch-live.md"
    )
    nodes: int | None = option(
        "-N --nodes N",
        values.positive_count,
        None,
        JOB,
        "number of slots of a rigid job (default: 1), preferred number of slots of a malleable job",
    )
    min_nodes: int | None = option(
        "--min-nodes N",
        values.positive_count,
        None,
        JOB,
        "smallest number of slots; the job is malleable unless its script says otherwise",
    )
    max_nodes: int | None = option(
        "--max-nodes N", values.positive_count, None, JOB, "greatest number of slots"
    )
    time_s: float | None = option(
        "-t --time T",
        values.duration_s,
        None,
        JOB,
        "time limit of the job, such as 90s, 5m or 2h (default: that of batch serve)",
    )
    name: str | None = option(
        "-J --name NAME", values.word, None, JOB, "name of the job (default: the script's name)"
    )
    output: str | None = option(
        "-o --output FILE",
        values.path,
        None,
        JOB,
        "file for the job's output, see docs/batch-live.md (default: in the scheduler's folder)",
    )
    errors: str | None = option(
        "-e --error FILE",
        values.path,
        None,
        JOB,
        "file for the job's standard error (default: that of --output)",
    )
    after: tuple[int, ...] = list_option(
        "--after JOB",
        lambda text: (values.positive_count(text),),
        (),
        JOB,
        "start after this job has ended, successfully or not. May be repeated",
    )
    after_ok: tuple[int, ...] = list_option(
        "--after-ok JOB",
        lambda text: (values.positive_count(text),),
        (),
        JOB,
        "start after this job has ended with exit code 0; if it ends otherwise, never start. May be repeated",
    )
    wait: bool = switch_option(
        "--wait", OUTPUT, "wait for the jobs and print how each ends; exit code 1 if a job failed"
    )

    @property
    def headers(self) -> dict[str, str]:
        """The options as headers of a job script."""
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
        "also list the last N ended jobs, how they ended, and their output files",
    )
    all: bool = switch_option("--all", OUTPUT, "list all waiting jobs, not only the first 50")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCancelOptions(Live):
    """Options of `mallob-py batch cancel`."""

    jobs: tuple[tuple[int, int], ...] = positional_list(
        "JOB", values.job_or_task, INPUT, "number of a job or an array; ARRAY_TASK is one task of an array"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchNodesOptions(Shown):
    """Options of `mallob-py batch nodes`."""

    drain: str | None = option("--drain NODE", values.word, None, INPUT, "start no further job on this node")
    reason: str | None = option("--reason TEXT", str, None, INPUT, "reason for --drain, shown to all users")
    resume: str | None = option(
        "--resume NODE", values.word, None, INPUT, "start jobs again on this drained or failed node"
    )
    take_in: int | None = option(
        "--take-in N",
        values.positive_count,
        None,
        INPUT,
        "have Slurm add N nodes to the allocation of serve --slurm",
    )
    give_back: str | None = option(
        "--give-back NODE", values.word, None, INPUT, "return this node to Slurm when its jobs have ended"
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
            raise OptionError(f"{given[0]} and {given[1]} cannot be combined; give one of them")
        if self.reason is not None and self.drain is None:
            raise OptionError("--reason belongs to --drain; give --drain as well")
