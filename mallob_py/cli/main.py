"""The console script: finds the command, parses its options, imports and runs it alone.

A rank started by mpiexec or srun comes through here with the same arguments, hence the
late imports. Exit codes: the command's own; 2 and one line on standard error for anything
wrong with options or input; 130 after Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence

from mallob_py import __version__
from mallob_py.cli import CommandError

#: commands that several ranks run together
_RANK_COMMANDS = ("solve", "serve")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _dispatch(given)
        finally:
            sys.stdout.flush()  # here, where a reader who has left can still be dealt with
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output (head, less) has enough; nothing more may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(given: list[str]) -> int:
    if given and given[0] == "--version":
        print(f"mallob-py {__version__}")
        return 0
    from mallob_py.cli import options
    from mallob_py.cli.option_sources import OptionError

    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview(options.COMMANDS))
        return 0 if given else _fail("mallob-py: a command is needed")
    command, given = _command(given, options.COMMANDS)
    if command not in options.COMMANDS:
        return _fail(f"mallob-py: no command {command!r} (there are {', '.join(options.COMMANDS)})")
    from mallob_py.runtime.world import LaunchError, OthersRefused, refuse_to_start

    try:
        parsed = options.parse(command, given)
    except OptionError as error:
        _fail(f"mallob-py {command}: {error} (see mallob-py {command} --help)")
        if command in _RANK_COMMANDS:
            refuse_to_start()
        return 2
    from mallob_py.service.errors import ServiceError

    module = importlib.import_module(f"mallob_py.cli.{command.replace('-', '_').replace(' ', '_')}")
    try:
        return int(module.run(parsed))
    except OthersRefused:
        return 2
    except (CommandError, LaunchError, ServiceError) as error:
        return _fail(f"mallob-py {command}: {error}")


def _command(given: list[str], commands: Iterable[str]) -> tuple[str, list[str]]:
    """The command, of one word or two, and what stands behind it."""
    two = " ".join(given[:2])
    return (two, given[2:]) if two in commands else (given[0], given[1:])


def _overview(commands: dict[str, tuple[str, type]]) -> str:
    lines = ["usage: mallob-py COMMAND [options]", ""]
    lines += [f"  {name:<16}{summary}" for name, (summary, _) in commands.items()]
    lines += ["", "mallob-py COMMAND --help lists a command's options; mallob-py --version the version."]
    return "\n".join(lines)


def _fail(line: str) -> int:
    print(line.replace("\n", " "), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
