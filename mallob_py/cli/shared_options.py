"""Options shared by several commands, and the names of groups of options in --help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mallob_py.applications import our_declarations
from mallob_py.cli import values
from mallob_py.cli.option_sources import CommandOptions, OptionError, job_options, option

if TYPE_CHECKING:
    from mallob_py.kit.declaration import JobOption

INPUT = "input"
OUTPUT = "output"
WORLD = "processes"
LIMITS = "limits"
SCHEDULING = "scheduling"
SERVICE = "service"
FILES = "files and logs"
JOB = "job"
WEB = "web server"


def one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def choice(flag: str, names: Sequence[str], default: str | None, group: str, help: str) -> Any:
    """Declare an option whose value is one of `names`."""
    return option(f"{flag} {'|'.join(names)}", one_of(*names), default, group, help)


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Config(CommandOptions):
    """The option of all commands. (For a class without a docstring, `dataclass` would import a tokenizer.)"""

    config: str | None = option("--config FILE", values.path, None, "configuration", "TOML file with options")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Api(Config):
    """The options of all commands that talk to a service."""

    api_dir: str = option(
        "--api-dir DIR",
        values.path,
        ".api",
        SERVICE,
        "folder from which the service takes jobs, and to which it writes replies (default .api)",
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Parallel(Config):
    """The options of all commands that run several simulations."""

    jobs: int | None = option(
        "--jobs N", values.positive_count, None, WORLD, "number of runs at a time (default: one per core)"
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Runs(Parallel):
    """The options of all commands that make tables of many runs."""

    output: str = option(
        "--output DIR",
        values.path,
        "experiments",
        OUTPUT,
        "folder for tables and figures (default experiments)",
    )


def _declared_options() -> tuple[JobOption, ...]:
    """Return the options of all applications; an option that several applications have is equal in them."""
    return tuple({one.flag: one for declared in our_declarations() for one in declared.options}.values())


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class Wishes(CommandOptions):
    """Settings of a job, for all commands that hand in jobs; applications declare the options in `wishes`."""

    configuration: Mapping[str, Any] | None = option(
        "--configuration JSON",
        values.json_object,
        None,
        JOB,
        'configuration as in a job file: {"solvers": ["cadical195"], "seed": 1, "sharing": false}',
    )
    wishes: Mapping[str, Any] = job_options(_declared_options, group=JOB)

    @property
    def results(self) -> dict[str, str]:
        """Configuration key -> path of each requested result file."""
        keys = {key for declared in our_declarations() for key in declared.result_files}
        return {key: wish for key, wish in self.wishes.items() if key in keys}

    def configuration_with(self, results: Mapping[str, str]) -> dict[str, Any]:
        """Return a job's configuration: `--configuration`, the declared options, and result files.

        The caller chooses the paths of `results`, since the paths depend on the command that runs the job.
        """
        return {**(self.configuration or {}), **self.wishes, **results}

    def validate(self) -> None:
        super().validate()
        for one in _declared_options():
            if one.key not in self.wishes:
                continue
            if one.needs and one.needs not in self.wishes:
                raise OptionError(f"{one.flag} needs --{one.needs}, which is missing")
            for key in (one.key, *one.excludes):
                if key in (self.configuration or {}):
                    raise OptionError(f"{one.flag} contradicts {key!r} in --configuration; say one of them")
