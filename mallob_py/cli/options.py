"""All options of all commands: one table, typed.

Each class below is what one command's `run(options) -> int` receives. Flags, help,
environment variables and configuration keys are made from these fields (see
`option_sources`), so an option is added here and nowhere else. Guarantee: options that
reach a command have been parsed and do not contradict each other; that is settled before
MPI starts, on every rank alike.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    CommandOptions,
    OptionError,
    option,
    parse_options,
    positional,
    positional_list,
    switch_option,
)

_INPUT = "input"
_OUTPUT = "output"
_WORLD = "processes"
_LIMITS = "limits"
_SCHEDULING = "scheduling"
_SERVICE = "service"
_FILES = "files and logs"
_JOB = "job"
_WEB = "web server"

REUSE_STRATEGIES = ("none", "basic", "full")
BALANCINGS = ("local", "distributed")
MATCHINGS = ("prefix-sum", "routing-tree")
PROOF_FORMATS = ("lrat", "drat")
EXPERIMENTS = ("uniform", "priorities", "realistic", "matching", "growth", "balancing")


def _launched_ranks() -> int | None:
    """How many ranks mpiexec, srun and the like say that they started; None without any."""
    from mallob_py.runtime.world import declared_world_size  # only for who needs it: --help is quick

    declared = declared_world_size(os.environ)
    return declared if declared > 1 else None


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def _choice(flag: str, names: Sequence[str], default: str, *, group: str, help: str) -> Any:
    """Declare an option that takes one of these names."""
    return option(flag, _one_of(*names), default, metavar="|".join(names), group=group, help=help)


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Config(CommandOptions):
    config: str | None = option(
        "--config", values.path, None, metavar="FILE", group="configuration", help="TOML file with options"
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _World(_Config):
    """What every command that runs ranks has in common."""

    ranks: int | None = option(
        "-n --ranks",
        values.positive_count,
        None,
        metavar="RANKS",
        group=_WORLD,
        help="number of ranks to start (default: one per core; under mpiexec or srun: theirs)",
    )
    solvers: int = option(
        "--threads --solvers",
        values.positive_count,
        1,
        metavar="T",
        group=_WORLD,
        help="solver processes per worker, for ranks that own several cores (default 1)",
    )
    portfolio: str | None = option(
        "--portfolio",
        values.portfolio,
        None,
        metavar="LASSO",
        group=_WORLD,
        help="solvers of SAT jobs that name none, one letter each: those before the parentheses once, "
        "then those within in turn, such as 'k(cg)*' (letters: docs/sat-jobs.md)",
    )
    pes: int | None = option(
        "--pes",
        values.capacity,
        1,
        metavar="K|auto",
        group=_WORLD,
        help="workers that this rank runs at a time (default 1); auto: its cores over --threads. "
        "Ranks may differ, and get shares by it",
    )
    warm: int = option(
        "--warm",
        values.count,
        1,
        metavar="K",
        group=_WORLD,
        help="worker processes kept ready per PE (default 1)",
    )
    memory_limit_bytes: int | None = option(
        "--memory-limit",
        values.size_limit_bytes,
        None,
        metavar="SIZE",
        group=_LIMITS,
        help="memory of one solver process, such as 2g (default: no limit)",
    )
    time_limit_s: float | None = option(
        "--time-limit",
        values.duration_limit_s,
        None,
        metavar="T",
        group=_LIMITS,
        help="end after this time, such as 90s, 5m or 2h (default: no limit)",
    )
    rank_timeout_s: float | None = option(
        "--rank-timeout",
        values.silence_limit_s,
        30.0,
        metavar="T",
        group=_LIMITS,
        help="end all ranks, and name the one, when a rank is silent for this long (default 30s; 0: never)",
    )
    reuse: str = _choice(
        "--reuse",
        REUSE_STRATEGIES,
        "full",
        group=_SCHEDULING,
        help="how hard to look for suspended workers when a job grows again (default full)",
    )
    balancing: str = _choice(
        "--balancing",
        BALANCINGS,
        "local",
        group=_SCHEDULING,
        help="who computes the volumes: each rank all of them, or all ranks together (default local)",
    )
    matching: str = _choice(
        "--matching",
        MATCHINGS,
        "prefix-sum",
        group=_SCHEDULING,
        help="how requests for workers find idle ranks (default prefix-sum)",
    )
    job_cache: int = option(
        "--job-cache",
        values.count,
        4,
        metavar="C",
        group=_SCHEDULING,
        help="suspended workers that each PE keeps (default 4)",
    )
    log_dir: str | None = option(
        "--log-dir",
        values.path,
        None,
        metavar="DIR",
        group=_FILES,
        help="write each rank's events to DIR/<rank>.jsonl (see `mallob-py report`)",
    )
    tmp_dir: str | None = option(
        "--tmp-dir",
        values.path,
        None,
        metavar="DIR",
        group=_FILES,
        help="folder for temporary files (default: the system's)",
    )

    def validate(self) -> None:
        if self.ranks is None:
            return
        launched = _launched_ranks()
        if launched not in (None, self.ranks):
            raise OptionError(
                f"--ranks {self.ranks} contradicts the {launched} ranks that the launcher started"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class SolveOptions(_World):
    """Options of `mallob-py solve`."""

    files: tuple[str, ...] = positional_list(
        "FILE",
        values.path,
        group=_INPUT,
        default=dataclasses.MISSING,
        help="formula in DIMACS CNF; plain, .gz, .bz2, .xz or .lzma",
    )
    configuration: Mapping[str, Any] | None = option(
        "--configuration",
        values.json_object,
        None,
        metavar="JSON",
        group=_INPUT,
        help='for the solvers, as in a job file: {"solvers": ["cadical195"], "seed": 1, "sharing": false}',
    )
    output: str | None = option(
        "--output",
        values.path,
        None,
        metavar="FILE",
        group=_OUTPUT,
        help="write the answer (s and v lines) to FILE instead of standard output",
    )
    quiet: bool = switch_option("--quiet", group=_OUTPUT, help="leave out the comment lines")
    proof: str | None = option(
        "--proof",
        values.path,
        None,
        metavar="FILE",
        group=_OUTPUT,
        help="write a proof of the answer UNSATISFIABLE to FILE, for one formula (see `mallob-py "
        "check-proof`). Only CaDiCaL is used then. Several hosts must share FILE's folder",
    )
    proof_format: str = _choice(
        "--proof-format",
        PROOF_FORMATS,
        "lrat",
        group=_OUTPUT,
        help="form of the proof, both as text: with hints, or without (default lrat)",
    )
    core: str | None = option(
        "--core",
        values.path,
        None,
        metavar="FILE",
        group=_OUTPUT,
        help="with UNSATISFIABLE, write clauses that are to blame to FILE, in DIMACS; for one formula",
    )
    solutions: int | str | None = option(
        "--solutions",
        values.solution_count,
        None,
        metavar="K|all",
        group=_OUTPUT,
        help="find so many models, or all; each is printed as v lines",
    )
    projection: tuple[int, ...] | None = option(
        "--projection",
        values.variables,
        None,
        metavar="V,V,...",
        group=_OUTPUT,
        help="with --solutions: the variables to print, by which solutions differ (default: all)",
    )
    solutions_file: str | None = option(
        "--solutions-file",
        values.path,
        None,
        metavar="FILE",
        group=_OUTPUT,
        help="with --solutions: write each to FILE as it is found instead of printing all; for one formula",
    )

    def validate(self) -> None:
        super().validate()
        if self.portfolio is not None and {"portfolio", "solvers"} & (self.configuration or {}).keys():
            raise OptionError("--portfolio and --configuration both name solvers")
        if (self.configuration or {}).get("model", "literals") != "literals":
            raise OptionError("--configuration: model is for the service; solve prints literals")
        targets = {
            "--output": self.output,
            "--proof": self.proof,
            "--core": self.core,
            "--solutions-file": self.solutions_file,
        }
        given = {flag: target for flag, target in targets.items() if target is not None}
        for flag, target in given.items():
            if any(_same_file(target, file) for file in self.files):
                raise OptionError(f"{target} is an input and would be overwritten")
            if flag != "--output" and len(self.files) > 1:
                raise OptionError(f"{flag} is for one formula, but {len(self.files)} are given")
        if len(set(map(os.path.realpath, given.values()))) < len(given):
            raise OptionError(f"{' and '.join(given)} cannot be the same file")
        wishes = {"--proof": self.proof, "--core": self.core, "--solutions": self.solutions}
        wanted = [flag for flag, wish in wishes.items() if wish is not None]
        if len(wanted) > 1:
            raise OptionError(f"{wanted[0]} and {wanted[1]} are not possible together")
        if self.solutions is None and (self.projection is not None or self.solutions_file is not None):
            raise OptionError("--projection and --solutions-file go with --solutions, which is missing")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Api(_Config):
    """What every command that meets a service has in common."""

    api_dir: str = option(
        "--api-dir",
        values.path,
        ".api",
        metavar="DIR",
        group=_SERVICE,
        help="folder that the service takes jobs from and writes replies to (default .api)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ServeOptions(_Api, _World):
    """Options of `mallob-py serve`."""

    clients: int = option(
        "--clients",
        values.positive_count,
        1,
        metavar="K",
        group=_SERVICE,
        help="number of ranks that take in jobs, each from its own folder jobs.<i> (default 1)",
    )
    poll_directory: bool = switch_option(
        "--poll-directory",
        group=_SERVICE,
        help="look for job files regularly instead of being told by inotify (NFS, Lustre)",
    )
    chain_timeout_s: float = option(
        "--chain-timeout",
        values.duration_s,
        3600.0,
        metavar="T",
        group=_SERVICE,
        help="an incremental job ends if no further revision comes for so long (default 1h)",
    )
    restarts: int = option(
        "--restarts",
        values.count,
        5,
        metavar="N",
        group=_SERVICE,
        help="start crashed or hung ranks again, at most N times in 10 minutes (default 5; 0: never; "
        "not under mpiexec or srun)",
    )

    def validate(self) -> None:
        super().validate()
        if self.clients == 1:
            return
        ranks = self.ranks or _launched_ranks()
        if ranks is not None and self.clients > ranks:
            raise OptionError(f"--clients {self.clients} needs as many ranks, but there are {ranks}")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Client(_Api):
    client: int = option(
        "--client",
        values.count,
        0,
        metavar="I",
        group=_SERVICE,
        help="which of the service's clients to talk to, 0 to K-1 (default 0)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmitOptions(_Client):
    """Options of `mallob-py submit`. Limits are None where the job shall have none."""

    files: tuple[str, ...] = positional_list(
        "FILE",
        values.path,
        group=_JOB,
        default=(),
        help="the job's input, or one job file (.json) whose fields the options below replace",
    )
    name: str | None = option(
        "--name",
        values.word,
        None,
        metavar="NAME",
        group=_JOB,
        help="name of the job (default: the file's and a number)",
    )
    user: str | None = option(
        "--user", values.word, None, metavar="USER", group=_JOB, help="who submits (default: you)"
    )
    application: str | None = option(
        "--application", values.word, None, metavar="APP", group=_JOB, help="kind of job (default SAT)"
    )
    priority: float | None = option(
        "--priority", values.priority, None, metavar="P", group=_JOB, help="share of the cores (default 1.0)"
    )
    wallclock_limit_s: float | None = option(
        "--wallclock-limit",
        values.duration_limit_s,
        None,
        metavar="T",
        group=_JOB,
        help="time from its first execution on, such as 300s or 5m (default: no limit)",
    )
    cpu_limit_s: float | None = option(
        "--cpu-limit",
        values.duration_limit_s,
        None,
        metavar="T",
        group=_JOB,
        help="time summed over its workers (default: no limit)",
    )
    max_demand: int | None = option(
        "--max-demand",
        values.count,
        None,
        metavar="K",
        group=_JOB,
        help="largest number of workers (default: no limit)",
    )
    wait: bool = switch_option("--wait", group=_OUTPUT, help="wait for the reply and print it")

    def validate(self) -> None:
        super().validate()
        job_files = [file for file in self.files if file.endswith(".json")]
        if job_files and len(self.files) > 1:
            raise OptionError(f"{job_files[0]} is a job file and must be the only FILE")


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitOptions(_Client):
    """Options of `mallob-py wait`."""

    identities: tuple[str, ...] = positional_list(
        "USER.NAME", values.identity, group=_JOB, default=dataclasses.MISSING, help="jobs to wait for"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class InterruptOptions(_Client):
    """Options of `mallob-py interrupt`."""

    identity: str = positional("USER.NAME", values.identity, group=_JOB, help="the job to end")


@dataclass(frozen=True, kw_only=True, eq=False)
class StatusOptions(_Api):
    """Options of `mallob-py status`."""

    json: bool = switch_option("--json", group=_OUTPUT, help="print the status as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class TopOptions(_Api):
    """Options of `mallob-py top`."""

    once: bool = switch_option("--once", group=_OUTPUT, help="print it once and end")
    interval_s: float = option(
        "--interval",
        values.duration_s,
        1.0,
        metavar="T",
        group=_OUTPUT,
        help="time between two pictures, such as 500ms or 10s (default 1s)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class WebOptions(_Client):
    """Options of `mallob-py web`."""

    host: str = option(
        "--host",
        values.word,
        "127.0.0.1",
        metavar="ADDRESS",
        group=_WEB,
        help="address to listen at (default 127.0.0.1: this machine only)",
    )
    port: int = option(
        "--port", values.port, 8642, metavar="PORT", group=_WEB, help="port; 0 is any free one (default 8642)"
    )
    token_file: str | None = option(
        "--token-file",
        values.path,
        None,
        metavar="FILE",
        group=_WEB,
        help="file that holds the secret of who may come in, made at first start "
        "(default: web/token in the api folder)",
    )
    allow_paths: str | None = option(
        "--allow-paths",
        values.path,
        None,
        metavar="DIR",
        group=_WEB,
        help="jobs may name files below this folder of the host (default: only what they upload)",
    )
    upload_limit_bytes: int | None = option(
        "--upload-limit",
        values.size_limit_bytes,
        256 << 20,
        metavar="SIZE",
        group=_LIMITS,
        help="largest upload, as it is sent (default 256m)",
    )
    formula_limit_bytes: int | None = option(
        "--formula-limit",
        values.size_limit_bytes,
        4 << 30,
        metavar="SIZE",
        group=_LIMITS,
        help="largest upload, decompressed (default 4g)",
    )
    store_limit_bytes: int | None = option(
        "--store-limit",
        values.size_limit_bytes,
        16 << 30,
        metavar="SIZE",
        group=_LIMITS,
        help="all uploads of jobs that have not ended (default 16g)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportOptions(_Config):
    """Options of `mallob-py report`."""

    log_dir: str = positional("LOGDIR", values.path, group=_INPUT, help="the --log-dir of a run")
    json: bool = switch_option("--json", group=_OUTPUT, help="print the tables as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckProofOptions(_Config):
    """Options of `mallob-py check-proof`."""

    formula: str = positional(
        "FORMULA", values.path, group=_INPUT, help="formula in DIMACS CNF; plain, .gz, .bz2, .xz or .lzma"
    )
    proof: str = positional(
        "PROOF", values.path, group=_INPUT, help="proof in LRAT, text or binary; plain or compressed"
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Played(_Config):
    """What the commands that play in virtual time have in common."""

    pes: int | None = option(
        "--pes", values.simulated_pes, None, metavar="M", group=_INPUT, help="number of PEs"
    )
    seconds: float | None = option(
        "--seconds",
        values.duration_s,
        None,
        metavar="T",
        group=_INPUT,
        help="virtual time to play, such as 600, 10m or 1h",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulateOptions(_Played):
    """Options of `mallob-py simulate`. None: what the setting says."""

    setting: str | None = positional(
        "SETTING",
        values.path,
        group=_INPUT,
        default=None,
        help="TOML file with system, network, faults, jobs and protocol (default: P 5.3 on 1536 PEs)",
    )
    seed: int | None = option(
        "--seed", values.count, None, metavar="S", group=_INPUT, help="seed of all random choices"
    )
    stream: str | None = option(
        "--stream",
        values.path,
        None,
        metavar="FILE",
        group=_INPUT,
        help="CSV file with the jobs: client, name, arrival_s, priority, wallclock_limit_s, max_demand",
    )
    log_dir: str | None = option(
        "--log-dir",
        values.path,
        None,
        metavar="DIR",
        group=_FILES,
        help="write all events to DIR/simulated.jsonl (see `mallob-py report`)",
    )
    json: bool = switch_option("--json", group=_OUTPUT, help="print the measures as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentOptions(_Played):
    """Options of `mallob-py experiment`. None: the experiment's own."""

    name: str = positional(
        "EXPERIMENT",
        _one_of(*EXPERIMENTS),
        group=_INPUT,
        help=", ".join(EXPERIMENTS),
    )
    setting: str | None = option(
        "--setting",
        values.path,
        None,
        metavar="FILE",
        group=_INPUT,
        help="TOML file as for `mallob-py simulate`; its pes and seconds are not used",
    )
    stream: str | None = option(
        "--stream",
        values.path,
        None,
        metavar="FILE",
        group=_INPUT,
        help="for `realistic`: CSV file with the jobs, as for `mallob-py simulate`",
    )
    jobs: int | None = option(
        "--jobs",
        values.positive_count,
        None,
        metavar="K",
        group=_WORLD,
        help="runs at a time (default: one per core)",
    )
    output: str = option(
        "--output",
        values.path,
        "experiments",
        metavar="DIR",
        group=_OUTPUT,
        help="folder for tables and figures (default experiments)",
    )


