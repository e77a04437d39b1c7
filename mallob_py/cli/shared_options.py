"""Options of several commands, declared once, and the groups of --help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mallob_py.cli import values
from mallob_py.cli.option_sources import CommandOptions, OptionError, option

INPUT = "input"
OUTPUT = "output"
WORLD = "processes"
LIMITS = "limits"
SCHEDULING = "scheduling"
SERVICE = "service"
FILES = "files and logs"
JOB = "job"
WEB = "web server"

_PROOF_FORMATS = ("lrat", "drat")


def one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def choice(flag: str, names: Sequence[str], default: str, *, group: str, help: str) -> Any:
    """Declare an option that takes one of these names."""
    return option(flag, one_of(*names), default, metavar="|".join(names), group=group, help=help)


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Config(CommandOptions):
    config: str | None = option(
        "--config", values.path, None, metavar="FILE", group="configuration", help="TOML file with options"
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Api(Config):
    """What every command that meets a service has in common."""

    api_dir: str = option(
        "--api-dir",
        values.path,
        ".api",
        metavar="DIR",
        group=SERVICE,
        help="folder that the service takes jobs from and writes replies to (default .api)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Parallel(Config):
    """What every command that makes several runs has in common."""

    jobs: int | None = option(
        "--jobs",
        values.positive_count,
        None,
        metavar="N",
        group=WORLD,
        help="runs at a time (default: one per core)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Runs(Parallel):
    """What every command that makes tables of many runs has in common."""

    output: str = option(
        "--output",
        values.path,
        "experiments",
        metavar="DIR",
        group=OUTPUT,
        help="folder for tables and figures (default experiments)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Wishes(CommandOptions):
    """What to ask of a formula, in whichever way it is handed in. None: it is not asked for."""

    configuration: Mapping[str, Any] | None = option(
        "--configuration",
        values.json_object,
        None,
        metavar="JSON",
        group=JOB,
        help='as in a job file: {"solvers": ["cadical195"], "seed": 1, "sharing": false}',
    )
    solutions: int | str | None = option(
        "--solutions",
        values.solution_count,
        None,
        metavar="K|all",
        group=OUTPUT,
        help="find so many models, or all; each is printed as v lines",
    )
    projection: tuple[int, ...] | None = option(
        "--projection",
        values.variables,
        None,
        metavar="V,V,...",
        group=OUTPUT,
        help="with --solutions: the variables to print, by which solutions differ (default: all)",
    )
    solutions_file: str | None = option(
        "--solutions-file",
        values.path,
        None,
        metavar="FILE",
        group=OUTPUT,
        help="with --solutions: write them to FILE instead of printing them; for one formula",
    )
    proof: str | None = option(
        "--proof",
        values.path,
        None,
        metavar="FILE",
        group=OUTPUT,
        help="write a proof of the answer UNSATISFIABLE to FILE, for one formula (see `mallob-py "
        "check-proof`). Only CaDiCaL is used then",
    )
    proof_format: str = choice(
        "--proof-format",
        _PROOF_FORMATS,
        "lrat",
        group=OUTPUT,
        help="form of the proof, both as text: with hints, or without (default lrat)",
    )
    core: str | None = option(
        "--core",
        values.path,
        None,
        metavar="FILE",
        group=OUTPUT,
        help="with UNSATISFIABLE, write clauses that are to blame to FILE, in DIMACS; for one formula",
    )

    @property
    def results(self) -> dict[str, str]:
        """Files that are asked for, by their keys in a configuration."""
        named = {"proof": self.proof, "core": self.core, "solutions-file": self.solutions_file}
        return {key: target for key, target in named.items() if target is not None}

    def configuration_with(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """A job's configuration: what `--configuration` says, these options in its words, and others.

        Where the job is to write its results is among the others, unless None; it depends on who runs it.
        """
        given = {
            "proof-format": None if self.proof is None else self.proof_format,
            "solutions": self.solutions,
            "projection": None if self.projection is None else list(self.projection),
            **others,
        }
        return dict(self.configuration or {}) | {key: one for key, one in given.items() if one is not None}

    def validate(self) -> None:
        super().validate()
        if self.solutions is None and (self.projection is not None or self.solutions_file is not None):
            raise OptionError("--projection and --solutions-file go with --solutions, which is missing")
