"""Options of the commands that talk to a running service."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

from mallob_py.applications import DEFAULT_APPLICATION, our_declarations
from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    CommandOptions,
    OptionError,
    OptionSpec,
    declare,
    list_option,
    option,
    positional,
    positional_list,
    switch_option,
)
from mallob_py.cli.shared_options import JOB, LIMITS, OUTPUT, SERVICE, WEB, WORLD, Api, Wishes, choice
from mallob_py.kit.declaration import truth
from mallob_py.protocol.job_terms import TERMS, DeclaredTerm
from mallob_py.service.jobs.durations import format_duration

#: columns of live jobs by which `--sort` orders them (see status.py)
JOB_ORDERS = ("id", "user", "name", "application", "priority", "volume", "demand", "age", "state")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Client(Api):
    client: int = option(
        "--client I",
        values.count,
        0,
        SERVICE,
        "which of the clients of `serve --clients K` to talk to, 0 to K-1 (default 0)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _ClientOfGroup(_Client):
    user: str | None = option("--user USER", values.word, None, JOB, "user of the group (default: you)")


def _group(help_text: str) -> Any:
    return option("--group GROUP", values.group_name, None, JOB, help_text)


def _check_one_kind(jobs: tuple[str, ...], group: str | None) -> None:
    if not jobs and group is None:
        raise OptionError("no job is named: say USER.NAME, or --group for all jobs of a group")
    if jobs and group is not None:
        raise OptionError("both jobs and --group are given; say one of them")


JSON = "json"
#: values of `--output-format`: JSON, and the text formats that applications declare
_OUTPUT_FORMATS = (JSON, *(one.text_format for one in our_declarations() if one.text_format))


TABLE = "table"


def _term_option(term: DeclaredTerm) -> tuple[str, type, Any]:
    """Return the option for a job's term, as a field for `make_dataclass`."""
    kinds: dict[type, tuple[str, Callable[[str], Any]]]
    kinds = {float: ("P", values.priority), int: ("K", values.count)}
    metavar, parse = ("T", values.duration_limit_s) if term.is_duration else kinds[term.type]
    hint = "; such as 300s or 5m" if term.is_duration else f" (default {term.default:g})" * bool(term.default)
    flag = f"--{term.file_name} {metavar}"
    return term.name, object, option(flag, parse, None, JOB, term.meaning + hint)


if TYPE_CHECKING:

    class _Terms(CommandOptions): ...

