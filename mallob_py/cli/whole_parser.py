"""One argparse parser of all commands, for what describes the command line: completion and manual page.

Nothing is parsed with it: each command has its own (`option_sources.make_parser`), from the same table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from mallob_py.cli import values
from mallob_py.cli.option_sources import SOURCES, CommandOptions, OptionSpec, add_options, table


def whole_parser(commands: Mapping[str, tuple[str, type[CommandOptions]]]) -> argparse.ArgumentParser:
    """`mallob-py` with a subparser for each command, and one below another for commands of two words.

    Actions know what completes them (`complete`, see shtab), and choices where there are some.
    """
    parser = argparse.ArgumentParser(
        prog="mallob-py",
        description="Runs many jobs at once on many cores and shares the cores among them while they run.",
        epilog=f"{SOURCES} The command line wins over the environment, the environment over the file.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    families = {"": parser.add_subparsers(title="commands", metavar="COMMAND")}
    for command, (summary, options_class) in commands.items():
        family, _, word = command.rpartition(" ")
        if family not in families:
            above = families[""].add_parser(family, help=f"Commands of {family}.")
            families[family] = above.add_subparsers(title="commands", metavar="COMMAND")
        one: argparse.ArgumentParser = families[family].add_parser(word, help=summary, description=summary)
        rows = table(options_class)
        for attribute, action in add_options(one, options_class).items():
            _describe(action, rows[attribute][0])
    return parser


def _describe(action: argparse.Action, spec: OptionSpec) -> None:
    from shtab import DIRECTORY, FILE

    words = spec.metavar.split("|")
    if len(words) > 1 and all(word == word.lower() for word in words):
        action.choices = words
    elif spec.parse is values.path:
        described: Any = action
        described.complete = DIRECTORY if spec.metavar in ("DIR", "LOGDIR") else FILE
