"""The command line: finds the command, parses its options, imports and runs it alone.

A rank started by mpiexec or srun comes through here with the same arguments, hence the
late imports. Exit codes: the command's own; 2 and one line on standard error for anything
wrong with options or input; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from mallob_py import __version__
from mallob_py.cli import interrupts
from mallob_py.cli.outcome import fail, outcome_of

#: commands that several ranks run together
_RANK_COMMANDS = ("solve", "serve")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    code = outcome_of("mallob-py", lambda: _dispatch(given))
    interrupts.let_go()
    return code


def _open_standard_streams() -> None:
    """Have all three, where a shell has closed some (`>&-`): else the next file would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _dispatch(given: list[str]) -> int:
    if given and given[0] == "--version":
        print(f"mallob-py {__version__}")
        return 0
    from mallob_py.cli import options
    from mallob_py.cli.option_sources import OptionError

    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if given else fail("mallob-py: a command is needed")
    command, given = _command(given, options.COMMANDS)
    if command not in options.COMMANDS:
        return fail(f"mallob-py: no command {command!r} (there are {', '.join(options.COMMANDS)})")
    try:
        parsed = options.parse(command, given)
    except OptionError as error:
        fail(f"mallob-py {command}: {error} (see mallob-py {command} --help)")
        if command in _RANK_COMMANDS:
            from mallob_py.runtime.world.mpi import refuse_to_start

            refuse_to_start()
        return 2
    run = options.COMMANDS.run_of(command)
    interrupts.raise_in_command()
    return outcome_of(f"mallob-py {command}", lambda: run(parsed))


def _command(given: list[str], commands: Iterable[str]) -> tuple[str, list[str]]:
    """The command, of one word or two, and what stands behind it."""
    two = " ".join(given[:2])
    return (two, given[2:]) if two in commands else (given[0], given[1:])


def _overview() -> str:
    from mallob_py.cli.options import COMMANDS

    lines = ["usage: mallob-py COMMAND [options]", ""]
    lines += [f"  {name:<18}{summary}" for name, (summary, _) in COMMANDS.items()]
    lines += ["", "mallob-py COMMAND --help lists a command's options; mallob-py --version the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