else:
    _Terms = make_dataclass(
        "_Terms", map(_term_option, TERMS), bases=(CommandOptions,), frozen=True, kw_only=True, eq=False
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmitOptions(_Terms, Wishes, _Client):
    """Options of `mallob-py submit`, with an option for each of a job's terms (`protocol/job_terms.py`)."""

    files: tuple[str, ...] = positional_list(
        "FILE",
        values.path,
        JOB,
        "a formula or other input for a new job, or a job file (.json), whose fields the "
        "options below override; paths in a job file may be relative to its folder",
        default=(),
    )
    name: str | None = option(
        "--name NAME", values.word, None, JOB, "name of the job (default: the file's name and a number)"
    )
    user: str | None = option("--user USER", values.word, None, JOB, "user of the job (default: you)")
    application: str | None = option(
        "--application APP",
        values.word,
        None,
        JOB,
        f"kind of job (default: by the suffix of the file's name, else {DEFAULT_APPLICATION})",
    )
    settings: tuple[tuple[str, tuple[Any, ...]], ...] = list_option(
        "--set KEY=VALUE",
        values.sweep,
        (),
        JOB,
        "set a key of the job's configuration; VALUE is JSON or text. May be repeated. KEY=1..100 and"
        " KEY=8,9,10 are sweeps: a job for each value, or for each combination of several sweeps",
    )
    after: tuple[str, ...] = list_option(
        "--after USER.NAME",
        lambda text: (values.identity(text),),
        (),
        JOB,
        "begin after the end of this job, successful or not. May be repeated",
    )
    after_ok: tuple[str, ...] = list_option(
        "--after-ok USER.NAME",
        lambda text: (values.identity(text),),
        (),
        JOB,
        "begin after this job has ended with a result; if it ends otherwise, never begin. May be repeated",
    )
    group: str | None = option(
        "--group NAME",
        values.group_name,
        None,
        JOB,
        "name of the jobs' group, for results, wait and interrupt (default: for several jobs, a new name is"
        " made and printed)",
    )
    failed_of: str | None = option(
        "--failed-of GROUP",
        values.group_name,
        None,
        JOB,
        "hand in the failed jobs of this group again; the other options given replace the jobs' fields",
    )
    unsolved_of: str | None = option(
        "--unsolved-of GROUP",
        values.group_name,
        None,
        JOB,
        "hand in again all jobs of this group without a result: failed, interrupted, or ended by a limit",
    )
    wait: bool = switch_option(
        "--wait",
        OUTPUT,
        "wait for the replies and print them; implied by options that name a FILE for results",
    )
    wanted_format: str | None = choice(
        "--output-format",
        (*_OUTPUT_FORMATS, TABLE),
        None,
        OUTPUT,
        "print JSON, s and v lines, or a table of all answers; sat and table imply --wait"
        " (default json, for sweeps table)",
    )

    @property
    def terms(self) -> dict[str, Any]:
        """The given terms of the job, as in a job file."""
        given = {each: getattr(self, each.name) for each in TERMS}
        return {
            each.file_name: format_duration(value) if each.is_duration else value
            for each, value in given.items()
            if value is not None
        }

    @property
    def output_format(self) -> str:
        return self.wanted_format or (TABLE if self.is_sweep else JSON)

    @property
    def waits(self) -> bool:
        return self.wait or self.wanted_format not in (None, JSON) or bool(self.results)

    @property
    def is_sweep(self) -> bool:
        return any(len(taken) > 1 for _, taken in self.settings)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the settings of each job of an input file; the last key's value changes fastest."""
        keys = [key for key, _ in self.settings]
        for combination in itertools.product(*(taken for _, taken in self.settings)):
            yield dict(zip(keys, combination, strict=True))

    @property
    def again_of(self) -> str | None:
        """The group whose failed or unsolved jobs are submitted again, or None."""
        return self.failed_of or self.unsolved_of

    def validate(self) -> None:
        super().validate()
        if self.again_of is not None:
            flag = "--failed-of" if self.failed_of else "--unsolved-of"
            if self.failed_of and self.unsolved_of:
                raise OptionError("--unsolved-of includes the jobs of --failed-of; give one of them")
            if self.files or self.name or self.is_sweep or self.results:
                raise OptionError(
                    f"{flag} hands in jobs as they were; leave out FILE, --name, sweeps and result files"
                )
            return
        if not self.files and self.application in (None, DEFAULT_APPLICATION):
            raise OptionError("no FILE is given: name the formula or a job file")
        if self.name is not None and len(self.files) > 1:
            raise OptionError(f"--name is for one job, but {len(self.files)} FILEs are given")
        count = max(len(self.files), 1) * math.prod(len(taken) for _, taken in self.settings)
        if count > values.SWEEP_MAX:
            raise OptionError(f"--set makes {count} jobs; at most {values.SWEEP_MAX} are possible")
        if self.results and self.is_sweep:
            raise OptionError(f"--{next(iter(self.results))} is for one job, but --set makes {count}")
        for key, target in self.results.items():
            if len(self.files) != 1 or self.files[0].endswith(".json"):
                raise OptionError(f"--{key} is for one formula")
            if os.path.realpath(target) == os.path.realpath(self.files[0]):
                raise OptionError(f"{target} is an input and would be overwritten")


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitOptions(_ClientOfGroup):
    """Options of `mallob-py wait`."""

    identities: tuple[str, ...] = positional_list(
        "USER.NAME", values.identity, JOB, "jobs to wait for; NAME alone is a job of yours", default=()
    )
    group: str | None = _group("wait for all jobs of this group, and print the table of its results")
    output_format: str = choice(
        "--output-format", _OUTPUT_FORMATS, JSON, OUTPUT, "print JSON, or s and v lines (default json)"
    )

    def validate(self) -> None:
        super().validate()
        _check_one_kind(self.identities, self.group)
        if self.group is not None and self.output_format != JSON:
            raise OptionError("--group prints a table; leave --output-format out")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExplainOptions(_Client):
    """Options of `mallob-py explain`."""

    job: str = positional(
        "USER.NAME",
        values.identity_or_id,
        JOB,
        "the job, by name or by its id in `status`; NAME alone is a job of yours",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LogsOptions(ExplainOptions):
    """Options of `mallob-py logs`."""

    follow: bool = switch_option("--follow", OUTPUT, "print further output until the job has ended")


@dataclass(frozen=True, kw_only=True, eq=False)
class InterruptOptions(_ClientOfGroup):
    """Options of `mallob-py interrupt`."""

    jobs: tuple[str, ...] = positional_list(
        "USER.NAME|ID",
        values.identity_or_id,
        JOB,
        "jobs to end, by their names or ids in `mallob-py status`; NAME alone is a job of yours",
        default=(),
    )
    group: str | None = _group("end all jobs of this group")

    def validate(self) -> None:
        super().validate()
        _check_one_kind(self.jobs, self.group)


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Orders(Api):
    """The options of the commands that change the number of ranks."""

    orders: str | None = option(
        "--orders DIR",
        values.path,
        None,
        SERVICE,
        "change a `mallob-py solve` or `run` with the same --orders DIR, instead of a service",
    )

    @property
    def folder(self) -> str:
        """The folder that contains the folder of orders."""
        return self.api_dir if self.orders is None else self.orders


@dataclass(frozen=True, kw_only=True, eq=False)
class ResizeOptions(_Orders):
    """Options of `mallob-py resize`."""

    change: str = positional("CHANGE", values.change, WORLD, "change by +N or -N ranks, or to =N in all")
    hosts: tuple[tuple[str, int | None], ...] = option(
        "--hosts HOST[:N],...",
        values.host_shares,
        (),
        WORLD,
        "hosts for new ranks, used in turn, at most N ranks each (default: the first client's host)",
    )
    remote_shell: tuple[str, ...] | None = option(
        "--remote-shell CMD",
        values.remote_command,
        None,
        WORLD,
        "how other hosts are reached: CMD HOST WHAT-TO-RUN... (default: ssh, without a password;"
        " inside an allocation of Slurm, srun)",
    )

    def validate(self) -> None:
        super().validate()
        if self.hosts and self.change.startswith("-"):
            raise OptionError("--hosts is for new ranks only; the service chooses the ranks that leave")
        if self.remote_shell is not None and not self.hosts:
            raise OptionError("--remote-shell reaches the hosts of --hosts; give --hosts as well")


@dataclass(frozen=True, kw_only=True, eq=False)
class DrainOptions(_Orders):
    """Options of `mallob-py drain`."""

    place: str = positional(
        "RANK|HOST", values.word, WORLD, "the number of a rank, or the name of a host: all its ranks"
    )
    grace_s: float = option(
        "--grace T",
        values.duration_or_none_s,
        60.0,
        WORLD,
        "time that workers of these ranks may go on; 0 stops them at once (default 1m)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _OfUser(Api):
    """The options of the commands that list jobs, live or ended."""

    user: str | None = option("--user USER", values.word, None, OUTPUT, "only jobs of this user")
    group: str | None = option("--group GROUP", values.group_name, None, OUTPUT, "only jobs of this group")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Jobs(_OfUser):
    """The options of the commands that list live jobs."""

    sort: str = choice("--sort", JOB_ORDERS, "volume", OUTPUT, "order of the jobs (default volume)")


@dataclass(frozen=True, kw_only=True, eq=False)
class StatusOptions(_Jobs):
    """Options of `mallob-py status`."""

    hosts: bool = switch_option("--hosts", OUTPUT, "list the hosts, with their problems")
    ended: bool = switch_option("--ended", OUTPUT, "list the last ended jobs")
    measures: bool = switch_option("--measures", OUTPUT, "print all measures of the service")
    json: bool = switch_option("--json", OUTPUT, "print the whole status as JSON")

    def validate(self) -> None:
        super().validate()
        lists = {"--hosts": self.hosts, "--ended": self.ended, "--measures": self.measures}
        if len(asked := [flag for flag, is_asked in lists.items() if is_asked]) > 1:
            raise OptionError(f"{asked[0]} and {asked[1]} cannot be combined; give one of them")


@dataclass(frozen=True, kw_only=True, eq=False)
class HistoryOptions(_OfUser):
    """Options of `mallob-py history`."""

    state: str | None = option(
        "--state STATE",
        values.word,
        None,
        OUTPUT,
        "only jobs with this outcome: result, failed, refused, interrupted, time-limit, wallclock-limit or"
        " cpu-limit; or with this result, such as SAT",
    )
    since_s: float | None = option(
        "--since T",
        values.duration_limit_s,
        None,
        OUTPUT,
        "only jobs that ended in the last T, such as 2h (default: all jobs kept)",
    )
    limit: int = option("--limit N", values.count, 50, OUTPUT, "the last N jobs; 0 for all (default 50)")
    follow: bool = switch_option(
        "--follow", OUTPUT, "also print a line for each job that ends from now on, until Ctrl-C"
    )
    by_user: bool = switch_option("--by-user", OUTPUT, "print what each user's jobs have cost")
    json: bool = switch_option("--json", OUTPUT, "print a line of JSON for each job, or user")

    def validate(self) -> None:
        super().validate()
        if self.follow and self.by_user:
            raise OptionError("--follow and --by-user cannot be combined; give one of them")


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupsOptions(Api):
    """Options of `mallob-py groups`."""

    user: str | None = option("--user USER", values.word, None, OUTPUT, "only groups of this user")
    limit: int = option("--limit N", values.count, 20, OUTPUT, "the last N groups; 0 for all (default 20)")
    json: bool = switch_option("--json", OUTPUT, "print a line of JSON for each group")


@dataclass(frozen=True, kw_only=True, eq=False)
class ResultsOptions(Api):
    """Options of `mallob-py results`."""

    groups: tuple[str, ...] = positional_list(
        "GROUP", values.group_name, JOB, "groups of jobs (default: your last one)", default=()
    )
    user: str | None = option("--user USER", values.word, None, JOB, "user of the groups (default: you)")
    cutoff_s: float | None = option(
        "--cutoff T",
        values.duration_limit_s,
        None,
        OUTPUT,
        "count a job with a later result as unsolved, and in PAR-2 an unsolved job as 2 T"
        " (default: the time limit that ended jobs of the group)",
    )
    csv: bool = switch_option("--csv", OUTPUT, "print the results as CSV")
    json: bool = switch_option("--json", OUTPUT, "print a line of JSON for each result")
    plot: str | None = option(
        "--plot FILE",
        values.path,
        None,
        OUTPUT,
        "draw a cactus plot of the groups into FILE, such as cactus.svg (needs the extra `plot`)",
    )

    def validate(self) -> None:
        super().validate()
        if self.csv and self.json:
            raise OptionError("--csv and --json are two forms; ask for one of them")


@dataclass(frozen=True, kw_only=True, eq=False)
class TopOptions(_Jobs):
    """Options of `mallob-py top`."""

    once: bool = switch_option("--once", OUTPUT, "print the status once and end")
    interval_s: float = option(
        "--interval T",
        values.duration_s,
        1.0,
        OUTPUT,
        "time between two updates, such as 500ms or 10s (default 1s)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenOptions(Api):
    """Options of `mallob-py token`."""

    user: str = positional("USER", values.word, WEB, "user whose jobs the token is for")
    remove: bool = switch_option("--remove", WEB, "make the user's token invalid")

    def validate(self) -> None:
        super().validate()
        if "." in self.user:
            raise OptionError(f"USER: {self.user!r} has a dot, so USER.NAME would be ambiguous")


@dataclass(frozen=True, kw_only=True, eq=False)
class WebOptions(_Client):
    """Options of `mallob-py web`."""

    host: str = option(
        "--host ADDRESS",
        values.word,
        "127.0.0.1",
        WEB,
        "address to listen at (default 127.0.0.1: this machine only)",
    )
    port: int = option("--port PORT", values.port, 8642, WEB, "port; 0 is any free one (default 8642)")
    token_file: str | None = option(
        "--token-file FILE",
        values.path,
        None,
        WEB,
        "file with the secret that admits users, made at first start (default: web/token in the api folder)",
    )
    allow_paths: str | None = option(
        "--allow-paths DIR",
        values.path,
        None,
        WEB,
        "let jobs name files below this folder of the host (default: only uploaded files)",
    )
    batch_dir: str | None = option(
        "--batch-dir DIR",
        values.path,
        None,
        WEB,
        "also show the batch scheduler of this folder (see `mallob-py batch serve`)",
    )
    upload_limit_bytes: int | None = option(
        "--upload-limit SIZE",
        values.size_limit_bytes,
        256 << 20,
        LIMITS,
        "largest upload as sent (default 256m)",
    )
    input_limit_bytes: int | None = option(
        "--formula-limit --input-limit SIZE",
        values.size_limit_bytes,
        4 << 30,
        LIMITS,
        "largest upload, decompressed (default 4g)",
    )
    store_limit_bytes: int | None = option(
        "--store-limit SIZE",
        values.size_limit_bytes,
        16 << 30,
        LIMITS,
        "greatest total size of the uploads of jobs that have not ended (default 16g)",
    )


def _switch_named(name: str, flag: str, help: str) -> Any:
    """Declare a switch under a name of its own, since other commands have another option with this flag."""
    return declare(OptionSpec(name, (flag,), truth, "", SERVICE, help, is_switch=True), False)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceInstallOptions(Api):
    """Options of `mallob-py service install`."""

    for_user: bool = _switch_named("unit-of-user", "--user", "write a unit of your user: systemctl --user")
    for_system: bool = switch_option("--system", SERVICE, "write a unit of the system; needs --account")
    account: str | None = option(
        "--account NAME", values.word, None, SERVICE, "user as whom a unit of the system runs"
    )
    is_web: bool = switch_option("--web", SERVICE, "write a unit for `mallob-py web` instead of `serve`")
    unit_name: str | None = option(
        "--unit NAME", values.word, None, SERVICE, "name of the unit (default mallob-py, or mallob-py-web)"
    )
    print_only: bool = switch_option("--print", OUTPUT, "print the unit, and write nothing")

    @property
    def name(self) -> str:
        """The name of the unit."""
        return self.unit_name or ("mallob-py-web" if self.is_web else "mallob-py")

    def validate(self) -> None:
        super().validate()
        if self.for_user == self.for_system:
            raise OptionError("say one of --user and --system")
        if self.for_user and self.account is not None:
            raise OptionError("--account goes with --system; a unit of a user runs as this user")
        if self.for_system and self.account is None:
            raise OptionError("--system needs --account NAME, the user as whom the service runs")