#: Every command: its summary and its options. `mallob_py.cli.<command>` has its `run(options) -> int`.
COMMANDS: dict[str, tuple[str, type[CommandOptions]]] = {
    "solve": ("Solve formulas with all ranks and print the answers.", SolveOptions),
    "serve": ("Run the service that takes in jobs and shares the ranks among them.", ServeOptions),
    "submit": ("Hand a job to the service.", SubmitOptions),
    "interrupt": ("End a job of the service.", InterruptOptions),
    "status": ("Show the service's jobs and how busy its ranks are.", StatusOptions),
    "wait": ("Wait for jobs of the service and print their replies.", WaitOptions),
    "top": ("Watch the service's jobs and volumes, live.", TopOptions),
    "web": ("Offer the service over HTTP, with a page to see and steer it.", WebOptions),
    "check-proof": ("Check a proof that a formula is unsatisfiable.", CheckProofOptions),
    "simulate": ("Play many PEs on a stream of jobs in virtual time.", SimulateOptions),
    "experiment": ("Repeat an experiment of the paper in virtual time.", ExperimentOptions),
    "report": ("Make tables from the logs of a run, real or simulated.", ReportOptions),
}


def parse(
    command: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOptions:
    """The options of `command` from all sources. Raises `OptionError`; `--help` exits."""
    return parse_options(command, COMMANDS, arguments, os.environ if environment is None else environment)


def _same_file(one: str, other: str) -> bool:
    if os.path.realpath(one) != os.path.realpath(other):
        return False
    # Devices such as /dev/null or /dev/stdout may be read and written at once.
    return not os.path.exists(one) or os.path.isfile(one)
