"""Options of the commands that describe the command line to shells and readers."""

from __future__ import annotations

from dataclasses import dataclass

from mallob_py.cli.option_sources import CommandOptions, positional
from mallob_py.cli.shared_options import OUTPUT, one_of

SHELLS = ("bash", "zsh")


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletionOptions(CommandOptions):
    """Options of `mallob-py completion`."""

    shell: str = positional("|".join(SHELLS), one_of(*SHELLS), group=OUTPUT, help="the shell")


@dataclass(frozen=True, kw_only=True, eq=False)
class ManOptions(CommandOptions):
    """Options of `mallob-py man`: none."""
