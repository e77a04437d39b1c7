"""Options of the commands that run ranks, and the ranks' settings made from these options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.applications import OURS, application_of, declaration_of, our_declarations
from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    OptionError,
    job_options,
    list_option,
    option,
    positional,
    positional_list,
    switch_option,
)
from mallob_py.cli.shared_options import (
    FILES,
    INPUT,
    JOB,
    LIMITS,
    OUTPUT,
    SCHEDULING,
    SERVICE,
    WORLD,
    Api,
    Config,
    Wishes,
    choice,
)
from mallob_py.runtime.memory import Reserve

if TYPE_CHECKING:
    from mallob_py.kit.declaration import JobOption
    from mallob_py.runtime.boot import WorldSettings
    from mallob_py.runtime.world.mpi import RankLoss
    from mallob_py.service.telemetry.event_log import EventLog

_RESERVE = Reserve(share=0.05)
RANK_LOSSES = ("auto", "survive", "restart")
#: file names for standard input
STANDARD_INPUT = ("-", "/dev/stdin")


def _launched_ranks() -> int | None:
    """Return the number of ranks started by mpiexec, srun and the like; None without a launcher."""
    from mallob_py.runtime.world.mpi import declared_world_size  # imported late, so that --help is quick

    declared = declared_world_size(os.environ)
    return declared if declared > 1 else None


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _World(Config):
    """The options of all commands that run ranks."""

    ranks: int | None = option(
        "-n --ranks RANKS",
        values.positive_count,
        None,
        WORLD,
        "number of ranks to start (default: one per core; under mpiexec or srun: as many as they started)",
    )
    many_ranks: bool = switch_option(
        "--many-ranks", WORLD, "start all ranks, even if memory or process limits do not suffice"
    )
    solvers: int = option(
        "--threads --solvers T",
        values.positive_count,
        1,
        WORLD,
        "solver processes per worker, for ranks with several cores (default 1)",
    )
    pes: int | None = option(
        "--pes K|auto",
        values.capacity,
        1,
        WORLD,
        "number of workers that this rank runs at a time (default 1); auto: its cores divided by "
        "--threads. Ranks with more PEs get more work",
    )
    warm: int = option("--warm K", values.count, 1, WORLD, "worker processes kept ready per PE (default 1)")
    memory_limit_bytes: int | None = option(
        "--memory-limit SIZE",
        values.size_limit_bytes,
        None,
        LIMITS,
        "greatest memory of one solver process, such as 2g (default: no limit)",
    )
    input_max_bytes: int | None = option(
        "--input-max SIZE",
        values.size_limit_bytes,
        None,
        LIMITS,
        "refuse a job with a larger input file, decompressed, such as 2g; reading a formula "
        "takes about six times its size in memory (default: no limit)",
    )
    memory_reserve: Reserve | None = option(
        "--memory-reserve SIZE|PERCENT",
        values.memory_reserve,
        _RESERVE,
        LIMITS,
        "memory to keep free on the host or in this process's control group: below it, suspended "
        "workers are given up, then running ones paused (default 5%%; 0: never)",
    )
    time_limit_s: float | None = option(
        "--time-limit T",
        values.duration_limit_s,
        None,
        LIMITS,
        "end after this time, such as 90s, 5m or 2h; in solve with several files, each file may have a PE "
        "for this time (default: no limit)",
    )
    rank_timeout_s: float | None = option(
        "--rank-timeout T",
        values.silence_limit_s,
        30.0,
        LIMITS,
        "end all ranks if a rank is silent for this long, and name it (default 30s; 0: never)",
    )
    rank_loss: str = choice(
        "--rank-loss",
        RANK_LOSSES,
        "auto",
        LIMITS,
        "what the other ranks do when a rank dies: survive: they go on with its work, if the "
        "launcher lets them; restart: all end, and `serve` starts them again; auto (default): survive if "
        "mallob-py itself, MPICH's launcher, or Open MPI's with ULFM has started the ranks",
    )
    job_cache: int = option(
        "--job-cache C", values.count, 4, SCHEDULING, "suspended workers that each PE keeps (default 4)"
    )
    slice_s: float = option(
        "--slice T",
        values.slice_s,
        0.5,
        SCHEDULING,
        "length of a job's turn if there are more jobs than PEs (default 500ms); its first turns are "
        "shorter; 0: jobs beyond the number of PEs wait until others end",
    )
    residents: int | None = option(
        "--residents K",
        values.count,
        None,
        SCHEDULING,
        "number of jobs that each PE keeps suspended until their next turn, besides new jobs (default: 16; "
        "with fewer than 6 PEs: 96 on all PEs together)",
    )
    log_dir: str | None = option(
        "--log-dir DIR",
        values.path,
        None,
        FILES,
        "write each rank's events to DIR/<start of the run>/<rank>.jsonl (see `mallob-py report`)",
    )
    log_size_bytes: int | None = option(
        "--log-size SIZE",
        values.log_size_limit_bytes,
        100 << 20,
        FILES,
        "greatest size of all logs of a rank in DIR, over all runs; the oldest are removed first "
        "(default 100m; 0: no limit)",
    )
    stimuli_dir: str | None = option(
        "--log-stimuli DIR",
        values.path,
        None,
        FILES,
        "for debugging: write each rank's stimuli and effects to "
        "DIR/<start of the run>/<rank>.stimuli.jsonl, and those of each client's desk to "
        "<rank>.<client>.desk.jsonl (see `mallob-py simulate --replay`); large",
    )
    tmp_dir: str | None = option(
        "--tmp-dir DIR",
        values.path,
        None,
        FILES,
        "folder of the file that names the api-dir to Mallob's clients (default: the system's)",
    )

    def validate(self) -> None:
        super().validate()
        if self.ranks is None:
            return
        launched = _launched_ranks()
        if launched not in (None, self.ranks):
            raise OptionError(
                f"--ranks {self.ranks} contradicts the {launched} ranks that the launcher started"
            )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _OneShot(_World):
    """The options of the commands that end with their jobs."""

    orders: str | None = option(
        "--orders DIR",
        values.path,
        None,
        WORLD,
        "take orders of `mallob-py resize` and `drain` with the same --orders (default: take none)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SolveOptions(Wishes, _OneShot):
    """Options of `mallob-py solve`."""

    files: tuple[str, ...] = positional_list(
        "FILE",
        values.path,
        INPUT,
        "formula in DIMACS CNF, weighted formula (.wcnf), or script in SMT-LIB 2 (.smt2); plain, .gz, "
        ".bz2, .xz or .lzma; - is standard input",
    )
    application: str | None = option(
        "--application NAME",
        values.word,
        None,
        INPUT,
        "application for the files: SAT, MAXSAT or SMT (default: by their suffixes, else SAT)",
    )
    output: str | None = option(
        "--output FILE",
        values.path,
        None,
        OUTPUT,
        "write the answer (s and v lines) to FILE instead of standard output",
    )
    table: str | None = option(
        "--table FILE",
        values.path,
        None,
        OUTPUT,
        "write a line for each formula to FILE, as CSV: file, answer, times, workers",
    )
    quiet: bool = switch_option("--quiet", OUTPUT, "leave out the comment lines")

    def validate(self) -> None:
        super().validate()
        if self.application is not None and not (
            self.application in OURS and declaration_of(self.application).text_format
        ):
            raise OptionError(f"--application {self.application} has no answers as text; use `mallob-py run`")
        self._check_wishes_fit()
        if sum(file in STANDARD_INPUT for file in self.files) > 1:
            raise OptionError("standard input is one formula, but is named more than once")
        if (self.configuration or {}).get("model", "literals") != "literals":
            raise OptionError("--configuration: model is for a service only; solve prints literals")
        given = {f"--{key}": target for key, target in self.results.items()}
        for_all = {"--output": self.output, "--table": self.table}
        given = {flag: target for flag, target in for_all.items() if target is not None} | given
        for flag, target in given.items():
            if any(_same_file(target, file) for file in self.files):
                raise OptionError(f"{target} is an input and would be overwritten")
            if flag not in for_all and len(self.files) > 1:
                raise OptionError(f"{flag} is for one formula, but {len(self.files)} are given")
        if len(set(map(os.path.realpath, given.values()))) < len(given):
            raise OptionError(f"{' and '.join(given)} cannot be the same file")
        wanted = [f"--{key}" for key in ("proof", "core", "solutions") if key in self.wishes]
        if len(wanted) > 1:
            raise OptionError(f"{wanted[0]} and {wanted[1]} cannot be combined; give one of them")

    def application_of(self, file: str) -> str:
        """Return the application for one of the files."""
        return self.application or application_of(file)

    def _check_wishes_fit(self) -> None:
        for file in self.files:
            application = self.application_of(file)
            known = [one.key for one in declaration_of(application).options]
            for key in self.wishes:
                if key not in known:
                    raise OptionError(f"--{key} is not an option of {application}, which works on {file}")


@dataclass(frozen=True, kw_only=True, eq=False)
class _AnyApplication(_World):
    """The options of all commands that run ranks for jobs of any application."""

    log_loans: str | None = option(
        "--log-loans DIR",
        values.path,
        None,
        FILES,
        "folder where workers of bags log their loans of tasks, for scripts/loans.py",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOptions(_AnyApplication, _OneShot):
    """Options of `mallob-py run`."""

    application: str = positional("APPLICATION", values.word, INPUT, "kind of job, such as NOOP")
    files: tuple[str, ...] = positional_list(
        "FILE", values.path, INPUT, "input of the job, for applications that take any", default=()
    )
    settings: tuple[tuple[str, Any], ...] = list_option(
        "--set KEY=VALUE",
        values.assignment,
        (),
        INPUT,
        "set a key of the job's configuration; VALUE is JSON or text. May be repeated",
    )
    configuration: Mapping[str, Any] | None = option(
        "--configuration JSON",
        values.json_object,
        None,
        INPUT,
        "the job's configuration, which --set extends",
    )
    quiet: bool = switch_option("--quiet", OUTPUT, "show no progress on the terminal")
    json: bool = switch_option(
        "--json", OUTPUT, "print the whole reply as JSON, also if standard output is a terminal"
    )
    check_laws: bool = switch_option(
        "--check-laws", OUTPUT, "do not run the job, but test, on parts of it, the laws on which workers rely"
    )

    @property
    def whole_configuration(self) -> dict[str, Any]:
        """The configuration of the job."""
        return dict(self.configuration or {}) | dict(self.settings)


def _service_options() -> tuple[JobOption, ...]:
    return tuple(one.service_option for one in our_declarations() if one.service_option is not None)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServeOptions(Api, _AnyApplication):
    """Options of `mallob-py serve`."""

    defaults: Mapping[str, Any] = job_options(_service_options, group=JOB)
    clients: int = option(
        "--clients K",
        values.positive_count,
        1,
        SERVICE,
        "number of ranks that take in jobs, each from its own folder jobs.<i> (default 1)",
    )
    poll_directory: bool = switch_option(
        "--poll-directory",
        SERVICE,
        "look for job files regularly instead of being told by inotify (NFS, Lustre)",
    )
    wait: bool = switch_option(
        "--wait",
        SERVICE,
        "if another service uses the api folder, wait until it ends, then go on with its jobs",
    )
    durable: bool = switch_option(
        "--durable",
        SERVICE,
        "let accepted jobs and replies survive a loss of power; costs small jobs some milliseconds",
    )
    max_job_file_bytes: int = option(
        "--max-job-file SIZE",
        values.size_bytes,
        8 << 20,
        SERVICE,
        "refuse larger job files (default 8m); put large inputs into files of their own",
    )
    results_dir: str | None = option(
        "--results-dir DIR",
        values.path,
        None,
        SERVICE,
        "let jobs write proofs, cores and solutions to new files below DIR and nowhere else "
        "(default: jobs.<i>/results in the api folder)",
    )
    allow_code: bool = switch_option(
        "--allow-code",
        SERVICE,
        "let jobs of other users and jobs over HTTP bring code that runs with the service's rights (CALLS: "
        "Python functions); default: only jobs of the service's own user may",
    )
    on_end: str | None = option(
        "--on-end COMMAND",
        values.word,
        None,
        SERVICE,
        "command line for the shell, run for each job that ends, with the job's history line (JSON) on "
        "standard input, and MALLOB_PY_JOB and MALLOB_PY_OUTCOME in its environment",
    )
    preload: tuple[str, ...] = list_option(
        "--preload APPLICATION",
        values.words,
        (),
        SERVICE,
        "import these applications, such as UTS, at the start, so that their first jobs begin at once "
        "(default: at the first job, on each rank)",
        goes_on=lambda word: not word.startswith("-"),
    )
    chain_timeout_s: float = option(
        "--chain-timeout T",
        values.duration_s,
        3600.0,
        SERVICE,
        "end an incremental job if no revision comes for this long (default 1h)",
    )
    keep_s: float | None = option(
        "--keep T",
        values.keep_s,
        None,
        SERVICE,
        "remove replies (read or not), result files, output, history and logs of jobs that ended more than T "
        "ago, such as 30d (default: keep all)",
    )
    users: str | None = option(
        "--users FILE",
        values.path,
        None,
        SERVICE,
        "TOML file with weights and limits of users (docs/operating.md); default: equal "
        "weights and no limits",
    )
    restarts: int = option(
        "--restarts N",
        values.count,
        5,
        SERVICE,
        "start crashed or hung ranks again, at most N times in 10 minutes (default 5; 0: never; "
        "not under mpiexec or srun)",
    )

    def validate(self) -> None:
        super().validate()
        if self.clients == 1:
            return
        ranks = self.ranks or _launched_ranks()
        if ranks is not None and self.clients > ranks:
            raise OptionError(f"--clients {self.clients} needs as many ranks, but there are {ranks}")


def _same_file(one: str, other: str) -> bool:
    if os.path.realpath(one) != os.path.realpath(other):
        return False
    # Devices such as /dev/null or /dev/stdout may be both input and output.
    return not os.path.exists(one) or os.path.isfile(one)


# --- code for ranks, which import more --------------------------------------------------


def settings_of(
    options: ServeOptions | SolveOptions | RunOptions,
    rank_loss: RankLoss,
    *,
    clients: int = 1,
    preload: tuple[str, ...] = (),
    time_limit_s: float | None = None,
    output_dir: str | None = None,
) -> WorldSettings:
    """Return the settings that every rank of a world gets."""
    from mallob_py.protocol import config
    from mallob_py.runtime.boot import WorldSettings

    return WorldSettings(
        config=config.Config(
            job_cache=options.job_cache,
            slice_s=options.slice_s,
            first_slice_s=min(options.slice_s, config.Config().first_slice_s),
            residents=options.residents,
            threads=options.solvers,
        ),
        pes=options.pes,
        clients=clients,
        warm=options.warm,
        memory_limit_bytes=options.memory_limit_bytes,
        input_max_bytes=options.input_max_bytes,
        memory_reserve=options.memory_reserve,
        time_limit_s=time_limit_s,
        rank_timeout_s=options.rank_timeout_s,
        rank_loss=rank_loss,
        preload=preload,
        stimuli_dir=options.stimuli_dir,
        output_dir=output_dir,
    )


def event_log_of(
    options: ServeOptions | SolveOptions | RunOptions, keep_s: float | None = None
) -> Callable[[int, int, float], EventLog]:
    """Return a function (rank, first PE, the system's start) -> event log, whose times count from the start.

    `keep_s`: how long parts of logs are kept; None: for ever.
    """
    from mallob_py.service.telemetry.event_log import EventLog, LogFiles, run_name

    def open_log(rank: int, first_pe: int, start_unix_s: float) -> EventLog:
        if options.log_dir is None:
            return EventLog(None, first_pe, 0.0)
        run = Path(options.log_dir) / run_name(start_unix_s)
        return EventLog(LogFiles(run, rank, options.log_size_bytes, keep_s), first_pe, 0.0)

    return open_log
