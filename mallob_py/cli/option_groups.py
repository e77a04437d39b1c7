"""What the options of all commands have in common: their groups in --help, kinds, and --config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mallob_py.cli import values
from mallob_py.cli.option_sources import CommandOptions, option

INPUT = "input"
OUTPUT = "output"
WORLD = "processes"
LIMITS = "limits"
SCHEDULING = "scheduling"
SERVICE = "service"
FILES = "files and logs"
JOB = "job"
WEB = "web server"

PROOF_FORMATS = ("lrat", "drat")


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
